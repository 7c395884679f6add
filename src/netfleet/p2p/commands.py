"""The commands for real peers. Nothing heavy is imported before one runs, so that `--help` answers at once."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from netfleet.errors import ConfigError
from netfleet.registry import make_importable

if TYPE_CHECKING:
    from netfleet.p2p.tls import Authority


def add_plan(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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

    from netfleet.p2p.nodes import load_nodes
    from netfleet.p2p.overview import print_plan
    from netfleet.p2p.plan import load_planned, make_plan, write_plan

    authority = _authority(options.ca_cert, options.ca_key)
    nodes = load_nodes(options.nodes)
    experiment = load_planned(options.file, options.set, nodes)
    plan = make_plan(experiment, nodes)
    write_plan(plan, options.out, experiment, nodes, authority, options.days)
    print_plan(plan, options.out, Console(), brought=[node.name for node in nodes.nodes if node.request])
    return 0


def _authority(certificate: Path | None, key: Path | None) -> Authority | None:
    from netfleet.p2p.tls import load_authority

    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("an authority of your own is a certificate and its key; give both --ca-cert and --ca-key")
    return load_authority(certificate, key)


def need_packages(*names: str) -> None:
    """Raise unless these packages, which only real peers need, are installed."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"real peers need {', '.join(missing)}, not installed here; pip install 'netfleet[p2p]'")
