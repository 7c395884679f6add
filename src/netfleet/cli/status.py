"""Show the round, lag, bytes, accuracy and tracking error Σ(y − g) of running sites."""

import argparse
from pathlib import Path

from netfleet.cli.shared import silence_grpc
from netfleet.environment import need_packages


def add(parser: argparse.ArgumentParser) -> None:
    words = "the plan's or the operator's folder (all sites), or one site's own"
    parser.add_argument("folder", type=Path, metavar="DIR", help=words)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    need_packages("grpc", "cryptography")
    silence_grpc()
    from rich.console import Console

    from netfleet.sites.operations.status import ask_folder
    from netfleet.sites.operations.status_table import print_json, print_status

    answers = ask_folder(options.folder)
    if options.json:
        print_json(answers)
    else:
        print_status(answers, Console())
    return int(any(answer.status is None for answer in answers))
