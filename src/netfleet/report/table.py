"""The table of results: a row per algorithm with its last values, for the terminal and the HTML report."""

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from netfleet.report.export import as_html
from netfleet.report.intervals import LEVEL, Interval, interval
from netfleet.runs.history import At, History, group, has, higher_is_better, in_words, is_percent, metric_columns


class Stat(NamedTuple):
    """A column's last values over seeds; `std` (of the sample) is None for a single seed."""

    mean: float
    std: float | None = None
    low: float = math.nan
    high: float = math.nan
    by_seed: Mapping[int, float] = {}


class Row(NamedTuple):
    """One algorithm: over the seeds that did not diverge, or over all where every seed did."""

    label: str
    seeds: int
    diverged: tuple[tuple[int, int, str], ...]  # (seed, last evaluated round, what happened)
    values: dict[str, Stat]

    @property
    def mark(self) -> str:
        if not self.diverged:
            return ""
        rounds = sorted({last for _, last, _ in self.diverged})
        when = f"after round {rounds[0]}" + (f" to {rounds[-1]}" if len(rounds) > 1 else "")
        return f"diverged {when}" if self.seeds == 1 else f"{len(self.diverged)} of {self.seeds} seeds diverged {when}"


class Column(NamedTuple):
    """A column of the table: `best` is "max" or "min" where it tells a better algorithm from a worse one."""

    name: str
    heading: str  # two short lines
    show: Callable[[Stat], str]
    best: Literal["max", "min"] | None = None


def show_number(value: float) -> str:
    return f"{value:.3g}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.1e}"


def _count(value: float) -> str:
    units = ((1e9, " G"), (1e6, " M"), (1e3, " k"))
    return next((f"{value / unit:.3g}{name}" for unit, name in units if value >= unit), f"{value:.0f}")


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _accuracy(stat: Stat) -> str:
    return f"{100 * stat.mean:.2f}" + ("" if stat.std is None else f" ± {100 * stat.std:.2f}")


def show_gap(stat: Stat) -> str:
    return f"{show_number(stat.mean)} [{show_number(stat.low)}, {show_number(stat.high)}]"


def show_points(stat: Stat) -> str:
    return f"{100 * stat.mean:+.2f} [{100 * stat.low:.2f}, {100 * stat.high:.2f}]"


def _workers(stat: Stat) -> str:
    return f"{100 * stat.mean:.1f} [{100 * stat.low:.1f}–{100 * stat.high:.1f}]"


COLUMNS = (
    Column("accuracy", "accuracy\nof x̄, %", _accuracy, "max"),
    Column("gap_points", "to the best, points\n[95 % interval]", show_points),
    Column("worker_accuracy", "of workers, %\nmean [min–max]", _workers, "max"),
    Column("distance2", "distance\n‖x̄−x*‖²", lambda s: show_number(s.mean), "min"),
    Column("loss", "loss\nof x̄", lambda s: show_number(s.mean), "min"),
    Column("gap", "to the best\n[95 % interval]", show_gap),
    Column("grad_norm2", "gradient\n‖∇f(x̄)‖²", lambda s: show_number(s.mean), "min"),
    Column("consensus_error", "consensus\nerror", lambda s: show_number(s.mean), "min"),
    Column("epsilon", "privacy\nspent, ε", lambda s: f"{s.mean:.3g}"),
    Column("bytes", "sent\nMB", lambda s: _amount(s.mean / 1e6)),
    Column("samples", "samples\nused", lambda s: _count(s.mean)),
    Column("seconds", "time\ns", lambda s: _amount(s.mean)),
)
COSTS = ("bytes", "samples", "seconds")
#: The words and the unit of the verdict, which is about the first of these columns that was measured.
VERDICTS = {
    "accuracy": ("with the highest accuracy of x̄,", " %"),
    "distance2": ("nearest to the optimum, ‖x̄ − x*‖² =", ""),
    "loss": ("with the lowest loss of x̄,", ""),
}


def summary(histories: Iterable[History]) -> list[Row]:
    """A row per algorithm, with its difference to the best one where they share two seeds or more."""
    rows = [_row(label, runs) for label, runs in group(histories).items()]
    column, ranked = ranking(rows)
    for row in ranked[1:]:
        found = difference(row, ranked[0], column)
        if found.seeds > 1:
            name = "gap_points" if column == "accuracy" else "gap"
            row.values[name] = Stat(found.mean, low=found.low, high=found.high)
    return rows


