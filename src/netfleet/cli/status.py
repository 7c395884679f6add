"""Show the rounds, waits and their cause, pace, accuracy and tracking error Σ(y − g) of running sites."""

import argparse
from pathlib import Path

from netfleet.cli.shared import silence_grpc
from netfleet.environment import need_packages


def add(parser: argparse.ArgumentParser) -> None:
    words = "the plan's or the operator's folder (all sites), or one site's own"
    parser.add_argument("folder", type=Path, metavar="DIR", help=words)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print JSON")
    words = "show it again and again on the terminal, in colour, until Ctrl-C; S seconds between two questions (5)"
    shown.add_argument("--watch", nargs="?", type=interval, const=5.0, metavar="S", help=words)


def interval(text: str) -> float:
    value = float(text)
    if not 0.5 <= value <= 86_400:
        raise argparse.ArgumentTypeError("must be a number of seconds from 0.5 to 86400")
    return value


def run(options: argparse.Namespace) -> int:
    need_packages("grpc", "cryptography")
    silence_grpc()
    from rich.console import Console

    from netfleet.sites.operations.status import ask_folder
    from netfleet.sites.operations.status_table import print_json, print_status

    if options.watch is not None:
        from netfleet.sites.operations.status_watch import watch

        return watch(lambda: ask_folder(options.folder), Console(), options.watch)
    answers = ask_folder(options.folder)
    if options.json:
        print_json(answers)
    else:
        print_status(answers, Console())
    return int(any(answer.missing for answer in answers))
