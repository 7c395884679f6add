"""Compare saved runs: means over seeds, and paired differences with intervals."""

import argparse
from pathlib import Path

from netfleet.cli.shared import add_metric, parse_at, say_wrote

TABLES = ("csv", "md", "tex")


def add(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option(
        "folders", nargs="+", type=Path, metavar="DIR", help="folder with runs, of `netfleet run`, `tune` or `sweep`"
    )
    add_metric(parser)
    option("--to", metavar="LABEL", help="the method to which differences are taken (default: the best)")
    words = "count the rounds until the metric reaches this value (0.9 for an accuracy of 90 %%)"
    option("--target", type=float, metavar="A", help=words)
    words = "write the table; the name ends in .csv (numbers), .md or .tex; repeat it for several files"
    option("--write", type=Path, action="append", default=[], metavar="FILE", help=words)
    option("--format", choices=TABLES, help="print the table in this format instead of a terminal's")
    words = "draw the differences and the curves; the name ends in .png, .pdf or .svg"
    option("--figure", type=Path, metavar="FILE", help=words)


def run(options: argparse.Namespace) -> int:
    from rich.console import Console

    from netfleet.report.comparison import Question, compare, sheet
    from netfleet.report.export import FORMATS, PICTURES, check_suffix, print_sheet, write_figure, write_sheet
    from netfleet.report.forest import draw_comparison
    from netfleet.runs.compare import find_runs

    at, figure = parse_at(options.at), options.figure
    for path, known in [*((path, TABLES) for path in options.write), *([(figure, PICTURES)] if figure else [])]:
        check_suffix(path, known)
    histories = find_runs(options.folders)
    found = compare(histories, Question(options.metric, at, options.to, options.target))
    table, console = sheet(found), Console(stderr=options.format is not None)
    if options.format is None:
        print_sheet(table, console, bold=[entry.row.label == found.reference for entry in found.entries])
        words = "mean ± standard deviation over seeds; differences are taken seed by seed, each interval by itself"
        console.print(words, style="dim", highlight=False, soft_wrap=True)
    else:
        print(FORMATS[options.format](table), end="")
    for note in found.notes:
        console.print(note, style="yellow", highlight=False, markup=False, soft_wrap=True)
    for path in options.write:
        write_sheet(path, table)
        say_wrote(console, path)
    if figure is not None:
        write_figure(figure, draw_comparison(found, histories))
        say_wrote(console, figure)
    return 0
