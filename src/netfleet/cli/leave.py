"""Take a site out of a training run for good."""

import argparse
from pathlib import Path

from netfleet.cli.shared import add_policy
from netfleet.environment import need_packages


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="the site's folder, made by netfleet plan")
    add_policy(parser)


def run(options: argparse.Namespace) -> int:
    need_packages("grpc", "cryptography")
    from netfleet.sites.operations.process import leave

    return leave(options.folder, options.policy)
