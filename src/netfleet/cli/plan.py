"""Make a folder and a certificate for each site of a training run."""

import argparse
from pathlib import Path

from netfleet.cli.shared import add_authority, add_set, load_authority
from netfleet.environment import need_packages
from netfleet.registry import make_importable


def add(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("file", metavar="FILE.toml", help="the experiment, with one algorithm and one seed")
    option("--nodes", type=Path, required=True, metavar="NODES.toml", help="the sites: [[nodes]] with name and address")
    option("--out", type=Path, required=True, metavar="DIR", help="a new folder; gets one subfolder per site")
    add_set(parser, "change a value of the experiment, for example --set rounds=50 --set seeds=[0]")
    add_authority(parser, "a new one")


def run(options: argparse.Namespace) -> int:
    need_packages("cryptography")
    make_importable(options.file)
    from rich.console import Console

    from netfleet.sites.planning.nodes_file import load_nodes
    from netfleet.sites.planning.overview import print_plan
    from netfleet.sites.planning.plan import load_planned, make_plan, needs, start_command
    from netfleet.sites.planning.plan_files import write_plan

    authority = load_authority(options.ca_cert, options.ca_key)
    nodes = load_nodes(options.nodes)
    experiment = load_planned(options.file, options.set, nodes)
    plan = make_plan(experiment, nodes)
    write_plan(plan, options.out, experiment, nodes, authority, options.days)
    brought = [node.name for node in nodes.nodes if node.request]
    print_plan(plan, options.out, Console(), brought, start_command(experiment, "NAME"), needs(experiment))
    return 0
