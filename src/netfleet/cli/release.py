"""Say that you have looked at a site's alarms; a site that holds goes on."""

import argparse
from pathlib import Path

from netfleet.environment import need_packages


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="the site's folder, made by netfleet plan")


def run(options: argparse.Namespace) -> int:
    need_packages("cryptography")
    from rich.console import Console

    from netfleet.sites.planning.folders import read_site
    from netfleet.sites.planning.overview import say
    from netfleet.sites.runtime.alarms import release

    site, console = read_site(options.folder), Console()
    alarms = release(options.folder)
    for alarm in alarms:
        say(console, f"{site.name}: released ({alarm})")
    if not alarms:
        say(console, f"{site.name}: there is no alarm")
    return 0
