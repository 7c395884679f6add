"""Start all sites of a plan on this machine, for a trial."""

import argparse
from pathlib import Path

from netfleet.cli.shared import silence_grpc
from netfleet.environment import need_packages
from netfleet.errors import ConfigError, TransportError


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder that netfleet plan made")


def run(options: argparse.Namespace) -> int:
    need_packages("grpc", "cryptography")
    silence_grpc()
    from rich.console import Console

    from netfleet.sites.operations.local_trial import up
    from netfleet.sites.operations.status import ask_all
    from netfleet.sites.operations.status_table import print_results
    from netfleet.sites.planning.certificates import OPERATOR, load_identity
    from netfleet.sites.planning.folders import all_sites

    folder = options.folder
    operator = load_identity(folder / OPERATOR, OPERATOR)
    sites = all_sites(folder / OPERATOR)
    running = [answer.name for answer in ask_all(sites, operator, 1.0) if answer.status is not None]
    if running:
        raise ConfigError(f"{', '.join(running)}: already running; stop them first, or see netfleet status {folder}")
    failed = up(folder, sites, operator, Console(stderr=True))
    print_results(folder, sites, Console())
    if failed:
        raise TransportError(f"{', '.join(failed)} failed; see {folder}/NAME/node.log")
    return 0
