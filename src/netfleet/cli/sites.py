"""The commands for real peers. Nothing heavy is imported before one runs, so that `--help` answers at once."""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from netfleet.errors import ConfigError, TransportError
from netfleet.registry import make_importable
from netfleet.sites import LINGER

if TYPE_CHECKING:
    from netfleet.sites.planning.certificates import Authority

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_peers(commands: Commands) -> None:
    """All of them."""
    for add in (add_plan, add_node, add_up, add_status, add_admit):
        add(commands)


def add_plan(commands: Commands) -> None:
    """netfleet plan FILE.toml --nodes nodes.toml --out DIR."""
    plan = commands.add_parser("plan", help="make the folders and certificates of sites that train without a server")
    plan.add_argument("file", metavar="FILE.toml", help="the experiment, with one algorithm and one seed")
    plan.add_argument(
        "--nodes", type=Path, required=True, metavar="NODES.toml", help="the sites: [[nodes]] with name and address"
    )
    plan.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder, with one for each site")
    plan.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a value of the experiment, for example --set rounds=50 --set seeds=[0]",
    )
    plan.add_argument(
        "--ca-cert",
        type=Path,
        metavar="FILE.pem",
        help="your own root authority (default: a fresh one)",
    )
    plan.add_argument("--ca-key", type=Path, metavar="FILE.key", help="its private key; it is not copied")
    plan.add_argument("--days", type=int, default=365, metavar="N", help="how long certificates are valid (365)")
    plan.set_defaults(command=_plan)


def _plan(options: argparse.Namespace) -> int:
    need_packages("cryptography")
    make_importable(options.file)
    from rich.console import Console

    from netfleet.sites.planning.nodes_file import load_nodes
    from netfleet.sites.planning.overview import print_plan
    from netfleet.sites.planning.plan import load_planned, make_plan, write_plan

    authority = _authority(options.ca_cert, options.ca_key)
    nodes = load_nodes(options.nodes)
    experiment = load_planned(options.file, options.set, nodes)
    plan = make_plan(experiment, nodes)
    write_plan(plan, options.out, experiment, nodes, authority, options.days)
    print_plan(plan, options.out, Console(), brought=[node.name for node in nodes.nodes if node.request])
    return 0


def add_node(commands: Commands) -> None:
    """netfleet node DIR, and netfleet node leave DIR."""
    node = commands.add_parser("node", help="train at one site with its neighbours; goes on where it was")
    node.add_argument(
        "words",
        nargs="+",
        metavar="[leave] DIR",
        help="the site's folder, made by netfleet plan; with leave, take the site out of a running training for good",
    )
    node.add_argument(
        "--rejoin",
        action="store_true",
        help="begin anew with the neighbours' current model: after they went on without this site, or it lost its disk",
    )
    node.add_argument("--metrics", metavar="HOST:PORT", help="serve numbers for Prometheus there (default: do not)")
    node.add_argument(
        "--log", choices=["text", "json"], help="how events are written (default: text on a terminal, else json)"
    )
    node.add_argument(
        "--linger",
        type=_seconds,
        default=LINGER,
        metavar="S",
        help="seconds to stay, when done, for neighbours that are not and cannot be reached (%(default)g)",
    )
    node.set_defaults(command=_node)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError("a number of seconds from 0 on")
    return value


def _node(options: argparse.Namespace) -> int:
    *verb, folder = options.words
    if verb not in ([], ["leave"]):
        raise ConfigError(f"netfleet node {' '.join(options.words)}: expected one folder, or leave and a folder")
    need_packages("grpc", "cryptography", *(["prometheus_client"] if options.metrics else []))
    from netfleet.sites.operations.process import leave, run_node

    if verb:
        return leave(Path(folder))
    return run_node(Path(folder), options.rejoin, options.metrics, options.log, options.linger)


def add_up(commands: Commands) -> None:
    """netfleet up DIR."""
    up = commands.add_parser("up", help="start all sites of a plan on this machine, for a trial")
    up.add_argument("folder", type=Path, metavar="DIR", help="the folder that netfleet plan made")
    up.add_argument("--linger", default="10", metavar="S", help="as for netfleet node (10)")
    up.set_defaults(command=_up)


