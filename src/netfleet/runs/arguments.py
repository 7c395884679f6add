"""From what Python gives, objects, names and tables, to an `Experiment` and the objects behind it."""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

import networkx as nx
import torch

from netfleet.algorithms import Algorithm
from netfleet.algorithms.build import algorithm_label
from netfleet.errors import ConfigError
from netfleet.privacy.settings import Privacy
from netfleet.problems import Problem
from netfleet.registry import Spec, is_importable, parameters, path_of, shown
from netfleet.runs.build import Objects, ProblemFactory
from netfleet.runs.compare import suffix
from netfleet.runs.config import (
    EngineConfig,
    Evaluation,
    Experiment,
    Table,
    check_experiment,
    make,
    make_engine_config,
    resolve_method,
    resolve_problem,
    resolve_topology,
)
from netfleet.runs.identity import is_plain, method_table, plain, problem_table, topology_table
from netfleet.runs.time_box import TimeBox
from netfleet.topology.faults import Faults
from netfleet.topology.graphs import GRAPHS
from netfleet.topology.topology import Topology, make_topology

T = TypeVar("T")
OFFERED = ("workers", "seed", "dtype", "device", "threads", "gradients")  # to a function that makes a problem
WORKERS = 20  # where nothing says how many
Method = Algorithm | Spec
Methods = Method | Iterable[Method]
TopologyPart: TypeAlias = Topology | nx.Graph | Spec
ProblemPart = Problem | ProblemFactory | Spec
EvaluationPart = Evaluation | Mapping[str, Any]
EnginePart = EngineConfig | Spec
NetworkPart = Faults | Mapping[str, Any]
PrivacyPart = Privacy | Mapping[str, Any]
TimeBoxPart = TimeBox | Mapping[str, Any]


@dataclass(frozen=True)
class Parts:
    """What Python gives: each part is an object, a name, or a table as in an experiment file."""

    algorithms: Methods = "net-fleet"
    topology: TopologyPart = "erdos-renyi"
    problem: ProblemPart = "classification"
    workers: int | None = None
    rounds: int = 100
    seeds: int | Iterable[int] = 1
    evaluation: EvaluationPart | None = None
    engine: EnginePart | None = None
    network: NetworkPart | None = None
    privacy: PrivacyPart | None = None
    time_box: TimeBoxPart | None = None
    checkpoint_every: int = 50


def make_experiment(parts: Parts, name: str) -> tuple[Experiment, Objects]:
    """The experiment that the parts describe, and those of them that an experiment file could not say."""
    rounds, seeds = _whole(parts.rounds, "rounds"), _seeds(parts.seeds)
    methods = _told_apart([_method(each, rounds) for each in _listed(parts.algorithms)])
    topology, graph = _topology(parts)
    problem, task = _problem(parts.problem)
    network = _settings(Faults, parts.network, "network")
    evaluation = _settings(Evaluation, parts.evaluation, "evaluation")
    given = {
        "name": name,
        "rounds": rounds,
        "seeds": seeds,
        "topology": topology,
        "problem": problem,
        "algorithms": tuple(method.labelled for method in methods),
        "evaluation": evaluation,
        "engine": _engine(parts.engine, parts.problem),
        "network": network if network.any else None,
        "privacy": None if parts.privacy is None else _settings(Privacy, parts.privacy, "privacy"),
        "time_box": None if parts.time_box is None else _settings(TimeBox, parts.time_box, "time_box"),
        "checkpoint_every": _whole(parts.checkpoint_every, "checkpoint_every"),
    }
    made = {method.label: method.made for method in methods if method.made is not None}
    experiment, objects = check_experiment(given), Objects(graph, task, made, unnamed_metrics(evaluation))
    if len(seeds) > 1 and isinstance(parts.problem, Problem):
        _refuse_repetition(experiment, objects)
    return experiment, objects


def unnamed_metrics(evaluation: Evaluation) -> tuple[object, ...]:
    """The metrics that no file can name."""
    return tuple(m for m in evaluation.metrics if not isinstance(m, str) and not is_importable(m))


class _Method(NamedTuple):
    table: Table  # without a label
    label: str
    #: Whether the label was given.
    given: bool
    #: The method itself, if its table does not make it.
    made: Algorithm | None

    @property
    def labelled(self) -> Table:
        """As an experiment file has it: with its label, unless that follows from the rest."""
        follows = self.made is None and algorithm_label(self.table) == self.label
        return self.table if follows else self.table | {"label": self.label}


def _listed(given: Methods) -> list[Method]:
    """One method or several as a list."""
    several = isinstance(given, Iterable) and not isinstance(given, str | Mapping | type)
    listed: list[Method] = list(given) if several else [given]  # type: ignore[arg-type, list-item]
    if not listed:
        raise ConfigError('there are no algorithms; give one or more, such as "net-fleet"')
    return listed


def _method(given: Method, rounds: int) -> _Method:
    if isinstance(given, Algorithm):
        table, complete = method_table(given, rounds)
        codec = f", {table['compress']['kind']}" if "compress" in table else ""
        return _Method(table, f"{given.title}{codec}", False, None if complete else given)
    if isinstance(given, type) and issubclass(given, Algorithm):
        raise ConfigError(f"the algorithm is the class {given.__name__}; make an object of it: {given.__name__}(eta=…)")
    if not isinstance(given, str | Mapping):
        expected = 'expected an Algorithm, a name such as "net-fleet", or a table with a kind'
        raise ConfigError(f"algorithm: {expected}, got {shown(given)}; `netfleet algorithms` lists the names")
    table = resolve_method(given)
    label = algorithm_label(table)
    table.pop("label", None)
    return _Method(table, label, isinstance(given, Mapping) and "label" in given, None)


