"""Methods compared over seeds: means, paired differences to a reference with intervals, and rounds to a target."""

import html
import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from netfleet.errors import ConfigError
from netfleet.registry import suggestion
from netfleet.report.export import Sheet, as_html, as_text, print_sheet
from netfleet.report.intervals import LEVEL, Interval, interval
from netfleet.report.table import Row, Stat, difference, ranked_by, row_of, show_gap, show_number, show_points
from netfleet.runs.compare import differ_beyond_algorithm
from netfleet.runs.history import At, History, group, has, is_percent
from netfleet.runs.tuning import rounds_to


class Question(NamedTuple):
    """What is compared: a column (by default the accuracy, else the loss), where, with whom, and a target for it."""

    column: str | None = None
    at: At = "last"
    reference: str | None = None
    target: float | None = None


class Entry(NamedTuple):
    """One method: its values by seed, and its difference to the reference, whose own is None."""

    row: Row
    gap: Interval | None
    #: Rounds to the target of the seeds that reach it.
    reached: tuple[int, ...] = ()


class Comparison(NamedTuple):
    """The methods with a value, the best first and those with diverged seeds last."""

    column: str
    at: At
    reference: str
    target: float | None
    entries: tuple[Entry, ...]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        plain = partial(print_sheet, sheet(self), bold=[False] * len(self.entries))
        return "\n".join([as_text(plain), *self.notes])

    def _repr_html_(self) -> str:
        table = sheet(self)
        bold = {(i, 0) for i, entry in enumerate(self.entries) if entry.row.label == self.reference}
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return as_html(table.headings, table.rows, bold) + notes


def compare(histories: Sequence[History], question: Question) -> Comparison:
    """Compare runs; those of one label and several seeds are one method."""
    measured = [history for history in histories if history.records]
    column = choose_column(measured, question.column)
    if question.target is not None and not math.isfinite(question.target):
        raise ConfigError(f"the target must be a number (an accuracy such as 0.9, or a loss), got {question.target}")
    rows = [row_of(label, runs, [column], question.at) for label, runs in group(measured).items()]
    rows = [row for row in rows if column in row.values]
    _check_round(measured, column, question.at, found=bool(rows))
    ranked = ranked_by(column, rows)
    ordered = [*ranked, *(row for row in rows if row.diverged)]
    reference = _reference(ordered, ranked, question.reference)
    entries = tuple(_entry(row, reference, column, measured, question.target) for row in ordered)
    notes = tuple(_notes(histories, entries, reference.label, question.at))
    missing = [label for label in group(measured) if label not in {row.label for row in ordered}]
    notes += tuple(f"{label} has no value of {column} there and is left out" for label in missing)
    return Comparison(column, question.at, reference.label, question.target, entries, notes)


def choose_column(histories: Sequence[History], wanted: str | None) -> str:
    """The wanted column, which must have values; by default the accuracy, or the loss where there is none."""
    known = list(dict.fromkeys(name for history in histories for name in history.columns if name != "round"))
    known = [name for name in known if has(histories, name)]
    if not known:
        raise ConfigError("none of the runs has an evaluation yet; wait for the first, or resume them")
    column = wanted or ("accuracy" if "accuracy" in known else "loss")
    if column not in known:
        raise ConfigError(f"no run has a column {column!r}{suggestion(column, known)}; there are: {', '.join(known)}")
    return column


def _check_round(histories: Sequence[History], column: str, at: At, *, found: bool) -> None:
    if not found:
        rounds = sorted({record["round"] for h in histories for record in h if record.get(column) is not None})
        shown = ", ".join(map(str, rounds if len(rounds) <= 12 else [*rounds[:10], "…", rounds[-1]]))
        raise ConfigError(f"no run has a value of {column} after round {at}; there are values after: {shown}")


def _reference(rows: Sequence[Row], ranked: Sequence[Row], wanted: str | None) -> Row:
    """The method with the wanted label, by default the best without diverged seeds."""
    labels = [row.label for row in rows]
    if wanted is None:
        return (ranked or rows)[0]
    if wanted not in labels:
        raise ConfigError(f"no method is called {wanted!r}{suggestion(wanted, labels)}; there are: {'; '.join(labels)}")
    return rows[labels.index(wanted)]


def _entry(row: Row, reference: Row, column: str, histories: Iterable[History], target: float | None) -> Entry:
    runs = [history for history in histories if history.label == row.label and not history.diverged]
    hits = [] if target is None else [rounds_to(history, target, column) for history in runs]
    gap = None if row is reference or _lost(row) else difference(row, reference, column)
    return Entry(row, gap, tuple(hit for hit in hits if hit is not None))


def _lost(row: Row) -> bool:
    """Whether every seed diverged."""
    return len(row.diverged) == row.seeds


