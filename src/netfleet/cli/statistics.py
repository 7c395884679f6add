"""Add up the columns of a site's own CSV file, or the sums of all sites, to scale the columns everywhere alike."""

import argparse
from pathlib import Path

from netfleet.cli.shared import add_set, say_wrote
from netfleet.errors import ConfigError
from netfleet.registry import make_importable

FEW = 10  # values of a column, below which their sums say much about each


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE.toml", help='the experiment, with data of kind "csv"')
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--site", metavar="NAME", help="add up the training rows of this site")
    task.add_argument("--merge", type=Path, nargs="+", metavar="FILE.json", help="add up what the sites wrote")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json", help="the file to write")
    add_set(parser, "change a value of the experiment, the same at all sites")


def run(options: argparse.Namespace) -> int:
    make_importable(options.file)
    from rich.console import Console

    from netfleet.data.csv_files import declare, merge_statistics, site_statistics
    from netfleet.data.statistics import write_statistics
    from netfleet.runs.config import load_experiment

    problem = load_experiment(options.file, options.set).problem
    if "data" not in problem:
        raise ConfigError(f"problem {problem['kind']!r} reads no data; statistics are of CSV files")
    declared, console = declare(problem["data"]), Console()
    if options.site is None:
        write_statistics(merge_statistics(declared, options.merge), options.out)
    else:
        found = site_statistics(declared, options.site)
        write_statistics(found, options.out)
        few = [name for name, sums in found.columns.items() if 0 < sums.count < FEW]
        if few:
            words = f"look at {options.out} before you send it: few rows have a value in {', '.join(few)}"
            console.print(words, markup=False, highlight=False, soft_wrap=True)
    say_wrote(console, options.out)
    return 0
