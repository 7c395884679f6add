"""Train at one site with its neighbours; after a stop or a crash, resume."""

import argparse
from pathlib import Path

from netfleet.cli.shared import add_policy
from netfleet.environment import need_packages
from netfleet.sites import LINGER


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="the site's folder, made by netfleet plan")
    words = "start from the neighbours' current model, after they dropped this site or it lost its disk"
    parser.add_argument("--rejoin", action="store_true", help=words)
    parser.add_argument("--metrics", metavar="HOST:PORT", help="serve metrics for Prometheus at this address")
    words = "format of the log (default: text on a terminal, else json)"
    parser.add_argument("--log", choices=["text", "json"], help=words)
    add_policy(parser)
    words = "train although the site's rows are not those of its last start; this is logged"
    parser.add_argument("--data-changed", action="store_true", help=words)
    words = "after the last round, give up an unfinished neighbour after S seconds without an answer (%(default)g)"
    parser.add_argument("--linger", type=seconds, default=LINGER, metavar="S", help=words)


def seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError("must be a number of seconds, 0 or more")
    return value


def run(options: argparse.Namespace) -> int:
    need_packages("grpc", "cryptography", *(["prometheus_client"] if options.metrics else []))
    from netfleet.sites.operations.process import run_node

    chosen = options.rejoin, options.metrics, options.log, options.linger, options.policy, options.data_changed
    return run_node(options.folder, *chosen)
