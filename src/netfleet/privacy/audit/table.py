"""The findings of an audit as a table: a row per method and privacy, from the one that shows most on."""

from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from netfleet.privacy.audit.results import Audit, Finding


class Column(NamedTuple):
    """One number of a table."""

    heading: str
    attack: str
    name: str
    unit: str = "%"
    terminal: str = ""  # its heading on a terminal; empty: it is on the page only


COLUMNS = (
    Column("gradients\ncomputed exactly", "gradients", "exact", terminal="gradients"),
    Column("labels\nread off", "labels", "advantage", terminal="labels"),
    Column("batch recovered\nby division", "algebra", "batch", terminal="division"),
    Column("all rows\nby division", "algebra", "rows"),
    Column("PSNR by\noptimisation", "optimisation", "psnr", "dB", terminal="PSNR"),
    Column("recovered by\noptimisation", "optimisation", "recovered"),
    Column("membership\nadvantage", "membership", "advantage", terminal="membership"),
)


class Row(NamedTuple):
    """A method's line of a table."""

    method: str
    private: bool
    cells: tuple[str, ...]
    shows: tuple[bool, ...]  # whether a cell shows something of the data


def rows(audit: Audit, view: str) -> list[Row]:
    """From the method whose messages show most on, each without and then with privacy."""
    pairs = [(method, private) for method in audit.ranking(view) for private in (False, True)]
    found = []
    for method, private in pairs:
        cells = [audit.find(c.attack, c.name, view, method, private) for c in COLUMNS]
        if any(cell is not None for cell in cells):
            texts = tuple(shown(cell, column.unit) for cell, column in zip(cells, COLUMNS, strict=True))
            found.append(Row(method, private, texts, tuple(map(_shows, cells))))
    return found


def shown(finding: Finding | None, unit: str) -> str:
    """A number with its interval where chance matters."""
    if finding is None or finding.value is None:
        return "–"
    if unit == "dB":
        return f"{finding.value:.1f} dB"
    text = f"{percent(finding.value)} %"
    if finding.attack == "membership" and finding.interval is not None:
        text += f" [{', '.join(map(percent, finding.interval))}]"
    return text


def percent(value: float) -> str:
    """A share in whole percent, without the sign."""
    return str(round(100 * value)).replace("-", "−")


def _shows(finding: Finding | None) -> bool:
    """Whether a number is more than chance: for a test its whole interval, for a share anything that is seen.

    Private gradients are made to be seen.
    """
    if finding is None or finding.value is None or finding.name == "psnr":
        return False
    if finding.attack == "gradients" and finding.private:
        return False
    if finding.attack == "membership" and finding.interval is not None:
        return finding.interval[0] > 0
    return finding.value >= 0.005


def print_audit(audit: Audit, console: Console) -> None:
    """A table for each view."""
    for view in audit.views:
        table = Table(title=f"Seen by {VIEWERS[view]}", title_justify="left", title_style="bold")
        table.add_column("method")
        for column in COLUMNS:
            if column.terminal:
                table.add_column(column.terminal, justify="right", no_wrap=True)
        for row in rows(audit, view):
            cells = zip(row.cells, row.shows, COLUMNS, strict=True)
            marked = [Text(text, "bold" if shows else "") for text, shows, column in cells if column.terminal]
            table.add_row(row.method + (", private" if row.private else ""), *marked)
        console.print(table)
    for note in audit.notes:
        console.print(note, style="yellow", markup=False, highlight=False, soft_wrap=True)


#: Whom a view belongs to.
VIEWERS = {
    "neighbour": "one neighbour",
    "all neighbours": "all neighbours together",
    "two hops": "a site two hops away",
    "server": "the server",
}
