"""What the page is told: typed records, which become JSON."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from netfleet.report.looks import looks
from netfleet.runs.history import Record

#: Horizontal axes, and the columns that have a curve.
AXES = ("round", "bytes", "seconds")
COLUMNS = {
    "accuracy": "Accuracy of x̄",
    "worker_accuracy_mean": "Accuracy of workers, mean",
    "loss": "Loss of x̄",
    "distance2": "‖x̄ − x*‖²",
    "consensus_error": "Consensus error",
    "grad_norm2": "‖∇f(x̄)‖²",
    "tracking_error": "‖Σ(y − g)‖",
    "epsilon": "Privacy spent, ε",
}
LOGARITHMIC = ("distance2", "consensus_error", "grad_norm2", "tracking_error")
#: Points of all curves of a figure together, and the fewest of one.
POINTS, FEWEST = 4000, 100

Number = float | None
Cell = str | float | None


@dataclass(frozen=True)
class Have:
    """The part of a curve that a page has already: every stride-th record, so many of them."""

    epoch: int = -1
    stride: int = 0
    count: int = 0


@dataclass(frozen=True)
class Query:
    """What a page asks: its chosen series, the place in it (None: the newest), and the curves that it has."""

    series: str = ""
    index: int | None = None
    have: Mapping[str, Have] = field(default_factory=dict)


@dataclass(frozen=True)
class Curve:
    """Every stride-th record from the start-th of those on, by column, and the newest of all."""

    epoch: int
    stride: int
    start: int
    columns: Mapping[str, Sequence[Number]]
    last: Mapping[str, Number]


@dataclass(frozen=True)
class Series:
    """A run or a site in one line."""

    id: str
    label: str
    group: str  # the method; all its seeds have one colour
    state: str
    words: str
    round: int
    rounds: int
    colour: str = ""


def coloured(series: Sequence[Series]) -> list[Series]:
    """Each in the colour that its group has in a report too."""
    styles = looks(each.group for each in series)
    return [replace(each, colour=styles[each.group].color) for each in series]


@dataclass(frozen=True)
class Grid:
    """A table of the page."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Colours:
    """What the graph shows now: a value of each node and link by name, and what is wrong with it."""

    round: int | None
    nodes: Mapping[str, Sequence[Number]]
    links: Mapping[str, Sequence[Number]]
    node_marks: Mapping[int, str] = field(default_factory=dict)
    link_marks: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Picture:
    """The nodes and drawn links of a graph; `words` says which links are left out."""

    labels: Sequence[str]
    x: Sequence[float]
    y: Sequence[float]
    ends: Sequence[tuple[int, int]]
    words: str = ""


@dataclass(frozen=True)
class News:
    """An answer to a query."""

    title: str
    state: str
    words: Sequence[str]
    series: Sequence[Series]
    selected: str
    index: int
    count: int
    round: int | None
    curves: Mapping[str, Curve]
    captions: Mapping[str, str]  # of the columns
    moment: Grid
    graph: str
    colours: Colours
    nodes: Grid


class Source(Protocol):
    """Where the page's numbers come from. All pages share one; each method is called by one thread at a time."""

    def news(self, query: Query) -> News: ...

    def picture(self, graph: str) -> Picture: ...


def number(value: object) -> Number:
    """A value as JSON can have it."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def other_columns(records: Iterable[Record], known: Sequence[str]) -> list[str]:
    """The further metrics of some records, without those of workers and sites one by one."""
    names = dict.fromkeys(name for record in records for name, value in record.items() if value is not None)
    parts = ("worker_", "own_", "train_", "round", "stationarity", *AXES)
    return [name for name in names if name not in known and not name.startswith(parts) and not name.endswith("_se")]


def cut(records: Sequence[Record], epoch: int, have: Have, together: int) -> Curve:
    """What a page that has a part of a curve needs of it; `together` is the number of curves."""
    most, stride = max(POINTS // max(together, 1), FEWEST), 1
    while len(records) > most * stride:
        stride *= 2
    kept = -(-len(records) // stride)
    same = (have.epoch, have.stride) == (epoch, stride) and have.count <= kept
    start = have.count if same else 0
    new, newest = records[start * stride :: stride], records[-1] if records else {}
    names = (*AXES, *COLUMNS)
    there = [name for name in names if any(record.get(name) is not None for record in (*new, newest))]
    columns = {name: [number(record.get(name)) for record in new] for name in there}
    return Curve(epoch, stride, start, columns, {name: number(newest.get(name)) for name in there})
