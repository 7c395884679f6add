"""From an experiment's tables to its topology, problem, network and jobs, and the checks that they fit together."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from netfleet.algorithms.base import Algorithm
from netfleet.algorithms.build import make_algorithm
from netfleet.engines.host import refuse_memory
from netfleet.engines.job import Job
from netfleet.engines.time_box import FixedSteps
from netfleet.errors import ConfigError
from netfleet.privacy.build import check_buffers, link_noise, make_private, rounds_allowed
from netfleet.privacy.link_noise import simulated_links
from netfleet.privacy.queries import queries_after
from netfleet.problems.base import PROBLEMS, Problem
from netfleet.registry import Registry, Spec, path_of, split
from netfleet.runs.config import EngineConfig, Experiment, RunConfig
from netfleet.runs.contract_check import check_contract
from netfleet.runs.requirements import check_link_noise, check_network, check_time_box
from netfleet.runs.time_box import TimeBox
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


ProblemFactory = Callable[..., Problem]


@dataclass(frozen=True)
class Objects:
    """Parts that Python gives as objects, or as tables that hold objects; the experiment has what identifies them."""

    topology: Topology | Mapping[str, Any] | None = None
    problem: Problem | ProblemFactory | Mapping[str, Any] | None = None
    algorithms: Mapping[str, Algorithm] = field(default_factory=dict)  # by label
    metrics: tuple[object, ...] = ()  # that no file can name

    @property
    def any(self) -> bool:
        """Whether there are any: an experiment file could not say them."""
        return any(part is not None for part in (self.topology, self.problem)) or bool(self.algorithms or self.metrics)


NO_OBJECTS = Objects()


class Settings:
    """The settings of an experiment's seeds: each is built when it is first asked for, and the last `keep` are kept.

    The report shows the topology and the label counts of the first one, so these stay.
    """

    topology: Topology
    label_counts: npt.NDArray[np.int64] | None

    def __init__(self, experiment: Experiment, keep: int = 1, objects: Objects = NO_OBJECTS) -> None:
        self.seeds, self.objects = experiment.seeds, objects
        self._build = lru_cache(keep)(partial(build_setting, experiment, objects=objects))

    def __call__(self, seed: int) -> Setting:
        setting = self._build(seed)
        if seed == self.seeds[0]:
            self.topology, self.label_counts = setting.topology, setting.problem.label_counts()
        return setting

    def algorithm(self, run: RunConfig) -> Algorithm:
        """The method of a run."""
        given = self.objects.algorithms.get(run.label)
        return make_algorithm(run.config["algorithm"]) if given is None else given


def build_topology(table: Mapping[str, Any], seed: int = 0, workers: int | None = None) -> Topology:
    """The topology of an experiment's [topology] table."""
    graph = {key: value for key, value in table.items() if key != "weights"}
    return make_topology(graph, workers=workers, weights=table.get("weights"), seed=seed)


def build_setting(experiment: Experiment, seed: int, objects: Objects = NO_OBJECTS) -> Setting:
    topology = experiment.topology if objects.topology is None else objects.topology
    problem = experiment.problem if objects.problem is None else objects.problem
    if not isinstance(topology, Topology):
        topology = build_topology(topology, seed)
    if not isinstance(problem, Problem):
        problem = build_problem(problem, topology.m, seed, experiment.engine)
    if problem.m != topology.m:
        cause = f"the problem has {problem.m} workers, the topology {topology.m}"
        raise ConfigError(f"{cause}; make them agree, for a topology by name with workers = {problem.m}")
    check_contract(experiment.contract, problem, range(problem.m))
    return Setting(topology, problem)


def build_problem(spec: Spec | ProblemFactory, workers: int, seed: int, engine: EngineConfig) -> Problem:
    """The problem that a specification describes or a factory makes, on the engine's device."""
    place = {name: getattr(engine, name) for name in ("device", "threads", "gradients")}
    try:
        torch.empty(1, device=engine.device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(f'device {engine.device!r} cannot be used here ({reason}); use device = "cpu"') from None
    registry = PROBLEMS
    if not isinstance(spec, str | Mapping):
        registry, factory, spec = Registry("problem", returns=Problem), spec, path_of(spec)
        registry.register(spec)(factory)
    kind, table = split(spec, "problem")
    weights: Any = table.pop("weights", "equal")
    dtype = getattr(torch, engine.dtype)
    problem = registry.build({"kind": kind, **table}, workers=workers, seed=seed, dtype=dtype, **place)
    return problem.weighted(weights)


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
    problem = setting.problem
    privacy, noise = settings.privacy, None
    if privacy is not None and privacy.clip is not None:
        problem = make_private(problem, privacy, queries_after(method, settings.rounds, problem.seed))
    if privacy is not None and privacy.link_noise is not None:
        check_link_noise(method, network)
        check_buffers(problem)
        noise = link_noise(privacy, settings.rounds, simulated_links(problem.seed))
    steps = None
    if settings.time_box is not None:
        K = check_time_box(method, settings.time_box, problem.m)
        steps = functools.partial(_fixed_steps, settings.time_box, K)
    rounds = rounds_allowed(problem, privacy, settings.rounds)
    return Job(problem, network, method, rounds, threads=settings.engine.threads, noise=noise, steps=steps)


def _fixed_steps(box: TimeBox, K: int, workers: Sequence[int]) -> FixedSteps:
    return FixedSteps(torch.tensor([box.steps(i, K) for i in workers]))


def check_steps(algorithm: Algorithm, rounds: int) -> None:
    """Refuse a step size that becomes 0 where the method divides by it."""
    still = [t for t in range(rounds) if algorithm.step_size(t) == 0] if algorithm.divides_by_eta else []
    if still:
        cause = f"{algorithm.title} divides by the step size, which is 0 in round {still[0]}"
        raise ConfigError(f"{cause}; let the schedule end above 0")
