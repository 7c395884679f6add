"""Let a new site join a training run that is under way."""

import argparse
from pathlib import Path

from netfleet.cli.shared import add_authority, plan_authority
from netfleet.environment import need_packages


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder that netfleet plan made")
    parser.add_argument("name", metavar="NAME", help="name of the new site")
    words = "address at which its neighbours reach it (without one, it only dials out)"
    parser.add_argument("address", nargs="?", default="", metavar="HOST:PORT", help=words)
    parser.add_argument("--neighbours", required=True, metavar="A,B,…", help="the sites that it exchanges models with")
    parser.add_argument("--listen", default="", metavar="HOST:PORT", help="where it listens (default: all interfaces)")
    parser.add_argument("--request", default="", metavar="FILE.csr", help="its own certificate request")
    add_authority(parser, "DIR/ca")


def run(options: argparse.Namespace) -> int:
    need_packages("cryptography")
    from rich.console import Console

    from netfleet.sites.planning.admit import admit
    from netfleet.sites.planning.nodes_file import NodeEntry
    from netfleet.sites.planning.overview import print_admission

    folder, authority = options.folder, plan_authority(options.folder, options.ca_cert, options.ca_key)
    place = options.address, options.listen
    node = NodeEntry(options.name, *place, options.request, reachable=bool(options.address))
    names = [name.strip() for name in options.neighbours.split(",") if name.strip()]
    site = admit(folder, node, names, authority, options.days)
    print_admission(site, folder, Console())
    return 0
