"""Describe and draw a graph and its consensus matrix."""

import argparse
from pathlib import Path

from netfleet.cli.shared import add_set
from netfleet.errors import ConfigError
from netfleet.registry import make_importable


def add(parser: argparse.ArgumentParser) -> None:
    words = 'a graph ("ring", "torus", …; default: erdos-renyi) or an experiment file'
    parser.add_argument("kind", nargs="?", default="erdos-renyi", metavar="KIND|FILE.toml", help=words)
    parser.add_argument("--workers", type=int, metavar="M", help="number of workers (default: 20)")
    parser.add_argument("--ranks", type=int, metavar="N", help="report how well N processes can share the workers")
    parser.add_argument("--weights", help="laplacian (default), metropolis, max-degree, uniform")
    parser.add_argument("--seed", type=int, help="seed of a random graph (default: 0, or the file's first)")
    add_set(parser, "set a parameter of the graph, for example --set p=0.3")
    words = "file for the drawing (default: topology.png)"
    parser.add_argument("--out", type=Path, default=Path("topology.png"), metavar="FILE.png", help=words)


def run(options: argparse.Namespace) -> int:
    make_importable(options.kind if options.kind.endswith(".toml") else None)
    from rich.console import Console
    from rich.table import Table

    from netfleet.engines.placement import place_on, quality_on
    from netfleet.files import make_folder
    from netfleet.report.graph import draw_topology
    from netfleet.runs.build import build_topology
    from netfleet.runs.config import load_experiment
    from netfleet.runs.overrides import parse_overrides
    from netfleet.topology.topology import make_topology

    if options.out.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"--out {options.out}: a drawing is a .png, .svg or .pdf file")
    if options.kind.endswith(".toml"):
        changes = [f"topology.{change}" for change in options.set]
        changes += [f"topology.{k}={v}" for k in ("workers", "weights") if (v := getattr(options, k)) is not None]
        experiment = load_experiment(options.kind, changes)
        topology = build_topology(experiment.topology, experiment.seeds[0] if options.seed is None else options.seed)
    else:
        graph = {"kind": options.kind, **parse_overrides(options.set)}
        usual = None if "path" in graph else 20  # a file of edges brings its own number
        workers = graph.pop("workers", usual if options.workers is None else options.workers)
        topology = make_topology(graph, workers=workers, weights=options.weights, seed=options.seed or 0)
    table = Table(title=f"{topology.name}, {topology.m} workers", show_header=False)
    for key, value in topology.describe().items():
        if key not in ("name", "workers") and value is not None:
            table.add_row(key.replace("_", " "), f"{value:.6g}" if isinstance(value, float) else str(value))
    if options.ranks is not None:
        if not 1 <= options.ranks <= topology.m:
            raise ConfigError(f"--ranks must be from 1 to the number of workers, {topology.m}, got {options.ranks}")
        sentence = quality_on(topology, place_on(topology, options.ranks)).sentence
        table.add_row(f"on {options.ranks} ranks", sentence + " (means over rounds)" * topology.varying)
    Console().print(table)
    make_folder(options.out.parent)
    draw_topology(topology, options.out)
    print(f"wrote {options.out}")
    return 0