def _told_apart(methods: list[_Method]) -> list[_Method]:
    """Methods whose labels were not given and are alike get what differs between them added."""
    alike = {m.label: [n.table for n in methods if n.label == m.label and not n.given] for m in methods}
    return [m if m.given else m._replace(label=m.label + suffix(m.table, alike[m.label])) for m in methods]


def _topology(parts: Parts) -> tuple[Table, Topology | Mapping[str, Any] | None]:
    given, workers = parts.topology, None if parts.workers is None else _whole(parts.workers, "workers")
    if isinstance(given, nx.Graph):
        given = make_topology(given)
    if isinstance(given, Topology):
        if workers not in (None, given.m):
            raise ConfigError(f"the topology has {given.m} workers, and workers = {workers}; make them agree")
        return topology_table(given), given
    if not isinstance(given, str | Mapping):
        expected = 'expected a Topology, a networkx graph, a name such as "ring", or a table with a kind'
        raise ConfigError(f"topology: {expected}, got {shown(given)}; build one with nf.make_topology")
    table = {"kind": given} if isinstance(given, str) else {"kind": "erdos-renyi", **given}
    if not isinstance(table.get("weights"), str | Mapping | None):
        table["weights"] = {"kind": "matrix", "values": table["weights"]}
    default = parts.problem.m if isinstance(parts.problem, Problem) else WORKERS
    table = resolve_topology(_counted(table, workers, default))
    return plain(table), None if is_plain(table) else table


def _counted(table: Table, workers: int | None, default: int) -> Table:
    """A [topology] table with the number of workers, unless its graph says it itself."""
    hint = parameters(GRAPHS[table["kind"]]).get("workers")
    if workers is not None and (hint is None or table.get("workers", workers) != workers):
        has = f"has workers = {table.get('workers')}" if hint else "says itself how many workers there are"
        raise ConfigError(f"the topology {table['kind']!r} {has}, and workers = {workers} was given; give it once")
    if workers is None and (hint is None or hint.default is not hint.empty):
        return table
    return {**table, "workers": table.get("workers", default if workers is None else workers)}


def _problem(given: ProblemPart) -> tuple[Table, Problem | ProblemFactory | Mapping[str, Any] | None]:
    if isinstance(given, Problem):
        return problem_table(given), given
    if isinstance(given, str | Mapping):
        table = resolve_problem({"kind": given} if isinstance(given, str) else {"kind": "classification", **given})
        return plain(table), None if is_plain(table) else table
    if not callable(given) or not hasattr(given, "__qualname__"):  # a module can be called, but makes no problem
        expected = 'expected a Problem, a name such as "quadratics", a table, or a function of the seed that makes one'
        raise ConfigError(f"problem: {expected}, got {shown(given)}; build one with nf.make_problem")
    missing = [n for n, p in parameters(given).items() if p.default is p.empty and n not in OFFERED]
    if missing:
        offered = ", ".join(OFFERED)
        advice = f"it is called with those of {offered} that it names, so give all others a default"
        raise ConfigError(f"problem: {path_of(given)} needs {', '.join(missing)}; {advice}")
    if is_importable(given):
        return resolve_problem({"kind": path_of(given)}), None
    return {"kind": path_of(given)}, given


def _engine(given: EnginePart | None, problem: ProblemPart) -> EngineConfig:
    """A problem that is an object has its own type of numbers."""
    named = {"kind": given} if isinstance(given, str) else given
    engine = _settings(EngineConfig, named, "engine", make_engine_config)
    if isinstance(problem, Problem) and problem.dtype in (torch.float32, torch.float64):
        return replace(engine, dtype="float32" if problem.dtype == torch.float32 else "float64")
    return engine


def _settings(
    cls: type[T],
    given: T | Mapping[str, Any] | None,
    where: str,
    build: Callable[[Mapping[str, Any], str], T] | None = None,
) -> T:
    """An object of a class, or a table of its fields; None: all defaults."""
    if isinstance(given, cls):
        return given
    if given is not None and not isinstance(given, Mapping):
        fields = ", ".join(parameters(cls))
        raise ConfigError(f"{where} must be a table or {cls.__name__}, got {shown(given)}; it may have: {fields}")
    return build(given or {}, where) if build else make(cls, given or {}, where)


def _seeds(given: int | Iterable[int]) -> tuple[int, ...]:
    """Seeds that are listed, or that many from 0 on."""
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        return tuple(_whole(seed, "a seed") for seed in given)
    if (count := _whole(given, "seeds")) < 1:
        raise ConfigError(f"seeds must be how many there are, at least 1, or a list of seeds, got {count}")
    return tuple(range(count))


def _whole(value: Any, what: str) -> int:
    """A whole number, of numpy too."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise ConfigError(f"{what} must be a whole number, got {shown(value)}; give one such as 10")


def _refuse_repetition(experiment: Experiment, objects: Objects) -> None:
    """Refuse several seeds where nothing depends on the seed: the problem is one object with its own mini-batches."""
    drawn = objects.topology is None and "seed" in parameters(GRAPHS[experiment.topology["kind"]])
    partial = any(table.get("participation", 1.0) < 1 for table in experiment.algorithms)
    if not drawn and not partial and experiment.network is None:
        cause = f"the problem is an object, so the {len(experiment.seeds)} seeds would all give the same run"
        raise ConfigError(f"{cause}; give a function that makes it, problem=lambda seed: …, or one seed")
