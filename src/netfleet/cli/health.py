"""Say whether the site on this machine is alive, for the health check of a container or a supervisor."""

import argparse
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="the site's folder, in which netfleet node runs")


def run(options: argparse.Namespace) -> int:
    from netfleet.sites.operations.health import check_health

    found = check_health(options.folder)
    print(found.why)
    return int(not found.good)
