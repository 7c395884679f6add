"""What is shown of the panels: the figures, and the claims in both readings of accuracy.

A figure has its panels side by side as in the paper, with the accuracy smoothed over WINDOW evaluations. The table of
claims has what the paper says, what was measured, and whether it holds.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from netfleet.report.intervals import LEVEL
from netfleet.report.plots import ACCURACY, LOSS, QUANTITIES, Subplot, draw_panels
from netfleet.runs.history import has
from reproduce.claims import COLUMNS, DOUBT, WINDOW, Claim, Verdict, judge, smoothed
from reproduce.panels import Panel
from reproduce.runs import histories
from reproduce.store import Store

WIDTH, HEIGHT = 5.2, 3.1
LEGEND = (
    "x̄ is the average of the workers' models; “workers” is the mean accuracy of their own models. A number is the mean "
    f"of the last {WINDOW} evaluations and over seeds; in brackets its {100 * LEVEL:.0f} % interval over seeds "
    "(Student's t), from differences between runs of the same seed. “Too close to call”: the interval lies on both "
    f"sides of the bound. “Provisional”: one seed, and decided by less than {100 * DOUBT:.0f} point."
)


def by_figure(panels: Iterable[Panel]) -> dict[str, list[Panel]]:
    """The panels of each figure from (a) on, figures in order of appearance."""
    figures: dict[str, list[Panel]] = {}
    for panel in panels:
        figures.setdefault(panel.figure, []).append(panel)
    return {name: sorted(members, key=lambda panel: panel.name) for name, members in figures.items()}


def picture_name(panels: Sequence[Panel]) -> str:
    """Of a figure's picture; a figure that is drawn in part has the name of its panel."""
    return f"{panels[0].figure if len(panels) > 1 else panels[0].name}.png"


def draw(panels: Sequence[Panel], store: Store) -> Figure:
    """One column per panel and one row per axis; a lone panel has its axes side by side, many panels two a row."""
    columns = [_column(panel, store) for panel in panels]
    rows = [list(row) for row in zip(*columns, strict=True)] if len(columns) > 1 else columns
    most = 2 if len(panels) > 1 else max(2, len(panels[0].axes))
    rows = [row[i : i + most] for row in rows for i in range(0, len(row), most)]
    return draw_panels(rows, (WIDTH * max(map(len, rows)), HEIGHT), share_y=True)


def _column(panel: Panel, store: Store) -> list[Subplot]:
    runs = [history for found in histories(panel, store).values() for history in found]
    metric = ACCURACY if has(runs, ACCURACY.column) else LOSS
    curves = [smoothed(history, metric.column) for history in runs]
    titles = {x: f"{panel.title} {QUANTITIES[x].over}" if len(panel.axes) > 1 else panel.title for x in panel.axes}
    whole = [Subplot(curves, metric, x, title) for x, title in titles.items()]
    near = [axes._replace(title=f"{axes.title}, from {panel.zoom:.0%}", floor=panel.zoom) for axes in whole]
    return whole + (near if panel.zoom else [])


class JudgedClaim(NamedTuple):
    """A claim and its verdict in each reading; None where runs are missing."""

    panel: Panel
    claim: Claim
    verdicts: tuple[Verdict | None, ...]

    def cells(self) -> list[str]:
        """Panel, number, claim, what the paper says, the range, and ours and the verdict in each reading."""
        claim, parts = self.claim, [(v.ours(), v.words) if v else ("–", "not run") for v in self.verdicts]
        return [self.panel.name, claim.number, claim.text, claim.paper, claim.rule(), *(c for p in parts for c in p)]


def judged_claims(panels: Sequence[Panel], store: Store) -> list[JudgedClaim]:
    judged = []
    for panel in panels:
        curves, asked = histories(panel, store), max(len(curve.experiment.seeds) for curve in panel.curves)
        for claim in panel.claims:
            verdicts = tuple(judge(claim, curves, column, asked, panel.part) for column in COLUMNS)
            judged.append(JudgedClaim(panel, claim, verdicts))
    return judged


def console_table(found: Sequence[JudgedClaim]) -> Table:
    """The claims for a terminal: each verdict stands under its number."""
    readings = [f"ours, {reading}" for reading in COLUMNS.values()]
    table = Table("#", "claim", "paper", *readings, header_style="bold")
    for panel, group in itertools.groupby(found, key=lambda judged: judged.panel.name):
        table.add_section()
        for judged in group:
            _, number, text, paper, rule, *cells = judged.cells()
            shown = [
                Text(f"{ours}\n").append(verdict, {"holds": "green", "does": "red"}.get(verdict.split()[0], "dim"))
                for ours, verdict in zip(cells[::2], cells[1::2], strict=True)
            ]
            table.add_row(f"{panel}\n{number}", text, f"{paper}\n({rule})", *shown)
    return table