def ranking(rows: Sequence[Row]) -> tuple[str, list[Row]]:
    """The column that tells the best, and the rows that did not diverge in its order."""
    column = next((c for c in COLUMNS if c.name in VERDICTS and any(c.name in row.values for row in rows)), COLUMNS[0])
    return column.name, ranked_by(column.name, rows)


def ranked_by(column: str, rows: Iterable[Row]) -> list[Row]:
    """The rows that did not diverge and have the column, the best first."""
    known = [row for row in rows if not row.diverged and column in row.values]
    return sorted(known, key=lambda row: row.values[column].mean, reverse=higher_is_better(column))


def difference(row: Row, other: Row, column: str) -> Interval:
    """Of a column between two algorithms, over the seeds that both have."""
    ours, theirs = row.values[column].by_seed, other.values[column].by_seed
    return interval([value - theirs[seed] for seed, value in ours.items() if seed in theirs] or [math.nan])


def columns(rows: Sequence[Row]) -> list[Column]:
    """The columns that at least one row has a value for, with the metrics that were asked for before the loss."""
    names = dict.fromkeys(name for row in rows for name in row.values)
    metrics = [metric_column(name) for name in names if name not in {column.name for column in COLUMNS}]
    place = next(i for i, column in enumerate(COLUMNS) if column.name == "distance2")
    return [column for column in (*COLUMNS[:place], *metrics, *COLUMNS[place:]) if column.name in names]


def metric_column(name: str) -> Column:
    show = _accuracy if is_percent(name) else lambda s: show_number(s.mean)
    heading = f"{in_words(name)}\nof x̄{', %' if is_percent(name) else ''}"
    return Column(name, heading, show, "max" if higher_is_better(name) else "min")


def cell(row: Row, column: Column) -> str:
    """A value as text, "–" where there is none."""
    return column.show(row.values[column.name]) if column.name in row.values else "–"


def best(rows: Sequence[Row], column: Column) -> frozenset[str]:
    """The labels with the best mean among rows that did not diverge; none in a column of costs or for a single row."""
    means = {row.label: row.values[column.name].mean for row in rows if not row.diverged and column.name in row.values}
    if column.best is None or len(rows) < 2 or not means:
        return frozenset()
    target = max(means.values()) if column.best == "max" else min(means.values())
    return frozenset(label for label, mean in means.items() if mean == target)


def verdict(rows: Sequence[Row]) -> str:
    """A sentence that compares the best algorithm with the next; empty if there is nothing to compare."""
    name, ranked = ranking(rows)
    if len(ranked) < 2:
        return ""
    (first, second), (words, unit) = ranked[:2], VERDICTS[name]
    column = next(c for c in COLUMNS if c.name == name)
    gap, hedge = difference(first, second, name), ""
    if gap.seeds > 1:
        low, high = sorted(abs(end) for end in (gap.low, gap.high))
        shown = f"{100 * low:.2f} to {100 * high:.2f} points" if unit else f"{show_number(low)} to {show_number(high)}"
        apart = f"the difference over {gap.seeds} seeds is {shown} ({100 * LEVEL:.0f} % interval)"
        hedge = f"; {apart}" if gap.low * gap.high > 0 else f"; {gap.seeds} seeds do not tell them apart"
    then = f"next is {second.label} with {cell(second, column)}{unit}{hedge}"
    return f"{first.label} ends {words} {cell(first, column)}{unit}; {then}."


def print_summary(histories: Sequence[History], console: Console) -> None:
    """Print the table; where it is too wide for the console, print quality and costs as tables of their own."""
    rows = summary(histories)
    for table in _fitting(rows, columns(rows), console):
        console.print(table)
        console.print()
    for row in rows:
        if row.mark:
            console.print(Text.assemble((f"✗ {row.label}: {row.mark}. ", "red"), (row.diverged[0][2], "dim")))
    if any(row.seeds > 1 for row in rows):
        gaps = "; differences are those between runs of one seed" if any("gap" in c.name for c in columns(rows)) else ""
        console.print(Text(f"mean ± standard deviation over seeds{gaps}", style="dim"))
    if note := sampling_note(histories):
        console.print(Text(note, style="dim"))


