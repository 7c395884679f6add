"""Train at one site with its neighbours; after a stop or a crash, resume."""

import argparse
from pathlib import Path

from netfleet.cli.shared import add_policy
from netfleet.environment import need_packages
from netfleet.errors import ConfigError
from netfleet.sites import LINGER


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="the site's folder, made by netfleet plan")
    words = "start from the neighbours' current model, after they dropped this site or it lost its disk"
    parser.add_argument("--rejoin", action="store_true", help=words)
    words = "train without neighbours and network, with the plan's budget: the baseline for netfleet evaluate"
    parser.add_argument("--alone", action="store_true", help=words)
    parser.add_argument("--metrics", metavar="HOST:PORT", help="serve metrics for Prometheus at this address")
    words = "track the site's own records too, on this machine: tensorboard, mlflow, wandb (offline) or an inline table"
    parser.add_argument("--track", action="append", default=[], metavar="KIND", help=words)
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
    if options.alone:
        return _alone(options)
    need_packages("grpc", "cryptography", *(["prometheus_client"] if options.metrics else []))
    from netfleet.runs.overrides import parse_overrides
    from netfleet.sites.operations.process import run_node

    trackers = [parse_overrides([f"track={text}"])["track"] for text in options.track]
    chosen = options.rejoin, options.metrics, options.log, options.linger, options.policy, options.data_changed
    return run_node(options.folder, *chosen, trackers)


def _alone(options: argparse.Namespace) -> int:
    need_packages("cryptography")
    from rich.console import Console

    from netfleet.cli.shared import say_wrote
    from netfleet.runs.progress import Live
    from netfleet.sites.policy.start import open_site
    from netfleet.sites.runtime.alone import train_alone

    if options.track:
        raise ConfigError("--track follows the training with the neighbours, and --alone has none; leave --track out")
    if options.rejoin or options.metrics:
        given = "--rejoin" if options.rejoin else "--metrics"
        raise ConfigError(f"--alone trains without a network, and {given} is about one; leave one of them out")
    site, experiment, in_force = open_site(options.folder, options.policy)
    with Live(Console(stderr=True)) as live:
        path = train_alone(options.folder, site, experiment, live, in_force, options.data_changed)
    say_wrote(Console(), path)
    return 0
