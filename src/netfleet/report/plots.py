"""Figures of a comparison: curves over rounds, bytes and samples, the workers' spread, labels across workers.

A line is the mean over an algorithm's seeds and its band goes from the lowest to the highest seed. Every figure is a
`matplotlib.figure.Figure` of its own: no pyplot, no global state. An algorithm looks the same in all of them.
"""

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import LogFormatterSciNotation, MaxNLocator, PercentFormatter

from netfleet.report.looks import Look, Looks, looks
from netfleet.runs.history import Band, History, band, group, has, in_words, is_percent, metric_columns

XName = Literal["round", "bytes", "samples"]
Groups = Mapping[str, Sequence[History]]

INK, MUTED, FAINT = "#222222", "#666666", "#999999"
Style = dict[str, Any]  # arguments of matplotlib
STYLE: Any = {"font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left"}
STYLE |= {"axes.edgecolor": FAINT, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True}
STYLE |= {"axes.grid": True, "grid.color": "#E4E4E4", "grid.linewidth": 0.7, "text.color": INK}
TICKS: Style = {"labelsize": 8.5, "color": FAINT}  # ticks are made late, outside the style's context
AVERAGE: Style = {"color": INK, "linewidth": 1, "linestyle": (0, (3, 1.5))}
DPI = 150


class Metric(NamedTuple):
    """A column of a History as a reader sees it; "auto" is logarithmic where the values span two decades."""

    column: str
    title: str
    label: str
    scale: Literal["percent", "auto", "log"]


class Quantity(NamedTuple):
    words: str  # with a place for the unit
    over: str
    units: tuple[tuple[float, str], ...]


