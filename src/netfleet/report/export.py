"""Tables as CSV, Markdown or LaTeX, and figures, in files whose suffix names the format."""

import csv
import html
import io
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from rich.text import Text

from netfleet.errors import ConfigError
from netfleet.files import write_atomically

_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
_LATEX |= {c: f"\\{c}" for c in "&%$#_{}"}
WIDTH = 110  # of tables as text
_NUMBERS = re.compile(r"[-+0-9.,e\[\] ±]*[0-9][-+0-9.,e\[\] ±]*")


class Sheet(NamedTuple):
    """A table: texts for a reader, whose first column is a name, and the same as plain values for a program."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    data: tuple[Mapping[str, object], ...]


def as_csv(sheet: Sheet) -> str:
    """The plain values; an empty field where there is none.

    >>> as_csv(Sheet(("method",), (("DSGD",),), ({"method": "DSGD", "mean": 0.5, "low": None},)))
    'method,mean,low\\nDSGD,0.5,\\n'
    """
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in sheet.data for name in row))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(sheet.data)
    return text.getvalue()


def as_markdown(sheet: Sheet) -> str:
    rules = ["---", *["--:"] * (len(sheet.headings) - 1)]
    lines = [[cell.replace("|", "\\|") for cell in row] for row in (sheet.headings, *sheet.rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (lines[0], rules, *lines[1:]))


def as_latex(sheet: Sheet) -> str:
    r"""A `tabular` for the package booktabs; numbers are in math mode."""
    head, *body = (" & ".join(map(_latex, row)) + r" \\" for row in (sheet.headings, *sheet.rows))
    columns = "l" + "r" * (len(sheet.headings) - 1)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}", ""])


def _latex(cell: str) -> str:
    if _NUMBERS.fullmatch(cell):
        return "$" + cell.replace("±", r"\pm").replace(" [", r"\;[") + "$"
    return "".join(_LATEX.get(c, c) for c in cell)


def as_html(headings: Sequence[str], rows: Iterable[Sequence[str]], bold: Collection[tuple[int, int]] = ()) -> str:
    """A table for a notebook; `bold` are places (row, column)."""
    head = "".join(f"<th>{html.escape(heading).replace(chr(10), '<br>')}</th>" for heading in headings)
    lines = [f"<table><thead><tr>{head}</tr></thead><tbody>"]
    for i, row in enumerate(rows):
        cells = [html.escape(text) for text in row]
        cells = [f"<b>{cell}</b>" if (i, j) in bold else cell for j, cell in enumerate(cells)]
        lines.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return "".join([*lines, "</tbody></table>"])


def as_text(show: Callable[[Console], object]) -> str:
    """What `show` prints, as plain text."""
    text = io.StringIO()
    show(Console(file=text, width=WIDTH, color_system=None, force_jupyter=False))
    return text.getvalue().rstrip()


FORMATS: dict[str, Callable[[Sheet], str]] = {"csv": as_csv, "md": as_markdown, "tex": as_latex}


PICTURES = ("png", "pdf", "svg")


def check_suffix(path: Path, known: tuple[str, ...]) -> str:
    """The format that a file's suffix names."""
    if (suffix := path.suffix.lower().lstrip(".")) not in known:
        raise ConfigError(f"the name {str(path)!r} must end in {', '.join(f'.{word}' for word in known)}")
    return suffix


def write_sheet(path: Path, sheet: Sheet) -> None:
    """Write a table in the format that the file's suffix names."""
    text = FORMATS[check_suffix(path, tuple(FORMATS))](sheet)
    write_atomically(path, lambda file: file.write(text.encode()))


def write_figure(path: Path, figure: Figure) -> None:
    """Write a figure in the format that the file's suffix names."""
    write_atomically(path, partial(figure.savefig, format=check_suffix(path, PICTURES)))


def print_sheet(sheet: Sheet, console: Console, bold: Sequence[bool]) -> None:
    """Print a table in a terminal, some rows in bold."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for place, heading in enumerate(sheet.headings):
        right = Text(heading.replace(" [", "\n["), justify="left" if place == 0 else "right")
        table.add_column(right, justify=right.justify or "left", vertical="bottom", overflow="fold")
    for row, strong in zip(sheet.rows, bold, strict=True):
        table.add_row(*map(Text, row), style="bold" if strong else "")
    console.print(table)
