"""The figures: panels side by side as in the paper, accuracy smoothed over WINDOW evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from netfleet.report.plots import ACCURACY, QUANTITIES, Metric, draw_panels
from netfleet.report.plots import Panel as Axes
from netfleet.reproduce.claims import smoothed
from netfleet.reproduce.panels import Panel
from netfleet.reproduce.runs import histories
from netfleet.reproduce.store import Store

WIDTH, HEIGHT = 5.2, 3.1


def by_figure(panels: Sequence[Panel]) -> dict[str, list[Panel]]:
    """The panels of each figure, in order of appearance."""
    figures: dict[str, list[Panel]] = {}
    for panel in panels:
        figures.setdefault(panel.figure, []).append(panel)
    return figures


def draw(panels: Sequence[Panel], store: Store, metric: Metric = ACCURACY) -> Figure:
    """One column per panel and one row per axis; a lone panel has its axes side by side."""
    columns = [_column(panel, store, metric) for panel in panels]
    rows = [list(row) for row in zip(*columns, strict=True)] if len(columns) > 1 else columns
    return draw_panels(rows, (WIDTH * max(map(len, rows)), HEIGHT), share_y=True)


def _column(panel: Panel, store: Store, metric: Metric) -> list[Axes]:
    runs = [smoothed(h, metric.column) for found in histories(panel, store).values() for h in found]
    titles: Mapping[str, str] = {x: f" {quantity.over}" for x, quantity in QUANTITIES.items()}
    several = len(panel.axes) > 1
    return [Axes(runs, metric, x, panel.title + (titles[x] if several else "")) for x in panel.axes]
