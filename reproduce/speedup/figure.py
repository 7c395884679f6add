"""The figure of the studies: a column per study, the metric over all gradients taken, and below what m does to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from netfleet.report.plots import DPI, INK, MARKERS, MUTED, OTHERS, OURS, STYLE, TICKS
from reproduce.speedup.fit import Measured, Row, fit, reachable, rounds_to, within
from reproduce.speedup.study import Study

WIDTH, HEIGHT = 4.8, 3.5
DOTTED = (0, (1.2, 1.6))


def draw(found: Sequence[tuple[Study, Measured]]) -> Figure:
    """Full marks where K is the corollary's or less, hollow ones elsewhere."""
    with matplotlib.rc_context(STYLE):
        figure = Figure((WIDTH * len(found), 2 * HEIGHT + 1.2), dpi=DPI, layout="constrained")
        grid = figure.subplots(2, len(found), squeeze=False)
        for place, (study, lines) in enumerate(found):
            _draw_metric(grid[0, place], study, lines)
            (_draw_workers if study.fixed else _draw_rounds)(grid[1, place], study, lines)
    return figure


def _styled(lines: Measured) -> Iterator[tuple[str, Sequence[Row], str, str]]:
    """Every line with its colour and marker."""
    for (label, rows), color, shape in zip(lines.items(), (OURS, *OTHERS), ("o", *MARKERS), strict=False):
        yield label, rows, color, shape


def _draw_metric(axes: Axes, study: Study, lines: Measured) -> None:
    """The law is fitted to the full marks."""
    for label, rows, color, shape in _styled(lines):
        _marks(axes, [(row.work, row.mean, row.inside()) for row in rows], color, shape)
        diverged = sum(not np.isfinite(row.mean) for row in rows)
        inside = [row for row in rows if row.inside()]
        words = label
        if law := fit(inside):
            ends = [min(row.work for row in inside), max(row.work for row in inside)]
            axes.plot(ends, [law.at(end) for end in ends], color=color, linewidth=1.2)
            words += f": slope {law.work}"
        words += f" ({diverged} diverged)" if diverged else ""
        axes.plot([], [], color=color, marker=shape, markersize=4.5, linewidth=1.5, label=words)
    axes.set(xscale="log", yscale="log", xlabel="gradients taken by all workers, m S K", ylabel="averaged metric")
    axes.set_title(study.title)
    _legend_below(axes)


def _marks(axes: Axes, points: Sequence[tuple[float, float, bool]], color: str, shape: str) -> None:
    for wanted, face in ((True, color), (False, "none")):
        some = [(x, y) for x, y, inside in points if inside == wanted and np.isfinite(y)]
        x, y = zip(*some, strict=True) if some else ((), ())
        axes.scatter(x, y, s=22, marker=shape, facecolors=face, edgecolors=color, linewidths=1, zorder=3)


def _draw_rounds(axes: Axes, study: Study, lines: Measured) -> None:
    """The dotted lines fall as 1/m; they are left out where K changes with m. Arrows: at most so many rounds."""
    eps, bounded = reachable(lines), False
    for label, rows, color, shape in _styled(lines):
        needed, steps = rounds_to(rows, eps), {row.K for row in rows}
        values = {m: need.rounds if need else np.nan for m, need in needed.items()}
        few = [m for m, need in needed.items() if need and need.at_most]
        exact = [(m, S, all(within(m, S, K) for K in steps)) for m, S in values.items() if m not in few]
        axes.plot(list(values), [np.nan if m in few else S for m, S in values.items()], color=color, linewidth=1.2)
        _marks(axes, exact, color, shape)
        axes.scatter(few, [values[m] for m in few], s=60, marker=r"$\downarrow$", color=color, linewidths=0.4, zorder=3)
        axes.plot([], [], marker=shape, color=color, markersize=4.5, linewidth=1.2, label=label)
        bounded = bounded or bool(few)
        reached = {m: S for m, S in values.items() if np.isfinite(S)}
        if reached and len(steps) == 1 and min(reached) not in few:
            _draw_ideal(axes, reached, -1.0)
    if bounded:
        axes.plot([], [], linestyle="none", marker=r"$\downarrow$", color=MUTED, label="at most so many")
    _label_workers(axes, study, "rounds S", f"Rounds to a metric of {eps:.2g}", "as 1/m")


def _draw_workers(axes: Axes, study: Study, lines: Measured) -> None:
    """The metric after the same rounds; the dotted line falls as 1/√m."""
    for label, rows, color, shape in _styled(lines):
        found = {row.m: row for row in sorted(rows) if study.fixed == row.S}
        axes.plot(list(found), [row.mean for row in found.values()], color=color, linewidth=1.2)
        _marks(axes, [(m, row.mean, row.inside()) for m, row in found.items()], color, shape)
        axes.plot([], [], marker=shape, color=color, markersize=4.5, linewidth=1.2, label=label)
        if found and label == next(iter(lines)):
            _draw_ideal(axes, {m: row.mean for m, row in found.items()}, -0.5)
    _label_workers(axes, study, "averaged metric", f"After {study.fixed:,} rounds", "as 1/√m")


def _draw_ideal(axes: Axes, found: Mapping[int, float], power: float) -> None:
    first = min(found)
    ideal = [found[first] * (m / first) ** power for m in found]
    axes.plot(list(found), ideal, color=MUTED, linestyle=DOTTED, linewidth=1, zorder=1)


def _label_workers(axes: Axes, study: Study, words: str, title: str, ideal: str) -> None:
    axes.plot([], [], color=MUTED, linestyle=DOTTED, linewidth=1, label=ideal)
    axes.set(xscale="log", yscale="log", xlabel="workers m", ylabel=words)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(sorted(study.workers), [str(m) for m in sorted(study.workers)])
    axes.set_title(title, color=INK)
    _legend_below(axes)


def _legend_below(axes: Axes) -> None:
    """Below the axes the legend covers no point."""
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(-0.02, -0.17))
    axes.tick_params(**TICKS)
