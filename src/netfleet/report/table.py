"""The table of results: a row per algorithm with its last values, for the terminal and the HTML report."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from netfleet.runs.history import History, group


class Stat(NamedTuple):
    """A column's last values over seeds; `std` (of the sample) is None for a single seed."""

    mean: float
    std: float | None = None
    low: float = math.nan
    high: float = math.nan


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


def _number(value: float) -> str:
    return f"{value:.3g}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.1e}"


def _count(value: float) -> str:
    units = ((1e9, " G"), (1e6, " M"), (1e3, " k"))
    return next((f"{value / unit:.3g}{name}" for unit, name in units if value >= unit), f"{value:.0f}")


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _accuracy(stat: Stat) -> str:
    return f"{100 * stat.mean:.2f}" + ("" if stat.std is None else f" ± {100 * stat.std:.2f}")


def _workers(stat: Stat) -> str:
    return f"{100 * stat.mean:.1f} [{100 * stat.low:.1f}–{100 * stat.high:.1f}]"


COLUMNS = (
    Column("accuracy", "accuracy\nof x̄, %", _accuracy, "max"),
    Column("worker_accuracy", "of workers, %\nmean [min–max]", _workers, "max"),
    Column("distance2", "distance\n‖x̄−x*‖²", lambda s: _number(s.mean), "min"),
    Column("loss", "loss\nof x̄", lambda s: _number(s.mean), "min"),
    Column("grad_norm2", "gradient\n‖∇f(x̄)‖²", lambda s: _number(s.mean), "min"),
    Column("consensus_error", "consensus\nerror", lambda s: _number(s.mean), "min"),
    Column("bytes", "sent\nMB", lambda s: _amount(s.mean / 1e6)),
    Column("samples", "samples\nused", lambda s: _count(s.mean)),
    Column("seconds", "time\ns", lambda s: _amount(s.mean)),
)
#: The words and the unit of the verdict, which is about the first of these columns that was measured.
VERDICTS = {
    "accuracy": ("with the highest accuracy of x̄,", " %"),
    "distance2": ("nearest to the optimum, ‖x̄ − x*‖² =", ""),
    "loss": ("with the lowest loss of x̄,", ""),
}


def summary(histories: Iterable[History]) -> list[Row]:
    return [_row(label, runs) for label, runs in group(histories).items()]


def columns(rows: Sequence[Row]) -> list[Column]:
    """The columns that at least one row has a value for."""
    return [column for column in COLUMNS if any(column.name in row.values for row in rows)]


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
    column = next((c for c in columns(rows) if c.name in VERDICTS), None)
    order = [row for row in rows if not row.diverged and column is not None and column.name in row.values]
    if column is None or len(order) < 2:
        return ""
    sign = -1 if column.best == "max" else 1
    first, second = sorted(order, key=lambda row: sign * row.values[column.name].mean)[:2]
    one, other = first.values[column.name], second.values[column.name]
    close = abs(one.mean - other.mean) <= max(one.std or 0.0, other.std or 0.0)
    hedge = "; the difference is within one standard deviation over seeds" if close else ""
    words, unit = VERDICTS[column.name]
    then = f"next is {second.label} with {cell(second, column)}{unit}{hedge}"
    return f"{first.label} ends {words} {cell(first, column)}{unit}; {then}."


def print_summary(histories: Iterable[History], console: Console) -> None:
    """Print the table; where it is too wide for the console, print quality and costs as tables of their own."""
    rows = summary(histories)
    for table in _fitting(rows, columns(rows), console):
        console.print(table)
        console.print()
    for row in rows:
        if row.mark:
            console.print(Text.assemble((f"✗ {row.label}: {row.mark}. ", "red"), (row.diverged[0][2], "dim")))
    if any(row.seeds > 1 for row in rows):
        console.print(Text("mean ± standard deviation over seeds", style="dim"))
    if note := sampling_note(histories):
        console.print(Text(note, style="dim"))


def sampling_note(histories: Iterable[History]) -> str:
    """A note where the workers' accuracy is measured on a part of the test samples."""
    limit = max(((h.config.get("evaluation") or {}).get("worker_test_samples", 0) for h in histories), default=0)
    return f"the workers' own models are scored on at most {limit:,} of the test samples" if limit else ""


def _fitting(rows: Sequence[Row], shown: Sequence[Column], console: Console) -> list[Table]:
    table = _table(rows, shown, 16 if console.width < 120 else 40)
    width = Measurement.get(console, console.options.update(width=1000), table).maximum
    if width <= console.width or len(shown) < 2:
        return [table]
    costs = sum(column.best is None for column in shown)
    cut = len(shown) - costs if 0 < costs < len(shown) else len(shown) // 2
    return _fitting(rows, shown[:cut], console) + _fitting(rows, shown[cut:], console)


def _table(rows: Sequence[Row], shown: Sequence[Column], label_width: int) -> Table:
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


def _row(label: str, runs: Sequence[History]) -> Row:
    diverged = tuple((h.seed, h.rounds, h.diverged) for h in runs if h.diverged)
    counted = [h for h in runs if not h.diverged] or runs
    values = {column.name: stat for column in COLUMNS if (stat := _stat(counted, column.name)) is not None}
    own, low, high = (_stat(counted, f"worker_accuracy_{part}") for part in ("mean", "min", "max"))
    if own is not None and low is not None and high is not None:
        values["worker_accuracy"] = own._replace(low=low.low, high=high.high)
    return Row(label, len(runs), diverged, values)


def _stat(runs: Iterable[History], column: str) -> Stat | None:
    """Of the last value that each run has; None if none has one."""
    last = (next((r[column] for r in reversed(run.records) if r.get(column) is not None), math.nan) for run in runs)
    values = np.array([value for value in last if math.isfinite(value)], dtype=np.float64)
    if not len(values):
        return None
    std = float(values.std(ddof=1)) if len(values) > 1 else None
    return Stat(float(values.mean()), std, float(values.min()), float(values.max()))
