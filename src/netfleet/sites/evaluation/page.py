"""Pages and terminal tables of an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import netfleet
from netfleet.files import write_atomically
from netfleet.sites.evaluation.bootstrap import RESAMPLES
from netfleet.sites.evaluation.results import Interval, ModelScores, SiteEvaluation
from netfleet.sites.evaluation.verdict import title

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from netfleet.sites.evaluation.matrix import Matrix


def shown(interval: Interval | None) -> str:
    """The value, with the interval below it where it is one; a dash where there is no value."""
    if interval is None or interval.value is None:
        return "–"
    spread = "" if interval.low == interval.high else f"\n[{interval.low:.3f}, {interval.high:.3f}]"
    return f"{interval.value:.3f}{spread}"


def metrics_of(found: SiteEvaluation) -> list[str]:
    """The metrics of an evaluation, first that which models are compared by."""
    names = list(dict.fromkeys(name for model in found.models for name in model.scores))
    return [found.metric, *(name for name in names if name != found.metric)]


def write_site_page(found: SiteEvaluation, path: Path) -> None:
    """The page for the site itself, which has everything."""
    metrics = metrics_of(found)
    rows = [(model, _details(model), [shown(model.scores.get(name)) for name in metrics]) for model in found.models]
    facts, columns = _site_facts(found), [title(name) for name in metrics]
    _write(path, title=f"Did it help {found.site}?", facts=facts, found=found, columns=columns, rows=rows, matrix=None)


def write_plan_page(matrix: Matrix, path: Path) -> None:
    rows = [
        (row, [(shown(row.cells.get(name)), bool(row.site) and row.site == name) for name in matrix.sites])
        for row in matrix.rows
    ]
    facts = [("run", matrix.run[:12]), ("metric", title(matrix.metric) or "none"), ("sites", str(len(matrix.sites)))]
    _write(path, title="Did it help?", facts=facts, found=None, columns=list(matrix.sites), rows=rows, matrix=matrix)


def _write(path: Path, **values: object) -> None:
    from netfleet.report.page import render  # jinja2 takes a while

    text = render("evaluation.html", resamples=RESAMPLES, version=netfleet.__version__, **values)
    write_atomically(path, lambda file: file.write(text.encode()))


def _details(model: ModelScores) -> str:
    return "" if model.round is None else f"round {model.round}"


def _site_facts(found: SiteEvaluation) -> list[tuple[str, str]]:
    return [
        ("site", found.site),
        ("test rows", f"{found.rows:,}"),
        ("compared by", title(found.metric)),
        ("run", found.run[:12]),
        ("given to the operator", "nothing" if found.withheld else "these scores, no rows"),
    ]


def print_site(found: SiteEvaluation, console: Console) -> None:
    """A table with a line for each model, and what it comes to."""
    metrics = metrics_of(found)
    table = _table("model", [title(name) for name in metrics])
    for model in found.models:
        first, *rest = (model.scores.get(name) for name in metrics)
        table.add_row(model.name, shown(first), *(shown(each and Interval(each.value)) for each in rest))
    console.print(f"{found.site}: {found.rows} test rows", markup=False, highlight=False)
    console.print(table)
    words = [found.comparison.words] if found.comparison is not None else []
    words += [*found.notes, *(f"left out: {name}: {why}" for name, why in found.left_out.items())]
    words += [f"not given to others: {found.withheld}"] if found.withheld else []
    for each in words:
        console.print(each, markup=False, highlight=False, soft_wrap=True)


def print_matrix(matrix: Matrix, console: Console) -> None:
    table = _table(f"{title(matrix.metric)} of", [f"on {name}" for name in matrix.sites])
    for row in matrix.rows:
        table.add_row(row.model, *(shown(row.cells.get(name)) for name in matrix.sites))
    console.print(table)
    for name, words in {**matrix.verdicts, **matrix.absent}.items():
        console.print(f"{name}: {words}", markup=False, highlight=False, soft_wrap=True)


def _table(first: str, columns: list[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first)
    for name in columns:
        table.add_column(name.replace(" ", "\n"), justify="right", no_wrap=True)
    return table
