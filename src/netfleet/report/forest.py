"""The figure of a comparison: paired differences with their intervals, and the curves that they come from."""

import math
from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from netfleet.report.comparison import Comparison, Entry
from netfleet.report.intervals import LEVEL
from netfleet.report.looks import Looks, looks
from netfleet.report.plots import DPI, INK, MUTED, STYLE, TICKS, Drawing, draw_axes, metric_of, say
from netfleet.runs.history import History, group, is_percent


def draw_comparison(comparison: Comparison, histories: Sequence[History]) -> Figure:
    """On the left each method's difference to the reference, seed by seed; on the right the column over rounds."""
    labels = [entry.row.label for entry in comparison.entries]
    shown = [history for history in histories if history.label in labels]
    styles = looks(history.label for history in histories)
    with matplotlib.rc_context(STYLE):
        figure = Drawing((12.0, max(3.4, 0.34 * len(labels) + 1.5)), dpi=DPI, layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
        _draw_differences(left, comparison, styles)
        metric, groups = metric_of(comparison.column), group(shown)
        draw_axes(right, {label: groups[label] for label in labels}, styles, metric, "round")
        right.set_title(f"{metric.title} over rounds")
        if comparison.target is not None:
            right.axhline(comparison.target, color=MUTED, linewidth=1, linestyle=(0, (1, 2)))
        if any(len(runs) > 1 for runs in groups.values()):
            words = "curves: mean over seeds; band: lowest to highest seed"
            figure.supxlabel(words, x=0.995, ha="right", fontsize=8, color=MUTED)
    return figure


def _draw_differences(axes: Axes, comparison: Comparison, styles: Looks) -> None:
    percent = is_percent(comparison.column)
    for place, entry in enumerate(comparison.entries):
        _draw_entry(axes, place, entry, comparison.reference, styles, 100.0 if percent else 1.0)
    axes.axvline(0, color=INK, linewidth=0.8, zorder=1)
    axes.set_ylim(len(comparison.entries) - 0.4, -0.6)  # the best on top
    axes.set_yticks([])
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.margins(x=0.12)
    title = axes.set_title("x")
    say(title, f"Difference to {comparison.reference}, seed by seed")
    unit = ", points" if percent else ""
    better = "right" if percent else "left"
    words = f"{comparison.column} minus the reference's{unit} ({100 * LEVEL:.0f} % interval; better to the {better})"
    axes.set_xlabel(words)
    axes.tick_params(**TICKS)


def _draw_entry(axes: Axes, place: int, entry: Entry, reference: str, styles: Looks, factor: float) -> None:
    label, gap = entry.row.label, entry.gap
    look, beside = styles[label], axes.get_yaxis_transform()
    name = axes.text(-0.02, place, "x", transform=beside, ha="right", va="center", fontsize=9)
    say(name, label)
    if label == reference:
        axes.plot(0, place, look.marker, color=look.color, markerfacecolor="white", markersize=7, zorder=4)
    elif gap is not None and math.isfinite(gap.mean):
        middle, low, high = (factor * value for value in (gap.mean, gap.low, gap.high))
        axes.plot([low, high], [place, place], color=look.color, linewidth=2.2, solid_capstyle="butt", zorder=3)
        axes.plot(middle, place, look.marker, color=look.color, markeredgecolor="white", markersize=8, zorder=4)
    else:
        words = "diverged" if entry.row.diverged else "no shared seed"
        axes.text(0.5, place, words, transform=beside, ha="center", va="center", fontsize=8.5, color=MUTED)
