"""What a sweep found: a table of all points, and a figure over one key or two."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator, PercentFormatter

from netfleet.errors import ConfigError
from netfleet.report.comparison import choose_column, show_value
from netfleet.report.export import Sheet
from netfleet.report.intervals import LEVEL, interval
from netfleet.report.looks import OURS, Look, Looks, looks
from netfleet.report.plots import (
    DPI,
    FAINT,
    INK,
    MUTED,
    STYLE,
    TICKS,
    Style,
    label_powers,
    metric_of,
    say,
)
from netfleet.report.table import Row, Stat, ranked_by, row_of
from netfleet.runs.history import At, group, higher_is_better, is_percent
from netfleet.runs.sweep import ALL, Axis, Point, Result, short

_COLORS = LinearSegmentedColormap.from_list("sweep", ["#F1F3F6", "#9CC7E8", "#0072B2", "#08306B"])


class Cell(NamedTuple):
    """A method at a point; without a row the point was refused."""

    point: Point
    method: str
    row: Row | None
    refused: str | None = None

    def lost(self) -> bool:
        """Whether every seed diverged."""
        return self.row is not None and len(self.row.diverged) == self.row.seeds


class Grid(NamedTuple):
    """The value of a column for every method and point of a sweep."""

    axes: tuple[Axis, ...]
    column: str
    cells: tuple[Cell, ...]

    def methods(self) -> list[str]:
        return list(dict.fromkeys(cell.method for cell in self.cells))

    def of(self, method: str) -> dict[tuple[str, ...], Cell]:
        return {cell.point.values: cell for cell in self.cells if cell.method == method}

    def stat(self, cell: Cell) -> Stat | None:
        return None if cell.row is None or cell.lost() else cell.row.values.get(self.column)


def grid(axes: Sequence[Axis], results: Sequence[Result], column: str | None = None, at: At = "last") -> Grid:
    """The values of all methods at all points; a point that is no experiment is refused for every method."""
    histories = [history for result in results for history in result.histories]
    if not histories:
        reason = next(iter(results[0].refused.values()))
        raise ConfigError(f"every point of the sweep was refused; the first one: {reason}")
    name = choose_column(histories, column)
    refused = [label for result in results for label in result.refused if label != ALL]
    cells = []
    for method in dict.fromkeys([*group(histories), *refused]):
        for point, made, reasons in results:
            runs, why = group(made).get(method, []), reasons.get(method, reasons.get(ALL))
            if runs or why:
                row = row_of(method, runs, [name], at) if runs else None
                cells.append(Cell(point, method, row, why))
    return Grid(tuple(axes), name, tuple(cells))


def best(found: Grid) -> dict[str, tuple[str, ...]]:
    """The values of the best point of each method that has one without a diverged seed."""
    points = {}
    for method in found.methods():
        rows = {id(cell.row): cell for cell in found.of(method).values() if cell.row is not None}
        ranked = ranked_by(found.column, [cell.row for cell in rows.values() if cell.row is not None])
        if ranked:
            points[method] = rows[id(ranked[0])].point.values
    return points


def notes(found: Grid) -> list[str]:
    """Which points were refused or diverged and why, a sentence each."""
    refused: dict[str, list[str]] = {}
    for cell in found.cells:
        if cell.refused and cell.point.title not in refused.setdefault(cell.refused, []):
            refused[cell.refused].append(cell.point.title)
    words = []
    for reason, titles in refused.items():
        others = f" and {len(titles) - 1} more points" if len(titles) > 2 else "".join(f"; {t}" for t in titles[1:])
        words.append(f"refused ({titles[0]}{others}): {reason}")
    lost = [(cell, cell.row) for cell in found.cells if cell.row is not None and cell.row.mark and not cell.lost()]
    return words + [f"{cell.point.title}: {cell.method}: {row.mark}" for cell, row in lost]


def sheet(found: Grid) -> Sheet:
    """A row for each method and point."""
    value = f"{found.column}, %" if is_percent(found.column) else found.column
    rows = tuple((cell.method, *map(_plain, cell.point.values), *_shown(found, cell)) for cell in found.cells)
    data = tuple(_numbers(found, cell) for cell in found.cells)
    return Sheet(("method", *(short(axis.key) for axis in found.axes), "seeds", value), rows, data)


def _plain(value: str) -> str:
    return value.strip("\"'")


def _tick(value: str) -> str:
    """A value at an axis: no formula between dollars, and not too long."""
    text = _plain(value)
    return (text if len(text) <= 18 else f"{text[:17]}…").replace("$", r"\$")


def _shown(found: Grid, cell: Cell) -> tuple[str, str]:
    if cell.row is None:
        return "–", "refused"
    stat = found.stat(cell)
    return str(cell.row.seeds), "diverged" if cell.lost() else "–" if stat is None else show_value(found.column, stat)


def _numbers(found: Grid, cell: Cell) -> Mapping[str, object]:
    point = {axis.key: _plain(value) for axis, value in zip(found.axes, cell.point.values, strict=True)}
    stat, row = found.stat(cell), cell.row
    state = "refused" if row is None else f"{len(row.diverged)} diverged" if row.diverged else "done"
    numbers: dict[str, object] = {"method": cell.method, **point, "seeds": row.seeds if row else 0, "state": state}
    numbers |= {"metric": found.column, "mean": None, "std": None, "low": None, "high": None}
    if stat is not None:
        span = interval(list(stat.by_seed.values()))
        numbers |= {"mean": stat.mean, "std": stat.std}
        numbers |= {"low": span.low, "high": span.high} if span.seeds > 1 else {}
    return numbers


def draw_sweep(found: Grid) -> Figure | None:
    """Lines over the values of one key, or a heat map per method over two; None for more keys."""
    with matplotlib.rc_context(STYLE):
        return _lines(found) if len(found.axes) == 1 else _maps(found) if len(found.axes) == 2 else None


def _lines(found: Grid) -> Figure:
    (axis,), styles, metric = found.axes, looks(found.methods()), metric_of(found.column)
    places = _places(axis)
    figure = Figure((7.2, 4.4), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    _set_places(axes, axis, places)
    for i, method in enumerate(found.methods()):
        aside = 0.008 * (i - (len(styles) - 1) / 2)  # so that intervals do not hide each other
        _line(axes, found, method, styles[method], _shifted(places, aside))
    _mark_failures(axes, found, places, styles)
    if metric.scale == "percent":
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    stats = [stat.mean for cell in found.cells if (stat := found.stat(cell)) is not None]
    if metric.scale != "percent" and stats and min(stats) > 0 and max(stats) > 100 * min(stats):
        axes.set_yscale("log")
        label_powers(axes.yaxis)
        top = min(axes.get_ylim()[1], 1000 * float(np.median(stats)))  # a run may be about to diverge
        axes.set_ylim(min(stats) / 3, top)  # an interval may reach below 0
    axes.set_ylabel(metric.label)
    say(axes.set_xlabel("x"), short(axis.key))
    several = any(cell.row is not None and cell.row.seeds > 1 for cell in found.cells)
    about = f"mean over seeds, {100 * LEVEL:.0f} % interval" if several else "one seed"
    axes.set_title(about, fontsize=8.5, fontweight="normal", color=MUTED)
    axes.tick_params(**TICKS)
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    words = [*found.methods(), *(label for label in handles if label not in styles)]
    shape: Style = {"loc": "outside upper left", "ncols": 4, "frameon": False}
    legend = figure.legend([handles[label] for label in words], ["x"] * len(words), **shape)
    for text, label in zip(legend.get_texts(), words, strict=True):
        say(text, label)
    return figure


def _places(axis: Axis) -> dict[str, float]:
    """Where each value lies: at the number that it is, or one after the other if they are words."""
    try:
        return {value: float(value) for value in axis.values}
    except ValueError:
        return {value: float(i) for i, value in enumerate(axis.values)}


def _logarithmic(places: Mapping[str, float]) -> bool:
    low, high = min(places.values()), max(places.values())
    return low > 0 and high > 9 * low


def _shifted(places: Mapping[str, float], part: float) -> dict[str, float]:
    """The places moved by a part of the axis."""
    low, high = min(places.values()), max(places.values())
    if _logarithmic(places):
        return {value: place * (high / low) ** part for value, place in places.items()}
    return {value: place + part * ((high - low) or 1.0) for value, place in places.items()}


def _set_places(axes: Axes, axis: Axis, places: Mapping[str, float]) -> None:
    if _logarithmic(places):
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(list(places.values()), [_tick(value) for value in axis.values])
    axes.margins(x=0.06)


def _line(axes: Axes, found: Grid, method: str, look: Look, places: Mapping[str, float]) -> None:
    stats = {places[values[0]]: found.stat(cell) for values, cell in found.of(method).items()}
    xs = sorted(stats)
    known = [stats[x] for x in xs]
    spans = [interval([math.nan] if stat is None else list(stat.by_seed.values())) for stat in known]  # NaN: a gap
    means = np.array([span.mean for span in spans])
    ends = [means - [span.low for span in spans], [span.high for span in spans] - means]
    shape: Style = {"marker": look.marker, "markersize": 6, "markeredgecolor": "white", "capsize": 3}
    axes.errorbar(xs, means, yerr=ends, label=method, elinewidth=1, **look.line(), **shape)


def _mark_failures(axes: Axes, found: Grid, places: Mapping[str, float], styles: Looks) -> None:
    """A cross at the lower edge for each method that diverged, and a word where a point was refused."""
    below = axes.get_xaxis_transform()
    crosses = [(places[c.point.values[0]], styles[c.method].color) for c in found.cells if c.row and c.row.diverged]
    for i, (x, color) in enumerate(crosses):
        height = 0.03 + 0.05 * [place for place, _ in crosses[:i]].count(x)
        axes.plot(x, height, "X", color=color, markersize=8, markeredgecolor="white", transform=below, clip_on=False)
    if crosses:
        axes.plot([], [], "X", color=MUTED, label="diverged seeds")
    for value, place in places.items():
        who = [cell.method for cell in found.cells if cell.refused and cell.point.values == (value,)]
        if who:
            axes.axvline(place, color=FAINT, linewidth=1, linestyle=(0, (1, 2)))
            words = "refused" if len(who) == len(found.methods()) else f"refused: {', '.join(who)}"
            shape: Style = {"rotation": 90, "ha": "right", "va": "top", "fontsize": 8, "color": MUTED}
            say(axes.text(place, 0.97, "x", transform=below, **shape), words)


def _maps(found: Grid) -> Figure:
    (down, across), methods = found.axes, found.methods()
    width = min(len(methods), 3)
    rows = math.ceil(len(methods) / width)
    size = (1.4 + width * max(2.2, 0.85 * len(across.values)), 0.9 + rows * (0.7 + 0.45 * len(down.values)))
    figure = Figure((max(size[0], 4.5), size[1]), dpi=DPI, layout="constrained")
    panels = figure.subplots(rows, width, squeeze=False)
    stats = [stat.mean for cell in found.cells if (stat := found.stat(cell)) is not None]
    norm = _norm(stats)
    for axes in panels.ravel()[len(methods) :]:
        axes.set_axis_off()
    for place, (axes, method) in enumerate(zip(panels.ravel(), methods, strict=False)):
        _map(axes, found, method, norm)
        say(axes.set_title("x"), method)
        if place % width == 0:
            say(axes.set_ylabel("x"), short(down.key))
        say(axes.set_xlabel("x"), short(across.key))
    unit = ", %" if is_percent(found.column) else ""
    figure.supxlabel(f"{found.column}{unit}, mean over seeds; outlined: the method's best", fontsize=8.5, color=MUTED)
    return figure


def _norm(values: Sequence[float]) -> Normalize:
    """From the lowest to the highest value, logarithmic where they span two decades."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    return LogNorm(low, high) if low > 0 and high > 100 * low else Normalize(low, high if high > low else low + 1)


