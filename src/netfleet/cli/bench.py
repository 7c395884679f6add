"""Measure simulator, cluster and sites against the machine's limit and other libraries."""

import argparse
from pathlib import Path

from netfleet.cli.shared import use_checkout


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("parts", nargs="*", metavar="PART", help="what to measure (default: all; see --list)")
    parser.add_argument("--quick", action="store_true", help="fewer repeats and sizes, for a first look")
    parser.add_argument("--list", action="store_true", help="list the parts and exit")
    words = "the tables go into a folder with today's date below it (default: benchmarks/results in the checkout)"
    parser.add_argument("--out", type=Path, metavar="DIR", help=words)


def run(options: argparse.Namespace) -> int:
    use_checkout("benchmarks")
    from benchmarks import command

    return command.run(options.parts, options.out, quick=options.quick, show_parts=options.list)
