"""From an experiment's tables to its topology, problem, network and jobs, and the checks that they fit together."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from netfleet.algorithms.base import Algorithm
from netfleet.algorithms.build import make_algorithm
from netfleet.engines.host import refuse_memory
from netfleet.engines.job import Job
from netfleet.errors import ConfigError
from netfleet.problems.base import PROBLEMS, Problem
from netfleet.problems.site_weights import resolve_weights
from netfleet.registry import Spec, split
from netfleet.runs.config import EngineConfig, Experiment
from netfleet.runs.requirements import check_network
from netfleet.topology.faults import Faults, Unreliable
from netfleet.topology.network import Network
from netfleet.topology.server import CentralServer
from netfleet.topology.topology import Topology, make_topology


def network_for(algorithm: Algorithm, topology: Topology, seed: int, faults: Faults | None = None) -> Network:
    """The network of an algorithm: the topology, with faults if there are any, or a server."""
    if algorithm.server:
        if faults is not None:
            advice = "use participation for absent workers, or leave [network] out"
            raise ConfigError(f"network: {algorithm.title} has a server and no links that can fail; {advice}")
        return CentralServer(topology.m, getattr(algorithm, "participation", 1.0), seed)
    network = topology if faults is None else Unreliable(topology, faults, seed)
    check_network(algorithm, topology, faults)
    return network


@dataclass(frozen=True)
class Setting:
    """What the runs of one seed share."""

    topology: Topology
    problem: Problem


class Settings:
    """The settings of an experiment's seeds: each is built when it is first asked for, and the last `keep` are kept.

    The report shows the topology and the label counts of the first one, so these stay.
    """

    topology: Topology
    label_counts: npt.NDArray[np.int64] | None

    def __init__(self, experiment: Experiment, keep: int = 1) -> None:
        self.seeds, self._build = experiment.seeds, lru_cache(keep)(partial(build_setting, experiment))

    def __call__(self, seed: int) -> Setting:
        setting = self._build(seed)
        if seed == self.seeds[0]:
            self.topology, self.label_counts = setting.topology, setting.problem.label_counts()
        return setting


def build_topology(table: Mapping[str, Any], seed: int = 0, workers: int | None = None) -> Topology:
    """The topology of an experiment's [topology] table."""
    graph = {key: value for key, value in table.items() if key != "weights"}
    return make_topology(graph, workers=workers, weights=table.get("weights"), seed=seed)


def build_setting(experiment: Experiment, seed: int) -> Setting:
    topology = build_topology(experiment.topology, seed)
    return Setting(topology, build_problem(experiment.problem, topology.m, seed, experiment.engine))


def build_problem(spec: Spec, workers: int, seed: int, engine: EngineConfig) -> Problem:
    """The problem that a specification describes, on the engine's device."""
    place = {name: getattr(engine, name) for name in ("device", "threads", "gradients")}
    try:
        torch.empty(1, device=engine.device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(f'device {engine.device!r} cannot be used here ({reason}); use device = "cpu"') from None
    kind, table = split(spec, "problem")
    weights: Any = table.pop("weights", "equal")
    dtype = getattr(torch, engine.dtype)
    problem = PROBLEMS.build({"kind": kind, **table}, workers=workers, seed=seed, dtype=dtype, **place)
    return problem if resolve_weights(weights) == {"kind": "equal"} else problem.weighted(weights)


def build_job(algorithm: Algorithm | Spec, seed: int, settings: Experiment, setting: Setting) -> Job:
    """The job of one run, without a recorder; raises if its algorithm, network, problem and engine do not fit."""
    method = algorithm if isinstance(algorithm, Algorithm) else make_algorithm(algorithm)
    network = network_for(method, setting.topology, seed, settings.network)
    if settings.engine.kind != "simulator":
        refuse_memory(network)
    if setting.problem.mixes_buffers and isinstance(network, Unreliable) and network.has_memory:
        advice = 'use batch_norm = "local" or "recalibrated", or GroupNorm'
        cause = 'with delay or rule = "counters" averaged running statistics may become negative'
        raise ConfigError(f"network: {cause}; {advice}")
    check_steps(method, settings.rounds)
    setting.problem.check_metrics(settings.evaluation.metrics)
    return Job(setting.problem, network, method, settings.rounds, threads=settings.engine.threads)


def check_steps(algorithm: Algorithm, rounds: int) -> None:
    """Refuse a step size that becomes 0 where the method divides by it."""
    still = [t for t in range(rounds) if algorithm.step_size(t) == 0] if algorithm.divides_by_eta else []
    if still:
        cause = f"{algorithm.title} divides by the step size, which is 0 in round {still[0]}"
        raise ConfigError(f"{cause}; let the schedule end above 0")
