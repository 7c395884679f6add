"""Scores of a trained model as a file: over all test rows, at each site, and for each label."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SCORES_FILE = "scores.csv"


class Score(NamedTuple):
    """One number: of which metric, on which test rows, for which label."""

    data: str  # the site whose test rows these are; empty: all test rows
    label: str  # empty: over all labels
    metric: str
    value: float | None  # None where these rows do not have it
    low: float | None  # of the interval
    high: float | None
    rows: int  # that it is made from; of a label, those that have it


def as_csv(scores: Sequence[Score]) -> str:
    """A table with a line of titles; an empty cell where there is no value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Score._fields)
    writer.writerows(scores)
    return text.getvalue()


def read_scores(folder: Path) -> list[Score]:
    """The scores in a run's folder; none where there is no such file."""
    if not (path := folder / SCORES_FILE).exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [_score(row) for row in csv.DictReader(file)]


def _score(row: dict[str, str]) -> Score:
    value, low, high = (float(row[name]) if row[name] else None for name in ("value", "low", "high"))
    return Score(row["data"], row["label"], row["metric"], value, low, high, int(row["rows"]))