def summary_html(histories: Sequence[History]) -> str:
    """The same table for a notebook."""
    rows = summary(histories)
    shown = columns(rows)
    texts = [[row.label + (" ✗" if row.mark else ""), *(cell(row, column) for column in shown)] for row in rows]
    winners = [best(rows, column) for column in shown]
    bold = {(i, j + 1) for i, row in enumerate(rows) for j, labels in enumerate(winners) if row.label in labels}
    marks = "".join(f"<p>✗ {html.escape(f'{r.label}: {r.mark}. {r.diverged[0][2]}')}</p>" for r in rows if r.mark)
    return as_html(["algorithm", *(column.heading for column in shown)], texts, bold) + marks


def sampling_note(histories: Sequence[History]) -> str:
    """A note where the workers' accuracy is estimated from a part of the test samples."""
    limit = max(((h.config.get("evaluation") or {}).get("worker_test_samples", 0) for h in histories), default=0)
    words = f"the workers' own models are scored on about {limit:,} test samples each, drawn at random"
    return words if has(histories, "worker_accuracy_mean_se") else ""


def _fitting(rows: Sequence[Row], shown: Sequence[Column], console: Console) -> list[Table]:
    """As few tables as the console's width allows, with the costs apart from the quality where one is not enough."""
    costs = [column for column in shown if column.name in COSTS]
    parts = [shown, [column for column in shown if column.name not in COSTS], costs]
    if len(found := _packed(rows, parts[0], console)) == 1:
        return found
    return [table for part in parts[1:] for table in _packed(rows, part, console)]


def _packed(rows: Sequence[Row], shown: Sequence[Column], console: Console) -> list[Table]:
    """The columns in their order, as many in each table as fit."""
    tables: list[list[Column]] = [[]]
    for column in shown:
        if tables[-1] and _width(_table(rows, [*tables[-1], column], console), console) > console.width:
            tables.append([])
        tables[-1].append(column)
    return [_table(rows, part, console) for part in tables if part]


def _width(table: Table, console: Console) -> int:
    return Measurement.get(console, console.options.update(width=1000), table).maximum


def _table(rows: Sequence[Row], shown: Sequence[Column], console: Console) -> Table:
    label_width = 16 if console.width < 120 else 40
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("algorithm", overflow="fold", max_width=label_width, vertical="bottom")
    for column in shown:
        table.add_column(Text(column.heading, justify="right"), justify="right", no_wrap=True)
    winners = {column.name: best(rows, column) for column in shown}
    for row in rows:
        name = Text(row.label + (" ✗" if row.mark else ""), style="red" if row.mark else "")
        cells = [Text(cell(row, c), style="bold green" if row.label in winners[c.name] else "") for c in shown]
        table.add_row(name, *cells)
    return table


def row_of(label: str, runs: Sequence[History], names: Iterable[str], at: At = "last") -> Row:
    """The row of an algorithm with some columns."""
    diverged = tuple((h.seed, h.rounds, h.diverged) for h in runs if h.diverged)
    counted = [h for h in runs if not h.diverged] or runs
    return Row(label, len(runs), diverged, {n: stat for n in names if (stat := _stat(counted, n, at)) is not None})


def _row(label: str, runs: Sequence[History]) -> Row:
    parts = [f"worker_accuracy_{part}" for part in ("mean", "min", "max")]
    row = row_of(label, runs, [*(column.name for column in COLUMNS), *metric_columns(runs), *parts])
    own, low, high = (row.values.pop(part, None) for part in parts)
    if own is not None and low is not None and high is not None:
        row.values["worker_accuracy"] = own._replace(low=low.low, high=high.high)
    return row


def _stat(runs: Iterable[History], column: str, at: At) -> Stat | None:
    """Of the value that each run has; None if none has one."""
    found = {run.seed: value for run in runs if (value := run.value(column, at)) is not None}
    if not found:
        return None
    values = np.array(list(found.values()), dtype=np.float64)
    std = float(values.std(ddof=1)) if len(values) > 1 else None
    return Stat(float(values.mean()), std, float(values.min()), float(values.max()), found)
