"""Prints a report for people, and as JSON for programs."""

import json
from collections.abc import Sequence

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from netfleet.sites.doctor.findings import Finding, LinkResult, Report
from netfleet.sites.planning.overview import say


def print_report(report: Report, console: Console) -> None:
    """What was measured, a line for each neighbour, then a line for each finding with its cure."""
    results = _columns("check", "result")
    for each in report.results:
        results.add_row(each.check, escape(each.result))
    console.print(results)
    if report.links:
        console.print()
        console.print(_links(report.links))
    console.print()
    for finding in report.findings:
        console.print(_line(report.subject, finding), highlight=False, soft_wrap=True)
    say(console, _verdict(report))


def print_json(report: Report) -> None:
    table = {
        "subject": report.subject,
        "errors": report.errors,
        "warnings": len(report.findings) - report.errors,
        "findings": [each._asdict() for each in report.findings],
        "results": [each._asdict() for each in report.results],
        "neighbours": [each._asdict() for each in report.links],
    }
    print(json.dumps(table))


def _columns(*heads: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for head in heads:
        table.add_column(head, overflow="fold")
    return table


def _links(links: Sequence[LinkResult]) -> Table:
    heads, rows = ("site", "reached", "reaches us", "clock", "delay", "speed", "version", "runs"), []
    for each in links:
        clock = "" if each.clock is None else f"{each.clock:+.2f} s"
        delay = "" if each.delay is None else f"{1000 * each.delay:.1f} ms"
        rate = "" if each.rate is None else f"{decimal(int(each.rate))}/s"
        cells = (each.name, each.to, each.back, clock, delay, rate, each.version, each.state)
        rows.append(cells)
    filled = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    table = _columns(*(heads[i] for i in filled))
    for row in rows:
        table.add_row(*(escape(row[i] or "–") for i in filled))
    return table


def _line(subject: str, finding: Finding) -> str:
    colour = "red" if finding.level == "error" else "yellow"
    return f"[bold {colour}]{finding.level}[/] {finding.check}: {escape(str(finding))}"


def _verdict(report: Report) -> str:
    warnings = len(report.findings) - report.errors
    if not report.findings:
        return f"{report.subject}: no findings"
    return f"{report.subject}: {_count(report.errors, 'error')}, {_count(warnings, 'warning')}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"
