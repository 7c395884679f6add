"""The prediction, and what came of it, as tables in a terminal and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.filesize import decimal

import netfleet
from netfleet.files import write_atomically
from netfleet.runs.progress import in_words
from netfleet.sites.evaluation.results import Verdict
from netfleet.sites.evaluation.verdict import title
from netfleet.sites.planning.overview import say
from netfleet.sites.rehearsal.outcome import Comparison, SiteComparison
from netfleet.sites.rehearsal.pace import BoxPrediction
from netfleet.sites.rehearsal.results import Rehearsal, SitePrediction

if TYPE_CHECKING:
    from rich.console import Console

_VERDICTS: dict[Verdict, str] = {
    "it helped": "helps",
    "too close to call": "too close to call",
    "it did not help": "does not help",
}
#: What predicted gains are of.
_SOURCES = {"own": "", "file": ", with rows of a file", "made up": ", with made-up rows"}


class Columns(NamedTuple):
    """A table: its heads, and a row of texts for each site."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str


def print_rehearsal(found: Rehearsal, console: Console) -> None:
    say(
        console,
        f"{found.name}: {found.method}, {found.rounds} rounds, {len(found.sites)} sites, run {found.run[:12]}\n",
    )
    _print(console, time_table(found))
    for line in summary(found):
        say(console, line)
    say(console, "")
    if found.data:
        _print(console, gain_table(found))
    for note in found.assumptions:
        say(console, f"- {note}")


def print_comparison(found: Comparison, console: Console) -> None:
    _print(console, outcome_table(found))
    if any(row.scores.better is not None for row in found.sites):
        _print(console, gain_outcome_table(found))
    for note in found.notes:
        say(console, f"- {note}")


def write_page(found: Rehearsal, path: Path, came: Comparison | None = None) -> None:
    """The page of a prediction, with what came of it where that is known."""
    from netfleet.report.page import render  # jinja2 takes a while

    after = [] if came is None else [outcome_table(came), gain_outcome_table(came)]
    before = [time_table(found), *([gain_table(found)] if found.data else [])]
    facts = [("method", found.method), ("rounds", str(found.rounds)), ("sites", str(len(found.sites)))]
    facts += [("run", found.run[:12]), ("predicted", found.time[:10])]
    notes = [*found.assumptions, *(() if came is None else came.notes)]
    said = {"title": f"{found.name}: a rehearsal", "lines": summary(found), "facts": facts, "notes": notes}
    text = render("rehearsal.html", **said, tables=[*after, *before], version=netfleet.__version__)
    write_atomically(path, lambda file: file.write(text.encode()))


def summary(found: Rehearsal) -> list[str]:
    parts = {"computing": found.computing, "writing state and record": found.saving, "messages": found.messages}
    shares = ", ".join(f"{100 * share:.0f} % {name}" for name, share in parts.items())
    lines = [f"Predicted: {duration(found.seconds)} in all, {duration(found.round_seconds)} for a round: {shares}."]
    if found.slow is not None:
        otherwise = f"as fast as the next one, it would leave {duration(found.slow.otherwise)} for a round"
        lines.append(f"{found.slow.name} sets the pace; {otherwise}.")
    return lines if found.box is None else [*lines, _box_words(found.box, found)]


def _box_words(box: BoxPrediction, found: Rehearsal) -> str:
    steps = ", ".join(f"{site.name} {count}" for site, count in zip(found.sites, box.steps, strict=True))
    changed = f"a round takes {duration(box.round)} in place of {duration(box.without)} (local steps: {steps})"
    if box.planned:
        return f"By the time box of {box.seconds:g} s {changed}."
    return f"With [time_box] seconds = {box.seconds:g} {changed}."


def time_table(found: Rehearsal) -> Columns:
    heads = ["site", "rows", "a step\ntakes", "steps", "a round:\ncomputes", "\nsaves", "\nwaits", "sent", "disk"]
    return Columns(heads, [_times(site, found) for site in found.sites], "Predicted time and bytes")


def _times(site: SitePrediction, found: Rehearsal) -> list[str]:
    waits = max(found.round_seconds - site.computing - site.saving, 0.0)
    rows, times = "–" if site.rows is None else str(site.rows), (site.computing, site.saving, waits)
    ends = (
        duration(site.step_seconds),
        f"{site.steps:.3g}",
        *map(duration, times),
        decimal(site.sent),
        decimal(site.disk),
    )
    return [site.name, rows, *ends]


def gain_table(found: Rehearsal) -> Columns:
    name = next(title(site.gain.metric) for site in found.sites if site.gain is not None)
    rows = [_gains(site) for site in found.sites]
    return Columns(
        ["site", "test\nrows", "together", "alone", "difference", ""], rows, f"Predicted {name}{_SOURCES[found.data]}"
    )


def _gains(site: SitePrediction) -> list[str]:
    gain = site.gain
    if gain is None:
        return [site.name, *["–"] * 5]
    better = gain.better
    spread = "" if better.low is None or better.high is None else f" [{better.low:+.3f}, {better.high:+.3f}]"
    scores = _score(gain.joint.value), _score(gain.alone.value), f"{_signed(better.value)}{spread}"
    return [site.name, str(gain.rows), *scores, _VERDICTS[gain.verdict]]


def outcome_table(found: Comparison) -> Columns:
    heads = ["site", "rounds", "time", "predicted", "ratio", "sent", "predicted", "ratio"]
    return Columns(
        heads, [_outcome(row, found.rounds) for row in found.sites], "Time and bytes, and what was predicted"
    )


def _outcome(row: SiteComparison, rounds: int) -> list[str]:
    done, seconds = row.done, None if row.done is None else row.done.seconds
    rounds_done = "–" if done is None else f"{done.rounds}/{rounds}"
    times = "–" if seconds is None else duration(seconds), duration(row.seconds), _ratio(seconds, row.seconds)
    sent = None if done is None else done.sent
    sizes = "–" if sent is None else decimal(sent), decimal(round(row.sent)), _ratio(sent, row.sent)
    return [row.name, rounds_done, *times, *sizes]


def gain_outcome_table(found: Comparison) -> Columns:
    heads = ["site", "together", "predicted", "alone", "predicted", "difference", "predicted"]
    return Columns(
        heads,
        [_gain_outcome(row) for row in found.sites],
        f"Scores, and what was predicted{_SOURCES.get(found.data, '')}",
    )


def _gain_outcome(row: SiteComparison) -> list[str]:
    was, gain = row.scores, row.predicted.gain
    joint, alone, better = (None,) * 3 if gain is None else (gain.joint.value, gain.alone.value, gain.better.value)
    scores = _score(was.joint), _score(joint), _score(was.alone), _score(alone)
    return [row.name, *scores, _signed(was.better), _signed(better)]


def duration(seconds: float) -> str:
    return in_words(seconds) if seconds >= 10 else f"{seconds:.2g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.3f}"


def _ratio(happened: float | None, predicted: float) -> str:
    """What happened ÷ what was predicted."""
    return "–" if happened is None or predicted <= 0 else f"{happened / predicted:.2f}"


def _print(console: Console, columns: Columns) -> None:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for k, name in enumerate(columns.heads):
        table.add_column(name, justify="right" if k else "left", no_wrap=True, overflow="ellipsis" if k else "fold")
    for row in columns.rows:
        table.add_row(*row)
    say(console, columns.title)
    console.print(table)
