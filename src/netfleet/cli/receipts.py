"""Check a site's record of what left it, or write a report about it."""

import argparse
from pathlib import Path

from netfleet.environment import need_packages


def add(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    words = "check the record offline and name the first line that was altered"
    verify = actions.add_parser("verify", description=words, help=words)
    words = "the record of a neighbour, to compare the two; repeat it for several"
    verify.add_argument("--against", type=Path, action="append", default=[], metavar="DIR", help=words)
    words = "write a page for a data-protection officer: who saw what, privacy spent, attacks tried, retention"
    report = actions.add_parser("report", description=words, help=words)
    report.add_argument("--out", type=Path, metavar="FILE.html", help="default: DIR/receipts.html")
    for action, function in ((verify, _verify), (report, _report)):
        words = "the site's folder, or one with its receipts.jsonl, receipts.head and ca.pem"
        action.add_argument("folder", type=Path, metavar="DIR", help=words)
        words = "the authority's certificate (default: DIR/ca.pem); repeat it if it was renewed during the training"
        action.add_argument("--ca", type=Path, action="append", default=[], metavar="FILE.pem", help=words)
        action.set_defaults(action=function)


def run(options: argparse.Namespace) -> int:
    need_packages("cryptography")
    return int(options.action(options))


def _verify(options: argparse.Namespace) -> int:
    from rich.console import Console

    from netfleet.privacy.receipts.overview import print_verifications

    return int(not print_verifications(options.folder, options.against, options.ca, Console()))


def _report(options: argparse.Namespace) -> int:
    from rich.console import Console

    from netfleet.cli.shared import say_wrote
    from netfleet.privacy.receipts.report import write_report

    path = options.out or options.folder / "receipts.html"
    good = write_report(options.folder, options.ca, path)
    say_wrote(Console(), path)
    return int(not good)
