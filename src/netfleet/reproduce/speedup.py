"""The picture of linear speedup: the averaged metric over all gradients taken, and rounds to a target over workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from netfleet.report.plots import DPI, INK, MARKERS, STYLE, TICKS
from netfleet.reproduce.scaling import Row, fit, rounds_to

WIDTH, HEIGHT = 4.6, 3.4


def draw_speedup(studies: Mapping[str, Sequence[Row]]) -> Figure:
    """A column per study; a colour and a marker per number of workers."""
    with matplotlib.rc_context(STYLE):
        figure = Figure((WIDTH * len(studies), 2 * HEIGHT + 0.4), dpi=DPI, layout="constrained")
        grid = figure.subplots(2, len(studies), squeeze=False)
        for place, (title, measured) in enumerate(studies.items()):
            _draw_metric(grid[0, place], title, measured)
            _draw_rounds(grid[1, place], measured)
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=8, frameon=False)
    return figure


def _draw_metric(axes: Axes, title: str, measured: Sequence[Row]) -> None:
    workers = sorted({row.m for row in measured})
    colors = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(workers)))
    for m, color, marker in zip(workers, colors, ("o", *MARKERS) * len(workers), strict=False):
        line = sorted((row.work, row.mean, min(row.values), max(row.values)) for row in measured if row.m == m)
        work, mean, low, high = np.array(line).T
        axes.plot(work, mean, marker=marker, color=color, linewidth=1, markersize=5, label=f"m = {m}")
        axes.fill_between(work, low, high, color=color, alpha=0.15, linewidth=0)
    found = fit(list(measured))
    ends = np.array([min(row.work for row in measured), max(row.work for row in measured)])
    words = f"slope {found.slope:.2f} [{found.low:.2f}, {found.high:.2f}]"
    axes.plot(ends, [found.at(end) for end in ends], color=INK, linestyle=(0, (3, 1.5)), linewidth=1, zorder=1)
    axes.annotate(words, (0.97, 0.95), xycoords="axes fraction", ha="right", va="top", fontsize=9)
    axes.set(xscale="log", yscale="log", xlabel="gradients taken by all workers, m S K", ylabel="averaged metric")
    axes.set_title(title)
    axes.tick_params(**TICKS)


def _draw_rounds(axes: Axes, measured: Sequence[Row]) -> None:
    """The target is the median of what was measured, which most numbers of workers cross."""
    workers = sorted({row.m for row in measured})
    eps = float(np.median([row.mean for row in measured]))
    needed = rounds_to(list(measured), eps)
    if needed:
        first = min(needed)
        axes.plot(list(needed), list(needed.values()), "o-", color=INK, label="measured")
        ideal = [needed[first] * first / m for m in needed]
        axes.plot(list(needed), ideal, color=INK, linestyle=(0, (1.2, 1.6)), linewidth=1, label="as 1/m")
        axes.legend(frameon=False)
    axes.set(xscale="log", yscale="log", xlabel="workers m", ylabel="rounds S")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(workers, [str(m) for m in workers])
    axes.set_title(f"Rounds to a metric of {eps:.2g}")
    axes.tick_params(**TICKS)