def _map(axes: Axes, found: Grid, method: str, norm: Normalize) -> None:
    (down, across), cells, first = found.axes, found.of(method), best(found).get(method)
    for (i, one), (j, other) in itertools.product(enumerate(down.values), enumerate(across.values)):
        cell = cells.get((one, other))
        stat, words = (None, "–") if cell is None else (found.stat(cell), _shown(found, cell)[1])
        shade = None if stat is None else float(norm(stat.mean))
        if shade is not None and not higher_is_better(found.column):
            shade = 1 - shade  # the better, the darker
        fill = "white" if shade is None else _COLORS(shade)
        axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=fill, edgecolor="white", linewidth=1.5))
        color = MUTED if shade is None else "white" if shade > 0.55 else INK
        axes.text(j, i, words.partition(" ±")[0], ha="center", va="center", fontsize=8.5, color=color)
        if (one, other) == first:
            box: Style = {"facecolor": "none", "edgecolor": OURS, "linewidth": 2, "zorder": 3}
            axes.add_patch(Rectangle((j - 0.46, i - 0.46), 0.92, 0.92, **box))
    axes.grid(False)
    axes.set(xlim=(-0.5, len(across.values) - 0.5), ylim=(len(down.values) - 0.5, -0.5))
    for setter, axis in ((axes.set_xticks, across), (axes.set_yticks, down)):
        setter(range(len(axis.values)), [_tick(value) for value in axis.values])
    axes.tick_params(**TICKS, length=0)
    axes.spines[:].set_visible(False)
