"""What is shown of the panels: the figures, and the claims in both readings of accuracy.

A figure has its panels side by side as in the paper, with the accuracy smoothed over WINDOW evaluations. The table of
claims has what the paper says, what was measured, and whether it holds.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from netfleet.report.plots import ACCURACY, LOSS, QUANTITIES, Subplot, draw_panels
from netfleet.runs.compare import has
from netfleet.runs.history import History
from reproduce.claims import COLUMNS, WINDOW, Claim, Verdict, judge, last, smoothed
from reproduce.panels import Panel
from reproduce.runs import histories
from reproduce.store import Store, file_name

WIDTH, HEIGHT = 5.2, 3.1
DOUBTS = " or ".join(f"{100 * reading.doubt:.1f} points ({reading.words})" for reading in COLUMNS.values())
HEADINGS = ("panel", "#", "claim", "paper", "holds if", "ours, x̄", "verdict", "ours, workers", "verdict")
VALUES = ("panel", "curve", "x̄", "workers", "worst worker", "x̄ at 95 % after", "sent", "samples", "results")
LEGEND = (
    f"Accuracies are means over the last {WINDOW} evaluations, as the paper smooths; in brackets the lowest and "
    "highest of these evaluations and of all seeds. x̄ is the average of the workers' models; “workers” is the mean "
    "accuracy of their own models in the same rounds, on a tenth of the test samples or fewer. “Provisional”: one "
    f"seed, and decided by less than {DOUBTS}; “within the spread”: an evaluation or seed decides otherwise."
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
        parts = [(v.ours(), v.words) if v else ("–", "not run") for v in self.verdicts]
        claim = self.claim
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
    readings = [f"ours, {reading.words}" for reading in COLUMNS.values()]
    table = Table("#", "claim", "paper", *readings, header_style="bold")
    for panel, group in itertools.groupby(found, key=lambda judged: judged.panel.name):
        table.add_section()
        for judged in group:
            _, number, text, paper, rule, *cells = judged.cells()
            pairs = zip(cells[::2], cells[1::2], strict=True)
            table.add_row(f"{panel}\n{number}", text, f"{paper}\n({rule})", *(_coloured(*pair) for pair in pairs))
    return table


def _coloured(ours: str, verdict: str) -> Text:
    style = "green" if verdict.startswith("holds") else "red" if verdict.startswith("does not") else "dim"
    return Text(f"{ours}\n").append(verdict, style)


def markdown(found: Sequence[JudgedClaim]) -> str:
    """The claims as a Markdown table, verdicts in bold."""
    rows = [judged.cells() for judged in found]
    bold = ("holds", "does not hold", "undecided")
    return _pipes(HEADINGS, [[f"**{cell}**" if cell.startswith(bold) else cell for cell in row] for row in rows])


def _pipes(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (headings, ["---"] * len(headings), *rows))


def values(panels: Sequence[Panel], store: Store, link: str = "") -> str:
    """Where every curve ends, as a Markdown table; a result is named by its hash and linked to below `link`."""
    found = [(panel.name, label, runs) for panel in panels for label, runs in histories(panel, store).items() if runs]
    return _pipes(VALUES, [(name, label, *_ends(runs, link)) for name, label, runs in found])


def _ends(runs: Sequence[History], link: str) -> tuple[str, ...]:
    names = ", ".join(f"[{h.hash[:8]}]({link}{file_name(h.hash)})" if link else h.hash[:8] for h in runs)
    if lost := [h for h in runs if h.diverged]:
        return (f"diverged after round {lost[0].rounds}", *("–",) * 5, names)
    columns = ("accuracy", "worker_accuracy_mean", "worker_accuracy_min")
    accuracies = [_over_seeds([float(last(h, column)[1].mean()) for h in runs]) for column in columns]
    sent, samples = runs[0].last["bytes"] / 1e9, runs[0].last["samples"] / 1e6
    costs = f"{sent:,.0f} GB", f"{samples:,.1f} M" if samples >= 0.1 else f"{samples:.3f} M"
    return (*accuracies, _reached(runs, 0.95), *costs, names)


def _over_seeds(numbers: Sequence[float]) -> str:
    mean = f"{100 * np.mean(numbers):.1f}"
    return f"{mean} ± {100 * np.std(numbers, ddof=1):.1f} %" if len(numbers) > 1 else f"{mean} %"


def _reached(runs: Sequence[History], level: float) -> str:
    """The first rounds at which the smoothed curves are at a level."""
    curves = [smoothed(h, "accuracy") for h in runs]
    firsts = [next((r["round"] for r in h if (r["accuracy"] or 0) >= level), None) for h in curves]
    known = [first for first in firsts if first is not None]
    if len(known) < len(firsts):
        return "–" if not known else f"– ({len(known)} of {len(firsts)} seeds)"
    return f"{min(known)}" if min(known) == max(known) else f"{min(known)} to {max(known)}"


def score(found: Sequence[JudgedClaim], column: int = 0) -> str:
    known = [v for judged in found if (v := judged.verdicts[column]) is not None]
    verdicts = [v.holds for v in known]
    counts = {"undecided": verdicts.count(None), "not run": len(found) - len(verdicts)}
    rest = "".join(f", {count} {word}" for word, count in counts.items() if count)
    narrow = sum(v.provisional for v in known)
    aside = f"; {narrow} of these are provisional" if narrow else ""
    return f"{verdicts.count(True)} hold, {verdicts.count(False)} do not{rest}{aside}"
