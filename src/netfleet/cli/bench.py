"""Measure the simulator against the machine's limit, a plain PyTorch loop and other libraries."""

import argparse
from pathlib import Path

from netfleet.cli.shared import use_checkout


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("parts", nargs="*", metavar="PART", help="what to measure (default: all; see --list)")
    parser.add_argument("--quick", action="store_true", help="fewer repeats and sizes, for a first look")
    parser.add_argument("--list", action="store_true", help="list the parts and exit")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("benchmarks/results"),
        metavar="DIR",
        help="the tables go into a folder below it that is named by today's date (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    use_checkout("benchmarks")
    from benchmarks import PARTS, run_parts

    if options.list:
        print("\n".join(f"{name:12} {what}" for name, what in PARTS.items()))
    else:
        run_parts(options.parts, options.out, options.quick)
    return 0