ACCURACY = Metric("accuracy", "Accuracy", "accuracy of the average model x̄", "percent")
DISTANCE = Metric("distance2", "Distance to the optimum", "‖x̄ − x*‖²", "log")
LOSS = Metric("loss", "Loss", "loss of the average model x̄", "auto")
CONSENSUS = Metric("consensus_error", "Consensus error", "mean of ‖xᵢ − x̄‖² over workers", "log")
GRADIENT = Metric("grad_norm2", "Squared gradient norm", "‖∇f(x̄)‖²", "log")
TRACKING = Metric("tracking_error", "Tracking error", "‖Σᵢ (yᵢ − gᵢ)‖", "log")
_BYTES = ((1, "bytes"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"))
_COUNTS = ((1, ""), (1e3, " (thousands)"), (1e6, " (millions)"), (1e9, " (billions)"))
QUANTITIES: dict[XName, Quantity] = {
    "round": Quantity("communication rounds{}", "over rounds", ((1, ""),)),
    "bytes": Quantity("{} sent by all workers", "over bytes sent", _BYTES),
    "samples": Quantity("training samples used by all workers{}", "over training samples", _COUNTS),
}


class Drawing(Figure):
    """A figure that a notebook shows once, where it is the value of a cell: pyplot does not know it."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


class Subplot(NamedTuple):
    """One pair of axes: what of which runs, over what."""

    histories: Sequence[History]
    metric: Metric
    x: XName
    title: str
    floor: float | None = None  # where the vertical axis begins, of a close look


def draw_curves(histories: Sequence[History], x: XName = "round") -> Figure:
    """Accuracy (or distance to the optimum), loss, consensus error and ‖∇f(x̄)‖² over rounds, bytes or samples."""
    panels = [Subplot(histories, metric, x, metric.title) for metric in curve_metrics(histories)]
    return draw_panels([panels[i : i + 2] for i in range(0, len(panels), 2)], (10.4, 3.1))


def draw_overview(histories: Sequence[History]) -> Figure:
    """The first metric over rounds, bytes and samples; below it the others over rounds."""
    first, *others = curve_metrics(histories) or [LOSS]
    xs = [x for x in QUANTITIES if has(histories, x)]
    prices = [Subplot(histories, first, x, f"{first.title} {QUANTITIES[x].over}") for x in xs]
    rest = [Subplot(histories, metric, "round", metric.title) for metric in others]
    rows = [prices, *(rest[i : i + 4] for i in range(0, len(rest), 4))]
    return draw_panels([row for row in rows if row], (12.6, 3.2))


def draw_tracking(histories: Sequence[History]) -> Figure | None:
    """‖Σᵢ (yᵢ − gᵢ)‖ of the methods that keep it at 0 up to rounding; None where there is no such method."""
    tracking = [history for history in histories if has([history], TRACKING.column)]
    styles = looks(history.label for history in histories)
    return draw_panels([[Subplot(tracking, TRACKING, "round", "")]], (10.4, 2.6), styles) if tracking else None


def draw_spread(histories: Sequence[History]) -> Figure | None:
    """Range over workers and seeds of the workers' own models, a panel per algorithm; None if it was not measured."""
    metric = next((m for m in (ACCURACY, LOSS) if has(histories, f"worker_{m.column}_mean")), None)
    if metric is None:
        return None
    groups, styles = group(histories), looks(history.label for history in histories)
    width = min(4, len(groups))
    rows = math.ceil(len(groups) / width)
    with matplotlib.rc_context(STYLE):
        figure = Drawing((10.4, 2.4 * rows + 0.5), dpi=DPI, layout="constrained")
        panels = figure.subplots(rows, width, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, (label, runs) in zip(panels, groups.items(), strict=False):
            sound, color = [h for h in runs if not h.diverged] or runs, styles[label].color
            columns = [f"worker_{metric.column}_{part}" for part in ("min", "mean", "max")]
            low, mean, high, average = (band(sound, column) for column in (*columns, metric.column))
            axes.fill_between(low.x, low.low, high.high, color=color, alpha=0.22, linewidth=0)
            axes.plot(mean.x, mean.mean, color=color, linewidth=1.8)
            axes.plot(average.x, average.mean, **AVERAGE)
            axes.tick_params(**TICKS)
            say(axes.set_title("x"), label)
        _scale(panels[0], metric, [band(runs, f"worker_{metric.column}_mean") for runs in groups.values()])
        for axes in panels[len(groups) :]:
            axes.set_axis_off()
        for axes in panels[max(0, len(groups) - width) : len(groups)]:  # the lowest of each column
            axes.tick_params(labelbottom=True)
        key = [Patch(color=MUTED, alpha=0.3, linewidth=0), Line2D([], [], color=MUTED), Line2D([], [], **AVERAGE)]
        words = ["all workers, lowest to highest", "mean of the workers", "average model x̄"]
        figure.legend(key, words, loc="outside upper left", ncols=3, frameon=False)
        figure.supxlabel(QUANTITIES["round"].words.format(""), fontsize=9)
        figure.supylabel(f"{metric.column} of the workers' models", fontsize=9)
    return figure


def draw_labels(counts: npt.ArrayLike) -> Figure:
    """Which worker has how many samples of which label, `[m, classes]`, as a heat map; totals above if they differ."""
    table = np.asarray(counts)
    (workers, classes), totals, held = table.shape, table.sum(axis=1), (table > 0).sum(axis=1)
    height = min(max(0.2 * classes, 0.8), 4.5)
    blues = LinearSegmentedColormap.from_list("samples", ["#F1F3F6", "#9CC7E8", "#0072B2", "#08306B"])
    ratios = [height, 0.7] if totals.max() > 1.05 * totals.min() else [height]
    with matplotlib.rc_context(STYLE | {"axes.grid": False}):
        figure = Drawing((10.4, sum(ratios) + 0.9), dpi=DPI, layout="constrained")
        axes, *below = figure.subplots(len(ratios), 1, sharex=True, height_ratios=ratios, squeeze=False).ravel()
        axes.set_title(f"Each worker holds {_range(held)} of the {classes} labels, {_range(totals)} samples")
        image = axes.imshow(table.T, cmap=blues, norm=PowerNorm(0.5, 0, max(table.max(), 1)), aspect="auto")
        figure.colorbar(image, ax=axes, label="samples", pad=0.01, aspect=10 * height)
        if workers <= 120 and classes <= 30:  # white lines between the cells
            axes.vlines(np.arange(workers - 1) + 0.5, -0.5, classes - 0.5, color="white", linewidth=0.8)
            axes.hlines(np.arange(classes - 1) + 0.5, -0.5, workers - 0.5, color="white", linewidth=0.8)
        axes.set_ylabel("label")
        for bars in below:
            bars.stairs(totals, np.arange(workers + 1) - 0.5, fill=True, color="#8A8A8A")
            bars.set(ylabel="all labels", ylim=(0, totals.max() * 1.05))
        for axis, size in ((axes.xaxis, workers), (axes.yaxis, classes)):
            axis.set_major_locator(MaxNLocator(min(size, 25), integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
        for panel in (axes, *below):
            panel.tick_params(**TICKS)
        (axes, *below)[-1].set_xlabel("worker")
    return figure


def _range(values: npt.NDArray[np.int64]) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def metric_of(column: str) -> Metric:
    """How a column is drawn."""
    known = {metric.column: metric for metric in (ACCURACY, DISTANCE, LOSS, CONSENSUS, GRADIENT, TRACKING)}
    words = in_words(column)
    plain = Metric(
        column,
        words[0].upper() + words[1:],
        f"{words} of the average model x̄",
        "percent" if is_percent(column) else "auto",
    )
    return known.get(column, plain)


def curve_metrics(histories: Sequence[History]) -> list[Metric]:
    """The metrics that have a panel: quality, those that the experiment asked for, loss, and the terms of eq. (4)."""
    quality = next((metric for metric in (ACCURACY, DISTANCE) if has(histories, metric.column)), LOSS)
    asked = [metric_of(name) for name in metric_columns(histories)]
    return [m for m in dict.fromkeys((quality, *asked, LOSS, CONSENSUS, GRADIENT)) if has(histories, m.column)]


def draw_panels(
    rows: Sequence[Sequence[Subplot]], size: tuple[float, float], styles: Looks | None = None, share_y: bool = False
) -> Figure:
    """A figure of rows of panels, and one legend above them all; the size is that of a row."""
    groups = group({id(h): h for row in rows for panel in row for h in panel.histories}.values())
    styles = styles or looks(groups)
    alike: dict[float | None, Axes] = {}
    with matplotlib.rc_context(STYLE):
        figure = Drawing((size[0], size[1] * max(len(rows), 1) + 0.5), dpi=DPI, layout="constrained")
        grid = figure.add_gridspec(max(len(rows), 1), max(map(len, rows), default=1))
        for i, row in enumerate(rows):
            for j, panel in enumerate(row):
                axes = figure.add_subplot(grid[i, j], sharey=alike.get(panel.floor) if share_y else None)
                alike.setdefault(panel.floor, axes)
                axes.set_title(panel.title)
                draw_axes(axes, group(panel.histories), styles, panel.metric, panel.x)
                if panel.floor is not None:
                    axes.set_ylim(panel.floor, 1.0 if panel.metric.scale == "percent" else None)
        if rows:
            seeds = [len(runs) for row in rows for panel in row for runs in group(panel.histories).values()]
            _legend(figure, groups, styles, np.array(seeds or [0]))
        else:
            figure.text(0.5, 0.5, "nothing was measured", ha="center", va="center", color=MUTED)
    return figure


def draw_axes(axes: Axes, groups: Groups, styles: Looks, metric: Metric, x: XName) -> None:
    """One panel: for each algorithm the band of its sound runs, then each diverged run up to a cross at its end."""
    sound = {label: [h for h in runs if not h.diverged] for label, runs in groups.items()}
    lost = [(label, band([h], metric.column, x)) for label, runs in groups.items() for h in runs if h.diverged]
    bands = {label: band(runs, metric.column, x) for label, runs in sound.items()}
    # The largest unit that leaves numbers above 1.
    largest = max((float(b.x.max()) for b in (*bands.values(), *(b for _, b in lost)) if len(b.x)), default=1.0)
    units = QUANTITIES[x].units
    unit, name = next((u for u in reversed(units) if u[0] <= largest), units[0])
    kept = [b for b in bands.values() if len(b.x)]
    logarithmic = _scale(axes, metric, kept or [b for _, b in lost])
    for i, (label, curve) in enumerate(bands.items()):
        _draw_band(axes, curve, styles[label], unit, i / len(bands))
    frame = axes.get_ylim()
    for label, curve in lost:
        _draw_band(axes, curve, styles[label]._replace(width=1.0, marker=""), unit)
    if kept and lost and metric.scale != "percent":
        room = 5 * frame[1] if logarithmic else frame[1] + 0.3 * (frame[1] - frame[0])
        axes.set_ylim(frame[0], min(axes.get_ylim()[1], room))
    for label, curve in lost:
        top = axes.transData.inverted().transform(axes.transAxes.transform((0, 0.95)))[1]
        spot, color = (curve.x[-1:] / unit, np.minimum(curve.mean[-1:], top)), styles[label].color
        axes.plot(*spot, marker="X", markersize=9, color=color, markeredgecolor="white", zorder=5)
    absent = [label for label, b in bands.items() if logarithmic and len(b.mean) and not (b.mean > 0).any()]
    if absent:
        note = axes.text(0.02, 0.03, "x", transform=axes.transAxes, fontsize=8, color=MUTED)
        say(note, "exactly 0: " + ", ".join(absent))
    axes.set(xlabel=QUANTITIES[x].words.format(name), ylabel=metric.label)
    axes.tick_params(**TICKS)


def _draw_band(axes: Axes, curve: Band, look: Look, unit: float, shift: float = 0.0) -> None:
    logarithmic = axes.get_yscale() == "log"
    seen = curve.mean > 0 if logarithmic else np.isfinite(curve.mean)
    places, mean, low, high = (values[seen] for values in curve)
    step = max(1, len(places) // 8)
    every = (int(shift * step), step)  # shifted, so that the markers of two curves do not hide each other
    marker: Style = {"marker": look.marker, "markersize": 5, "markeredgecolor": "white", "markeredgewidth": 0.6}
    axes.plot(places / unit, mean, **look.line(), **marker, markevery=every)
    if (high > low).any():
        floor = np.where(low > 0, low, mean) if logarithmic else low
        axes.fill_between(places / unit, floor, high, color=look.color, alpha=0.18, linewidth=0)


def _scale(axes: Axes, metric: Metric, bands: Iterable[Band]) -> bool:
    """Set up the vertical axis and return whether it is logarithmic, so that only values above 0 can be drawn."""
    values = np.concatenate([np.empty(0), *(b.mean for b in bands)])
    positive = bool((values > 0).any())
    wide = positive and bool((values > 0).all()) and values.max() > 100 * values.min()
    logarithmic = bool((metric.scale == "log" and positive) or (metric.scale == "auto" and wide))
    if logarithmic:
        axes.set_yscale("log")
        label_powers(axes.yaxis)
    elif metric.scale == "percent":
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    return logarithmic


class LogLabels(LogFormatterSciNotation):
    """Powers of ten in plain text: to lay out matplotlib's own, which are formulas, takes a third of a page's time."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        text = re.sub(r"\^\{(-?\d+)\}", lambda found: found[1].translate(_RAISED), super().__call__(x, pos))
        return re.sub(r"\$|\\mathdefault|[{}]", "", text).replace(r"\times", "×")


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def label_powers(axis: Axis) -> None:
    """Label a logarithmic axis."""
    axis.set_major_formatter(LogLabels())
    axis.set_minor_formatter(LogLabels(labelOnlyBase=False))


def _legend(figure: Figure, groups: Groups, styles: Looks, seeds: npt.NDArray[np.int64]) -> None:
    words, handles = list(groups), [Line2D([], [], **styles[g].line(), marker=styles[g].marker) for g in groups]
    if any(history.diverged for runs in groups.values() for history in runs):
        words.append("diverged run, drawn alone")
        handles.append(Line2D([], [], color=MUTED, linestyle="", marker="X", markersize=9))
    fitting = max(1, int(figure.get_figwidth() * 12 / (max(map(len, words)) + 9)))
    columns = math.ceil(len(words) / math.ceil(len(words) / fitting))
    shape: Style = {"ncols": columns, "frameon": False, "handlelength": 3.6, "fontsize": 9.5}
    legend = figure.legend(handles, ["x"] * len(words), loc="outside upper left", **shape)
    for text, word in zip(legend.get_texts(), words, strict=True):
        say(text, word)
    if seeds.max() > 1:
        note = f"line: mean over {_range(seeds)} seeds; band: lowest to highest seed"
        figure.supxlabel(note, x=0.995, ha="right", fontsize=8, color=MUTED)


def say(text: Text, words: str) -> None:
    """Show the user's words verbatim: no formulas between dollars, no name hidden by an underscore."""
    text.set_parse_math(False)
    text.set_text(words)
