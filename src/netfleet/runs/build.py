"""From an experiment's tables to its topology, problem, network and algorithm, and what they must satisfy together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from netfleet.algorithms.base import Algorithm
from netfleet.algorithms.build import make_algorithm
from netfleet.engines.host import refuse_memory
from netfleet.errors import ConfigError
from netfleet.problems.base import PROBLEMS, Problem
from netfleet.runs.config import EngineConfig, Experiment
from netfleet.runs.requirements import check_network
from netfleet.topology.faults import Faults, Unreliable
from netfleet.topology.network import Network
from netfleet.topology.server import CentralServer
from netfleet.topology.topology import Topology, make_topology


def network_for(algorithm: Algorithm, topology: Topology, seed: int, faults: Faults | None = None) -> Network:
    """What an algorithm's messages travel over: the topology, failing if told so, or the server that it is for."""
    if algorithm.server:
        if faults is not None:
            raise ConfigError(
                f"network: {algorithm.title} has a server and no links that could fail; use participation for workers "
                f"that are away, or leave [network] out"
            )
        return CentralServer(topology.m, getattr(algorithm, "participation", 1.0), seed)
    network = topology if faults is None else Unreliable(topology, faults, seed)
    check_network(algorithm, topology, faults)
    return network


@dataclass(frozen=True)
class Setting:
    """What the runs of one seed share."""

    topology: Topology
    problem: Problem


def build_topology(table: Mapping[str, Any], seed: int = 0, workers: int | None = None) -> Topology:
    """The topology of an experiment's [topology] table."""
    graph = {key: value for key, value in table.items() if key != "weights"}
    return make_topology(graph, workers=workers, weights=table.get("weights"), seed=seed)


def build_setting(experiment: Experiment, seed: int) -> Setting:
    """Topology and problem of one seed."""
    topology = build_topology(experiment.topology, seed)
    return Setting(topology, build_problem(experiment.problem, topology.m, seed, experiment.engine))


def build_problem(spec: Any, workers: int, seed: int, engine: EngineConfig) -> Problem:
    """The problem that a specification describes, on the engine's device."""
    return PROBLEMS.build(
        spec,
        workers=workers,
        seed=seed,
        dtype=getattr(torch, engine.dtype),
        device=checked_device(engine.device),
        threads=engine.threads,
        gradients=engine.gradients,
    )


def checked_device(name: str) -> str:
    """The device's name, if it can be used here."""
    try:
        torch.empty(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(f'device {name!r} cannot be used here ({reason}); use device = "cpu"') from None
    return name


def check_all(experiment: Experiment, setting: Setting) -> None:
    """Refuse what does not go together, of any of the algorithms."""
    for run in experiment.runs()[: len(experiment.algorithms)]:
        check_run(make_algorithm(run.config["algorithm"]), experiment, setting)


def check_run(algorithm: Algorithm, settings: Experiment, setting: Setting) -> None:
    network = network_for(algorithm, setting.topology, 0, settings.network)
    if settings.engine.kind != "simulator":
        refuse_memory(network)
    if setting.problem.mixes_buffers and isinstance(network, Unreliable) and network.has_memory:
        raise ConfigError(
            'network: with late messages or rule = "counters" averaged running statistics may become negative; use '
            'batch_norm = "local" or "recalibrated", or GroupNorm'
        )
    check_steps(algorithm, settings.rounds)


def check_steps(algorithm: Algorithm, rounds: int) -> None:
    """Refuse a step size that becomes 0 where the method divides by it."""
    still = [t for t in range(rounds) if algorithm.step_size(t) == 0] if algorithm.divides_by_eta else []
    if still:
        raise ConfigError(
            f"{algorithm.title} divides by the step size, which is 0 in round {still[0]}; let the schedule end above 0"
        )
