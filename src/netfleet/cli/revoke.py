"""Revoke a site's certificate: all sites refuse it as soon as they have the new list."""

import argparse

from netfleet.cli.shared import add_revocation, plan_authority
from netfleet.environment import need_packages


def add(parser: argparse.ArgumentParser) -> None:
    add_revocation(parser, "the site whose certificate is revoked, or operator")


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
    say(console, f"The folders of sites in {options.folder} have it already.")
    say(
        console,
        f"\nNext: at sites on other machines put it into the folder as {REVOKED_FILE}. Running sites read it at once.",
    )
    return 0
