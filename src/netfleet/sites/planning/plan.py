"""From an experiment and the sites of nodes.toml to a plan: who is whose neighbour, with what weight."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from netfleet.algorithms.base import Algorithm
from netfleet.algorithms.build import make_algorithm
from netfleet.data.csv_files import plan_data
from netfleet.data.own_sites import named_sites
from netfleet.data.sites import holds_own_data
from netfleet.errors import ConfigError
from netfleet.problems.own_loop import OWN_LOOP
from netfleet.problems.site_weights import site_weights
from netfleet.registry import parameters, split
from netfleet.runs.build import build_topology, check_steps, network_for
from netfleet.runs.config import Experiment, RunConfig, experiment, read_experiment
from netfleet.runs.own_loop import check_own_loop
from netfleet.runs.requirements import check_link_noise, check_time_box
from netfleet.sites.planning.folders import (
    NO_TRACKERS,
    Neighbour,
    Plan,
    Site,
    with_hashes,
)
from netfleet.sites.planning.nodes_file import NodesFile, parse_address
from netfleet.sites.runtime.neighbourhood import why_fixed
from netfleet.topology.graphs import GRAPHS
from netfleet.topology.topology import Topology


def load_planned(path: str | Path, overrides: Sequence[str], nodes: NodesFile) -> Experiment:
    """An experiment file with overrides; the default for `topology.workers` is the number of sites."""
    table = read_experiment(path, overrides)
    topology = table.setdefault("topology", {})
    if isinstance(topology, dict):
        kind, _ = split({"kind": "erdos-renyi", **topology}, "graph")
        asked = parameters(GRAPHS[kind]).get("workers")
        if asked is not None and asked.default is asked.empty:
            topology.setdefault("workers", len(nodes.nodes))
    return with_site_weights(with_site_data(experiment(table), nodes), nodes)


def with_site_data(experiment: Experiment, nodes: NodesFile) -> Experiment:
    """The experiment with the sites' names and statistics written into its data, where each site has its own."""
    if "data" not in experiment.problem:
        return experiment
    names = [node.name for node in nodes.nodes]
    if (listed := named_sites(experiment.problem["partition"])) not in (None, names):
        ours, theirs = ", ".join(listed or ()), ", ".join(names)
        raise ConfigError(
            f"problem.partition has the names {ours}, but the [[nodes]] are {theirs}; give both in the same order"
        )
    data = plan_data(experiment.problem["data"], names)
    return replace(experiment, problem=experiment.problem | {"data": data})


def with_site_weights(experiment: Experiment, nodes: NodesFile) -> Experiment:
    """The experiment with a number for each site in place of weights by rows, if the sites say how many they have."""
    weights, problem = experiment.problem["weights"], experiment.problem
    known = [node for node in nodes.nodes if node.rows]
    if not isinstance(weights, Mapping) or weights["kind"] != "rows":
        return experiment
    own = "data" in problem and holds_own_data(problem["data"])
    if len(known) < len(nodes.nodes) and (known or own):
        missing = next(node.name for node in nodes.nodes if not node.rows)
        cause = 'problem.weights = "rows" needs the number of training rows of every site, which no other site knows'
        raise ConfigError(f"{cause}; add rows = … to [[nodes]] {missing}, or give weights as numbers")
    if not known:
        return experiment  # sites that divide one data set know each other's parts
    numbers = site_weights(weights, [node.rows for node in nodes.nodes]).tolist()
    return replace(experiment, problem=problem | {"weights": numbers})


def make_plan(experiment: Experiment, nodes: NodesFile) -> Plan:
    """Give each site its row of W; raise if sites without a server cannot run the experiment."""
    run = _only_run(experiment)
    topology = _checked_topology(experiment, run, nodes)
    device = experiment.engine.device
    sites = with_hashes([replace(_site(i, nodes, topology), device=device) for i in range(topology.m)], run.hash)
    return Plan(experiment.name, run.label, experiment.rounds, topology.lam, run.hash, sites[0].run, sites)


def _only_run(experiment: Experiment) -> RunConfig:
    if len(experiment.seeds) > 1:
        raise ConfigError(
            f"sites train once, but the experiment has the seeds {', '.join(map(str, experiment.seeds))}; choose one: "
            f"--set seeds=[{experiment.seeds[0]}]"
        )
    if len(experiment.algorithms) > 1:
        labels = ", ".join(run.label for run in experiment.runs())
        choice = shlex.quote(f"algorithms=[{_inline(experiment.algorithms[0])}]")
        raise ConfigError(
            f"sites train with one algorithm, but the experiment has {labels}; choose one, for example: --set {choice}"
        )
    return experiment.runs()[0]


def _inline(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_inline(v)}" for key, v in value.items() if v is not None) + "}"
    return json.dumps(value, ensure_ascii=False)


