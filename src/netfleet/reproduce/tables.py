"""The claims table: what the paper says, what was measured, and whether it holds, in both readings of accuracy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from netfleet.reproduce.claims import COLUMNS, Claim, Verdict, judge
from netfleet.reproduce.panels import Panel
from netfleet.reproduce.runs import histories
from netfleet.reproduce.store import Store

HEADINGS = ("panel", "#", "claim", "paper", "ours, x̄", "verdict", "ours, workers", "verdict")
LEGEND = (
    "Accuracies are means over the last 10 evaluations, as the paper smooths; in brackets the lowest and highest of "
    "these evaluations and of all seeds. x̄ is the average of the workers' models, scored on all test samples; "
    "“workers” is the mean accuracy of the workers' own models on 1,000 of them."
)


class Line(NamedTuple):
    """A claim and its verdict in each reading; None where runs are missing."""

    panel: Panel
    claim: Claim
    verdicts: tuple[Verdict | None, ...]

    def cells(self) -> list[str]:
        """The line as text."""
        parts = [(v.ours(), v.words) if v else ("–", "not run") for v in self.verdicts]
        return [self.panel.name, self.claim.number, self.claim.text, self.claim.paper, *(c for p in parts for c in p)]


def lines(panels: Sequence[Panel], store: Store) -> list[Line]:
    """Every claim of the panels."""
    found = [(panel, histories(panel, store)) for panel in panels]
    return [
        Line(panel, claim, tuple(judge(claim, curves, column) for column in COLUMNS))
        for panel, curves in found
        for claim in panel.claims
    ]


def console_table(found: Sequence[Line]) -> Table:
    """The lines for a terminal: each verdict stands under its number."""
    table = Table("#", "claim", "paper", *(f"ours, {words}" for words in COLUMNS.values()), header_style="bold")
    for panel, group in itertools.groupby(found, key=lambda line: line.panel.name):
        table.add_section()
        for line in group:
            _, number, text, paper, *cells = line.cells()
            pairs = zip(cells[::2], cells[1::2], strict=True)
            table.add_row(f"{panel}\n{number}", text, paper, *(_coloured(*pair) for pair in pairs))
    return table


def _coloured(ours: str, verdict: str) -> Text:
    style = "green" if verdict == "holds" else "red" if verdict.startswith("does not") else "dim"
    return Text(f"{ours}\n").append(verdict, style)


def markdown(found: Sequence[Line]) -> str:
    """The lines as a Markdown table."""
    rows = [HEADINGS, ("---",) * len(HEADINGS), *(tuple(_bold(cell) for cell in line.cells()) for line in found)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _bold(cell: str) -> str:
    return f"**{cell}**" if cell.startswith(("holds", "does not hold")) else cell