def _up(options: argparse.Namespace) -> int:
    need_packages("grpc", "cryptography")
    _hush()
    from rich.console import Console

    from netfleet.sites.network.identity import load_identity
    from netfleet.sites.operations.local_trial import up
    from netfleet.sites.operations.status_client import ask_all
    from netfleet.sites.operations.status_table import print_results
    from netfleet.sites.planning.certificates import OPERATOR
    from netfleet.sites.planning.folders import all_sites

    folder = options.folder
    operator = load_identity(folder / OPERATOR, OPERATOR)
    sites = all_sites(folder / OPERATOR)
    there = [answer.name for answer in ask_all(sites, operator, 1.0) if answer.status is not None]
    if there:
        raise ConfigError(f"{', '.join(there)}: already running; stop them first, or ask netfleet status {folder}")
    failed = up(folder, sites, operator, ["--linger", options.linger], Console(stderr=True))
    print_results(folder, sites, Console())
    if failed:
        raise TransportError(f"{', '.join(failed)} did not end well; see {folder}/NAME/node.log")
    return 0


def add_status(commands: Commands) -> None:
    """netfleet status DIR."""
    status = commands.add_parser("status", help="ask sites how they are: round, lag, bytes, accuracy, Σ(y − g)")
    status.add_argument(
        "folder", type=Path, metavar="DIR", help="the plan's or the operator's folder (all sites), or a site's own"
    )
    status.add_argument("--json", action="store_true", help="print the answers as JSON")
    status.add_argument("--watch", type=_seconds, metavar="S", help="ask again every S seconds, until interrupted")
    status.set_defaults(command=_status)


def _status(options: argparse.Namespace) -> int:
    need_packages("grpc", "cryptography")
    _hush()
    from rich.console import Console

    from netfleet.sites.operations.status_client import ask_folder
    from netfleet.sites.operations.status_table import print_json, print_status

    console = Console()
    while True:
        answers = ask_folder(options.folder)
        if options.watch is not None and console.is_terminal:
            console.clear()
        if options.json:
            print_json(answers)
        else:
            print_status(answers, console)
        if options.watch is None:
            return int(any(answer.status is None for answer in answers))
        time.sleep(options.watch)


def add_admit(commands: Commands) -> None:
    """netfleet admit DIR NAME ADDRESS --neighbours A,B."""
    admit = commands.add_parser("admit", help="let a new site join a training that runs")
    admit.add_argument("folder", type=Path, metavar="DIR", help="the folder that netfleet plan made")
    admit.add_argument("name", metavar="NAME", help="what the new site is called")
    admit.add_argument("address", metavar="HOST:PORT", help="where its neighbours reach it")
    admit.add_argument("--neighbours", required=True, metavar="A,B,…", help="the sites that it trains with")
    admit.add_argument("--listen", default="", metavar="HOST:PORT", help="where it listens (default: everywhere)")
    admit.add_argument("--request", default="", metavar="FILE.csr", help="its own certificate request")
    admit.add_argument("--ca-cert", type=Path, metavar="FILE.pem", help="the plan's authority (default: DIR/ca)")
    admit.add_argument("--ca-key", type=Path, metavar="FILE.key", help="its private key")
    admit.add_argument("--days", type=int, default=365, metavar="N", help="how long its certificate is valid (365)")
    admit.set_defaults(command=_admit)


def _admit(options: argparse.Namespace) -> int:
    need_packages("cryptography")
    from rich.console import Console

    from netfleet.sites.planning.admit import admit
    from netfleet.sites.planning.nodes_file import NodeEntry
    from netfleet.sites.planning.overview import print_admission

    folder = options.folder
    own = (folder / "ca" / "ca.pem", folder / "ca" / "ca.key")
    given = _authority(options.ca_cert, options.ca_key)
    authority = given if given is not None else _authority(*own)
    assert authority is not None
    node = NodeEntry(options.name, options.address, options.listen, options.request)
    names = [name.strip() for name in options.neighbours.split(",") if name.strip()]
    site, weight = admit(folder, node, names, authority, options.days)
    print_admission(site, weight, folder, Console())
    return 0


def _authority(certificate: Path | None, key: Path | None) -> Authority | None:
    from netfleet.sites.planning.certificates import load_authority

    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("an authority of your own is a certificate and its key; give both --ca-cert and --ca-key")
    return load_authority(certificate, key)


def _hush() -> None:
    """gRPC writes about failed handshakes to the terminal, and what they failed for is said anyway."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def need_packages(*names: str) -> None:
    """Raise unless these packages, which only real peers need, are installed."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"real peers need {', '.join(missing)}, not installed here; pip install 'netfleet[sites]'")
