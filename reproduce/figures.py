"""The figures: panels side by side as in the paper, accuracy smoothed over WINDOW evaluations."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from netfleet.report.plots import ACCURACY, LOSS, QUANTITIES, draw_panels
from netfleet.report.plots import Subplot as Axes
from netfleet.runs.compare import has
from reproduce.claims import smoothed
from reproduce.panels import Panel
from reproduce.runs import histories
from reproduce.store import Store

WIDTH, HEIGHT = 5.2, 3.1


def by_figure(panels: Sequence[Panel]) -> dict[str, list[Panel]]:
    """The panels of each figure from (a) on, figures in order of appearance."""
    figures: dict[str, list[Panel]] = {}
    for panel in panels:
        figures.setdefault(panel.figure, []).append(panel)
    return {name: sorted(members, key=lambda panel: panel.name) for name, members in figures.items()}


def file_name(panels: Sequence[Panel]) -> str:
    """Of a figure's picture; a figure that is drawn in part has the name of its panel."""
    return f"{panels[0].figure if len(panels) > 1 else panels[0].name}.png"


def draw(panels: Sequence[Panel], store: Store) -> Figure:
    """One column per panel and one row per axis; a lone panel has its axes side by side, many panels two a row."""
    columns = [_column(panel, store) for panel in panels]
    rows = [list(row) for row in zip(*columns, strict=True)] if len(columns) > 1 else columns
    most = 2 if len(panels) > 1 else max(2, len(panels[0].axes))
    rows = [row[i : i + most] for row in rows for i in range(0, len(row), most)]
    return draw_panels(rows, (WIDTH * max(map(len, rows)), HEIGHT), share_y=True)


def _column(panel: Panel, store: Store) -> list[Axes]:
    runs = [history for found in histories(panel, store).values() for history in found]
    metric = ACCURACY if has(runs, ACCURACY.column) else LOSS
    curves = [smoothed(history, metric.column) for history in runs]
    titles = {x: f"{panel.title} {QUANTITIES[x].over}" if len(panel.axes) > 1 else panel.title for x in panel.axes}
    whole = [Axes(curves, metric, x, title) for x, title in titles.items()]
    near = [axes._replace(title=f"{axes.title}, from {panel.zoom:.0%}", floor=panel.zoom) for axes in whole]
    return whole + (near if panel.zoom else [])
