"""The scores of each trained model as tables: a row for all test rows and each site, and a row for each label."""

from collections.abc import Sequence
from typing import NamedTuple

from netfleet.report.table import show_number
from netfleet.runs.history import History, group, in_words, is_percent
from netfleet.runs.scores import Score


class ScoreGrid(NamedTuple):
    title: str
    headings: list[str]
    rows: list[list[str]]


def score_grids(histories: Sequence[History]) -> list[ScoreGrid]:
    """Two tables for each algorithm, of its first seed; none for runs without scores."""
    found = []
    for label, (first, *others) in group(histories).items():
        title = f"{label}, seed {first.seed}" if others else label
        by_label = [score for score in first.scores if score.label]
        by_site = [score for score in first.scores if not score.label]
        found += [_grid(title, "test rows of", by_site, "data")] if by_site else []
        found += [_grid(title, "label", by_label, "label")] if by_label else []
    return found


def _grid(title: str, heading: str, scores: Sequence[Score], by: str) -> ScoreGrid:
    metrics = list(dict.fromkeys(score.metric for score in scores))
    places = dict.fromkeys(getattr(score, by) for score in scores)
    cells = {(getattr(score, by), score.metric): score for score in scores}
    rows = [
        [name or "all", f"{cells[name, metrics[0]].rows:,}", *(_cell(cells[name, m]) for m in metrics)]
        for name in places
    ]
    headings = [f"{in_words(m)}{', %' if is_percent(m) else ''}" for m in metrics]
    return ScoreGrid(title, [heading, "rows", *headings], rows)


def _cell(score: Score) -> str:
    if score.value is None:
        return "–"
    values = [score.value, *(end for end in (score.low, score.high) if end is not None)]
    value, *ends = (f"{100 * v:.1f}" if is_percent(score.metric) else show_number(v) for v in values)
    return f"{value} [{ends[0]}–{ends[1]}]" if len(ends) == 2 else value