def _checked_topology(experiment: Experiment, run: RunConfig, nodes: NodesFile) -> Topology:
    algorithm = make_algorithm(run.config["algorithm"])
    if algorithm.server:
        raise ConfigError(f"{algorithm.title} needs a server, and sites have only neighbours; try net-fleet")
    if experiment.network is not None:
        raise ConfigError("[network] simulates failures, but sites have real ones; leave it out")
    if experiment.track:
        raise ConfigError(f"[track]: {NO_TRACKERS}; leave it out")
    if experiment.problem["kind"] == OWN_LOOP:
        _check_own_loop(experiment, algorithm)
    check_steps(algorithm, experiment.rounds)
    if (nodes.patience or nodes.rejoin) and (why := why_fixed(algorithm)) is not None:
        raise why
    topology = build_topology(experiment.topology, run.seed)
    if topology.varying:
        raise ConfigError(
            f"graph {topology.name!r} changes from round to round, and sites have fixed neighbours; use a fixed graph"
        )
    if topology.m != len(nodes.nodes):
        raise ConfigError(
            f"the experiment has {topology.m} workers but there are {len(nodes.nodes)} sites; add or remove [[nodes]], "
            f"or change the graph (without topology.workers, a graph by name has one worker per site)"
        )
    network_for(algorithm, topology, run.seed)  # raises if the method does not go with these weights
    if experiment.privacy is not None and experiment.privacy.link_noise is not None:
        check_link_noise(algorithm, topology)
    if experiment.time_box is not None:
        check_time_box(algorithm, experiment.time_box, topology.m, by_clock=True)
    _check_labels(topology, [node.name for node in nodes.nodes])
    _check_reachable(topology, nodes)
    return topology


def _check_own_loop(experiment: Experiment, algorithm: Algorithm) -> None:
    """Raise if loops of the sites' own cannot do what the experiment says."""
    if experiment.problem["weights"] != {"kind": "equal"}:
        raise ConfigError("problem.weights: a loop of a site's own weighs its loss itself; leave weights out")
    if experiment.privacy is not None and experiment.privacy.clip is not None:
        raise ConfigError("privacy.clip: a loop of a site's own clips and perturbs its gradients itself; leave it out")
    if experiment.evaluation.metrics:
        raise ConfigError("evaluation.metrics: a loop of a site's own measures its model itself; leave metrics out")
    if experiment.time_box is not None:
        raise ConfigError("[time_box]: a loop of a site's own counts its steps itself; leave [time_box] out")
    if experiment.contract is not None:
        raise ConfigError("[contract]: a loop of a site's own reads its data itself; leave [contract] out")
    check_own_loop(algorithm)


def _check_labels(topology: Topology, names: list[str]) -> None:
    """Raise if a graph from a file names the sites in another order: each would get the neighbours of another."""
    labels = [str(topology.graph.nodes[i].get("label", i)) for i in range(topology.m)]
    numbers = [str(i) for i in range(topology.m)]
    if labels not in (names, numbers) and set(labels) & set(names):
        raise ConfigError(
            f"the graph has the workers {', '.join(labels)} in this order, but the sites are {', '.join(names)}; list "
            f"the [[nodes]] in the order of the graph, under the same names"
        )


def _check_reachable(topology: Topology, nodes: NodesFile) -> None:
    """Raise if two neighbours could never connect."""
    for i, node in enumerate(nodes.nodes):
        for other in (nodes.nodes[j] for j in topology.neighbours(i)):
            check_link(node.name, node.address, other.name, other.address, nodes.relay)


def check_link(name: str, address: str, other: str, other_address: str, relay: str) -> None:
    """Raise unless one end of a link can dial the other, or both can dial a relay."""
    if not (address or other_address or relay):
        raise ConfigError(
            f"{name} and {other} are neighbours, and neither has an address that the other could dial; open a TCP port "
            f'at one of them and write it as its address in [[nodes]], or add relay = "host:port" to nodes.toml, '
            f"a machine that both can dial"
        )


def _site(i: int, nodes: NodesFile, topology: Topology) -> Site:
    node, row, patience = nodes.nodes[i], topology.row(i), float(nodes.patience)
    there = [(j, nodes.nodes[j]) for j in topology.neighbours(i)]
    links = tuple(Neighbour(other.name, j, other.dialled, row[j]) for j, other in there)
    made = Site(node.name, i, node.dialled, node.listened, row.get(i, 0.0), patience, "", (), links)
    relay = str(parse_address(nodes.relay, "relay")) if nodes.relay else ""
    made = replace(made, rejoin=nodes.rejoin, relay=relay)
    return replace(made, keep=nodes.keep, on_alarm=nodes.on_alarm, alarm=nodes.alarm, rows=node.rows)


def start_command(experiment: Experiment, name: str) -> str:
    """How a site is started."""
    if experiment.problem["kind"] == OWN_LOOP:
        return f'a program of its own, which calls netfleet.optim.join("{name}")'
    return f"netfleet node {name}"


def needs(experiment: Experiment) -> str:
    """What every site must have."""
    if experiment.problem["kind"] == OWN_LOOP:
        method = experiment.algorithms[0]
        return (
            f"each site needs a program with a training loop, which calls netfleet.optim.join and makes the optimizer "
            f"of {method['kind']} with the plan's settings (the learning rate is its own), for the same model from the "
            f"same initial values. It computes where the program has the model."
        )
    device = experiment.engine.device
    found = "each site computes on its CPU" if device == "cpu" else f"each site needs the device {device!r}"
    return f"{found}; for another, change device in its site.toml."
