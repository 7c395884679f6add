"""Take sites, which do not run, back to an earlier round, from which they go on together."""

import argparse
from pathlib import Path

from netfleet.environment import need_packages


def add(parser: argparse.ArgumentParser) -> None:
    words = "the folder that netfleet plan made, or a site's: then roll back each of its neighbours likewise"
    parser.add_argument("folder", type=Path, metavar="DIR", help=words)
    words = "the round; without it the rounds are shown of which there are checkpoints"
    parser.add_argument("--to", type=int, metavar="ROUND", help=words)


def run(options: argparse.Namespace) -> int:
    need_packages("cryptography")
    from rich.console import Console

    from netfleet.sites.planning.overview import say
    from netfleet.sites.runtime.rollback import folders_of, remarks, roll_back, site_rounds

    console, folders = Console(), folders_of(options.folder)
    if options.to is None:
        remarks([site_rounds(folder) for folder in folders], lambda line: say(console, line))
        return 0
    done = roll_back(folders, options.to)
    for site in done:
        say(console, f"{site.name}: from round {site.reached} back to round {options.to}")
    if not done:
        say(console, f"All are in round {options.to} after a rollback; there is nothing to do.")
    say(console, "Next: start them again, when all their neighbours were rolled back to this round too.")
    return 0
