"""Check a site's record of what left it."""

import argparse
from pathlib import Path

from netfleet.environment import need_packages


def add(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    words = "check the record offline and name the first line that was altered"
    verify = actions.add_parser("verify", description=words, help=words)
    words = "the record of a neighbour, to compare the two; repeat it for several"
    verify.add_argument("--against", type=Path, action="append", default=[], metavar="DIR", help=words)
    words = "the site's folder, or one with its receipts.jsonl, receipts.head and ca.pem"
    verify.add_argument("folder", type=Path, metavar="DIR", help=words)
    words = "the authority's certificate (default: DIR/ca.pem); repeat it if it was renewed during the training"
    verify.add_argument("--ca", type=Path, action="append", default=[], metavar="FILE.pem", help=words)


def run(options: argparse.Namespace) -> int:
    need_packages("cryptography")
    from rich.console import Console

    from netfleet.privacy.receipts.overview import print_verifications

    return int(not print_verifications(options.folder, options.against, options.ca, Console()))
