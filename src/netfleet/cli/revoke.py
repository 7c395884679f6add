"""Revoke a site's certificate: all sites refuse it as soon as they have the new list."""

import argparse
from pathlib import Path

from netfleet.cli.shared import add_authority_files, plan_authority
from netfleet.environment import need_packages


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder that netfleet plan made")
    parser.add_argument("name", metavar="NAME", help="the site whose certificate is revoked, or operator")
    parser.add_argument("--why", required=True, metavar="TEXT", help="the reason, which every site logs")
    words = "further certificates of this site, such as one that was renewed in another folder"
    parser.add_argument("--certificate", type=Path, action="append", default=[], metavar="FILE.pem", help=words)
    words = "the list so far, which gets the new certificates too (default: DIR/operator/revoked.pem)"
    parser.add_argument("--list", type=Path, metavar="FILE.pem", help=words)
    add_authority_files(parser, "DIR/ca")


def run(options: argparse.Namespace) -> int:
    need_packages("cryptography")
    from rich.console import Console

    from netfleet.sites.planning.certificates import OPERATOR
    from netfleet.sites.planning.folders import REVOKED_FILE
    from netfleet.sites.planning.overview import say
    from netfleet.sites.policy.pinning import revoke_site

    authority = plan_authority(options.folder, options.ca_cert, options.ca_key)
    path, console = options.list or options.folder / OPERATOR / REVOKED_FILE, Console()
    made = revoke_site(options.folder, options.name, options.certificate, options.why, authority, path)
    say(console, f"wrote {path}: list {made.number}, with certificates of {', '.join(made.names())}")
    say(console, f"\nNext: put it into every site's folder as {REVOKED_FILE}. Running sites read it at once.")
    return 0
