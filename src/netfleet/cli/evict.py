"""Throw a site out of a training: its neighbours drop it, and no certificate of it counts any more."""

import argparse

from netfleet.cli.shared import add_revocation, plan_authority
from netfleet.environment import need_packages


def add(parser: argparse.ArgumentParser) -> None:
    add_revocation(parser, "the site")


def run(options: argparse.Namespace) -> int:
    need_packages("cryptography")
    from rich.console import Console

    from netfleet.sites.planning.certificates import OPERATOR
    from netfleet.sites.planning.folders import REVOKED_FILE
    from netfleet.sites.planning.overview import say
    from netfleet.sites.policy.eviction import evict_site

    authority = plan_authority(options.folder, options.ca_cert, options.ca_key)
    path, console = options.list or options.folder / OPERATOR / REVOKED_FILE, Console()
    made = evict_site(options.folder, options.name, options.certificate, options.why, authority, path)
    say(console, f"wrote {path}: list {made.number}, by which {options.name} is evicted")
    if len(made.parts) > 1:
        groups = "; ".join(", ".join(part) for part in made.parts)
        say(console, f"Without {options.name} the sites are {len(made.parts)} groups that train apart: {groups}")
    say(console, f"The folders of sites in {options.folder} have it already.")
    first = ", ".join(made.neighbours)
    say(console, f"\nNext: at sites on other machines put it into the folder as {REVOKED_FILE}, first {first}.")
    say(console, f"Running sites read it at once and end their links to {options.name}; others when they start.")
    say(console, f"What {options.name} has changed before is still in the models: netfleet rollback {options.folder}")
    return 0