def _notes(histories: Sequence[History], entries: Sequence[Entry], reference: str, at: At) -> Iterable[str]:
    """What a reader must know about the numbers, a sentence each."""
    for label, runs in group(histories).items():
        open_runs = [h for h in runs if not h.diverged and h.rounds < h.config.get("rounds", 0)]
        if open_runs and not isinstance(at, int):
            least = min(open_runs, key=lambda h: h.rounds)
            where = f"round {least.rounds} of {least.config['rounds']}"
            advice = f"--at {least.rounds} compares all there" if least.records else "it has no evaluation yet"
            yield f"{label}: {len(open_runs)} of {len(runs)} runs are not finished ({where}); {advice}"
    for row, gap, _ in entries:
        if row.mark:
            yield f"{row.label}: {row.mark}"
        if gap is not None and not math.isfinite(gap.mean):
            yield f"{row.label} shares no seed with {reference}, so they have no paired difference"
    if single := [
        row.label for row, gap, _ in entries if gap is not None and gap.seeds == 1 and math.isfinite(gap.mean)
    ]:
        share, whose = ("shares", "their difference has") if len(single) == 1 else ("share", "these differences have")
        named = ", ".join(single) if len(single) <= 3 else f"{len(single)} methods"
        yield f"{named} {share} one seed with {reference}, so {whose} no interval"
    if keys := differ_beyond_algorithm(histories):
        shown = ", ".join([*keys[:4], *["…"] * (len(keys) > 4)])
        yield f"the runs differ not only in the algorithm but also in {shown}"


def show_value(column: str, stat: Stat) -> str:
    """A mean over seeds with its standard deviation, an accuracy in per cent."""
    if is_percent(column):
        return f"{100 * stat.mean:.2f}" + ("" if stat.std is None else f" ± {100 * stat.std:.2f}")
    return show_number(stat.mean) + ("" if stat.std is None else f" ± {show_number(stat.std)}")


def show_difference(column: str, gap: Interval | None) -> str:
    if gap is None or not math.isfinite(gap.mean):
        return "–"
    stat = Stat(gap.mean, low=gap.low, high=gap.high)
    text = show_points(stat) if is_percent(column) else show_gap(stat)
    return text if gap.seeds > 1 else text.partition(" [")[0]


def sheet(comparison: Comparison) -> Sheet:
    """The comparison as a table."""
    column, percent = comparison.column, is_percent(comparison.column)
    value = f"{column}, %" if percent else column
    where = {"last": "", "best": ", best"}.get(str(comparison.at), f" after round {comparison.at}")
    unit = "points, " if percent else ""
    reference = comparison.reference if len(comparison.reference) <= 24 else "the reference"
    gap = f"to {reference} [{unit}{100 * LEVEL:.0f} % interval]"
    target = [] if comparison.target is None else [f"rounds to {_target(comparison)}"]
    rows = tuple(
        (e.row.label, _seeds(e.row, column), *_cells(comparison, e), *([_reached(e)] if target else []))
        for e in comparison.entries
    )
    data = tuple(_plain(comparison, entry) for entry in comparison.entries)
    return Sheet(("method", "seeds", f"{value}{where}", gap, *target), rows, data)


def _seeds(row: Row, column: str) -> str:
    """How many seeds the mean is over."""
    counted = 0 if _lost(row) else len(row.values[column].by_seed)
    return str(row.seeds) if counted in (0, row.seeds) else f"{counted} of {row.seeds}"


def _target(comparison: Comparison) -> str:
    target = comparison.target or 0.0
    return f"{100 * target:g} %" if is_percent(comparison.column) else f"{target:g}"


def _cells(comparison: Comparison, entry: Entry) -> tuple[str, str]:
    if _lost(entry.row):
        return "diverged", "–"
    gap = "reference" if entry.row.label == comparison.reference else show_difference(comparison.column, entry.gap)
    return show_value(comparison.column, entry.row.values[comparison.column]), gap


def _reached(entry: Entry) -> str:
    """The mean over the seeds that reach the target, and how many do if not all."""
    if not entry.reached:
        return "–"
    some = "" if len(entry.reached) == entry.row.seeds else f" ({len(entry.reached)} of {entry.row.seeds} seeds)"
    return f"{interval(entry.reached).mean:.0f}{some}"


def _plain(comparison: Comparison, entry: Entry) -> dict[str, object]:
    row, gap = entry.row, entry.gap if entry.gap and math.isfinite(entry.gap.mean) else None
    stat = row.values[comparison.column]
    several = gap is not None and gap.seeds > 1
    plain = {"method": row.label, "seeds": row.seeds, "diverged": len(row.diverged), "metric": comparison.column}
    plain |= {"at": comparison.at, "mean": stat.mean, "std": stat.std, "reference": comparison.reference}
    plain |= {"difference": gap and gap.mean, "low": gap.low if gap and several else None}
    plain |= {"high": gap.high if gap and several else None, "shared_seeds": gap.seeds if gap else None}
    if comparison.target is not None:
        mean = interval(entry.reached).mean if entry.reached else None
        plain |= {"target": comparison.target, "rounds_to_target": mean, "seeds_at_target": len(entry.reached)}
    return plain
