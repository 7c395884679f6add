"""List the certificates that a site or the operator accepts of others, or accept one that was renewed."""

import argparse
from pathlib import Path

from netfleet.environment import need_packages


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="the site's folder, or the operator's")
    words = "certificates of neighbours, which the site accepts from now on; a running site needs no restart"
    parser.add_argument("certificates", type=Path, nargs="*", metavar="FILE.pem", help=words)
    parser.add_argument("--replace", action="store_true", help="accept no other certificates of these neighbours")


def run(options: argparse.Namespace) -> int:
    need_packages("cryptography")
    from rich.console import Console

    from netfleet.sites.planning.overview import say
    from netfleet.sites.policy.pinning import pin, pin_lines

    console = Console()
    for line in pin(options.folder, options.certificates, options.replace):
        say(console, line)
    for line in pin_lines(options.folder):
        say(console, line)
    return 0
