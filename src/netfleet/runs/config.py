"""Experiment files: strict TOML -> `Experiment` -> one resolved, hashed `RunConfig` per algorithm and seed.

    name = "digits"            rounds = 200            seeds = [0, 1, 2]
    [topology]                 kind = "erdos-renyi", workers = 20, weights = "laplacian", p = 0.5
    [problem]                  kind = "classification", data = "digits", partition = "shards", model = "mlp", batch = 32
    [[algorithms]]             kind = "net-fleet", K = 10, eta = 0.1, label = "…"          (one or more)
    [evaluation]               every = 10, …           (fields of `Evaluation`)
    [network]                  loss = 0.1, …           (fields of `Faults`; left out: nothing fails)
    [privacy]                  clip = 1.0, …           (fields of `Privacy`; left out: nothing is private)
    [time_box]                 seconds = 10.0, …       (fields of `TimeBox`; left out: every round has K local steps)
    [engine]                   kind = "simulator", …   (fields of `EngineConfig`)
    [track]                    kind = "tensorboard"    (one or more trackers; left out: records stay in the history)
    [contract]                 least_rows = 20, …      (fields of `Contract`; left out: data is not held against one)

The resolved config has every default written out. A result depends on it, and on the contents of the files and modules
that it names, alone. Its hash names the run. Labels, threads, the device, the kind of engine and trackers are not
in it, because they do not change the results, except for rounding.
"""

import hashlib
import html
import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

import tomli_w

from netfleet.errors import ConfigError
from netfleet.privacy.settings import Privacy
from netfleet.registry import Registry, check_fields, check_type, make_importable, parameters, shown, split, suggestion
from netfleet.runs.contract import Contract, TensorContract
from netfleet.runs.overrides import parse_overrides
from netfleet.runs.time_box import TimeBox
from netfleet.topology.faults import Faults
from netfleet.topology.graphs import GRAPHS, varies
from netfleet.topology.weights import WEIGHTS
from netfleet.track.following import resolve_trackers

T = TypeVar("T")
Table = dict[str, Any]
#: What netfleet itself passes to the factories, so that a file does not have to.
GIVEN = (
    "workers",
    "seed",
    "dtype",
    "device",
    "threads",
    "gradients",
    "inputs",
    "classes",
    "outputs",
    "labels",
    "groups",
    "graph",
    "sizes",
)

_TENSORS = ("inputs", "targets")  # tables of a contract


@dataclass(frozen=True)
class Evaluation:
    """When and how much is measured; limits are numbers of samples, 0 means all.

    The workers' own models and f, ∇f cost most of an evaluation. With `full_every`, a multiple of `every`, they are
    measured in every `full_every`-th round, and in the first and the last.
    """

    every: int = 10
    full_every: int = 0
    test_samples: int = 0
    worker_test_samples: int = 1000
    gradient: bool = True
    gradient_samples: int = 10_000
    #: Further columns: names of metrics (`problems/scoring.py`) or "package.module:function"; in Python any function.
    metrics: tuple[str | Callable[..., float], ...] = ()

    def __post_init__(self) -> None:
        check_fields(self, "evaluation")
        self.to_table()  # every metric has a name
        for name, hint in parameters(Evaluation).items():
            if hint.annotation is int:
                _at_least(f"evaluation.{name}", getattr(self, name), int(name == "every"))
        if self.full_every % self.every:
            cause = f"must be a multiple of evaluation.every = {self.every}, got {self.full_every}"
            advice = f"try {max(self.full_every // self.every, 1) * self.every}, or 0 to measure all every time"
            raise ConfigError(f"evaluation.full_every {cause}; {advice}")

    def to_table(self) -> Table:
        """As an experiment file says it; without metrics where there are none, as in earlier versions."""
        table = {name: getattr(self, name) for name in parameters(Evaluation) if name != "metrics"}
        return table | ({"metrics": list(map(metric_path, self.metrics))} if self.metrics else {})

    def full(self, t: int, rounds: int) -> bool:
        """Whether the evaluation after t of the rounds measures all."""
        return self.full_every == 0 or t % self.full_every == 0 or t == rounds


def metric_path(metric: str | Callable[..., float]) -> str:
    """A metric as a file says it: its name, or `package.module:function`; what follows the colon names its column."""
    if isinstance(metric, str):
        return metric
    if not str(name := getattr(metric, "__name__", "")).isidentifier():
        raise ConfigError(f"a metric must have a name, got {shown(metric)}; write a function around it")
    return f"{metric.__module__}:{name}"


@dataclass(frozen=True)
class EngineConfig:
    """Where and how the run is computed; only `dtype` changes the numbers beyond rounding."""

    kind: Literal["simulator", "threads", "distributed"] = "simulator"
    device: str = "cpu"
    dtype: Literal["float32", "float64"] = "float32"
    threads: int = 0
    gradients: Literal["auto", "native", "stacked", "looped", "processes"] = "auto"

    def __post_init__(self) -> None:
        if self.kind == "peers":  # type: ignore[comparison-overlap]  # of earlier versions
            object.__setattr__(self, "kind", "threads")
        check_fields(self, "engine")
        _at_least("engine.threads", self.threads, 0)


@dataclass(frozen=True)
class RunConfig:
    """One algorithm with one seed: the unit that is run, checkpointed and hashed."""

    label: str
    seed: int
    config: Table

    @property
    def hash(self) -> str:
        return config_hash(self.config)

    @property
    def folder(self) -> str:
        """The run's folder: its label in characters that file systems take, and its seed."""
        slug = re.sub(r"[^\w.=]+", "-", self.label.lower()).strip("-.") or "run"
        return f"{slug}-seed{self.seed}"


@dataclass(frozen=True)
class Experiment:
    """One problem on one topology with one or more algorithms and seeds."""

    topology: Table
    problem: Table
    algorithms: tuple[Table, ...]
    rounds: int
    name: str = "experiment"
    seeds: tuple[int, ...] = (0,)
    checkpoint_every: int = 50
    evaluation: Evaluation = field(default_factory=Evaluation)
    engine: EngineConfig = field(default_factory=EngineConfig)
    network: Faults | None = None
    privacy: Privacy | None = None
    contract: Contract | None = None
    time_box: TimeBox | None = None
    track: tuple[Table, ...] = ()

    def runs(self) -> list[RunConfig]:
        """Every (algorithm, seed) with its resolved config; algorithms vary fastest."""
        pairs = list(zip(self._labels(), self.algorithms, strict=True))
        runs = [RunConfig(label, s, self._resolved(table) | {"seed": s}) for s in self.seeds for label, table in pairs]
        owner: dict[str, str] = {}
        for run in runs:
            if owner.setdefault(run.folder, run.label) != run.label:
                cause = f"the labels {owner[run.folder]!r} and {run.label!r} would share the folder {run.folder!r}"
                raise ConfigError(f"{cause}; make them differ in more than case and punctuation")
        return runs

    def _labels(self) -> list[str]:
        from netfleet.algorithms.build import algorithm_label

        labels = [algorithm_label(table) for table in self.algorithms]
        for label in labels:
            if labels.count(label) > 1:
                advice = f'give each a label of its own, for example label = "{label}, K = 5"'
                raise ConfigError(f"two algorithms are called {label!r}; {advice}")
        return labels

    def _resolved(self, algorithm: Table) -> Table:
        algorithm = {key: value for key, value in algorithm.items() if key != "label"}
        table = {"rounds": self.rounds, "topology": self.topology, "problem": self.problem, "algorithm": algorithm}
        table |= {"evaluation": self.evaluation.to_table(), "dtype": self.engine.dtype}
        table |= {"contract": without_none(asdict(self.contract))} if self.contract else {}
        table |= {"network": asdict(self.network)} if self.network else {}
        table |= {"time_box": without_none(asdict(self.time_box))} if self.time_box else {}
        return table | ({"privacy": self.privacy.to_table()} if self.privacy else {})

    def to_table(self) -> Table:
        """The experiment with every default written out, as an experiment file would say it."""
        table = asdict(self) | {"evaluation": self.evaluation.to_table()}
        if not self.track:  # as in earlier versions
            del table["track"]
        return {key: list(value) if isinstance(value, tuple) else value for key, value in table.items()}

    def to_toml(self) -> str:
        """The same as the text of an experiment file."""
        return tomli_w.dumps(without_none(self.to_table()))

    @property
    def hash(self) -> str:
        return config_hash([run.hash for run in self.runs()])

    def __repr__(self) -> str:
        parts = f"{self.topology.get('kind')}, {self.topology.get('workers')} workers, {self.problem.get('kind')}"
        seeds = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        methods = ", ".join(str(table.get("label") or table.get("kind")) for table in self.algorithms)
        return f"<Experiment {self.name!r}: {methods}; {parts}; {self.rounds} rounds, {seeds}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.to_toml())}</pre>"


def without_none(value: Any) -> Any:
    """Nested tables without their None entries, which TOML cannot express."""
    if isinstance(value, Mapping):
        return {key: without_none(inner) for key, inner in value.items() if inner is not None}
    return [without_none(inner) for inner in value] if isinstance(value, list | tuple) else value


def config_hash(config: Any) -> str:
    """SHA-256 over canonical JSON (sorted keys, no spaces)."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def load_experiment(path: str | Path | None = None, overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment file (None: the embedded demo), apply `key=value` overrides, and check all of it.

    Modules beside the file and in the current folder can be named in it from then on.
    """
    make_importable(None if path is None else str(path))
    return experiment(read_experiment(path, overrides))


def read_experiment(path: str | Path | None = None, overrides: Sequence[str] = ()) -> Table:
    """An experiment file with its overrides as a table, not yet checked."""
    if not (path is None or isinstance(path, str | os.PathLike)):
        raise ConfigError(f'an experiment file must be a path, got {shown(path)}; give a text such as "ring.toml"')
    if not isinstance(overrides, list | tuple) or not all(isinstance(text, str) for text in overrides):
        raise ConfigError(f'overrides must be a list of texts, got {shown(overrides)}; for example ["rounds=50"]')
    return parse_overrides(overrides, read_toml(path))


def experiment(table: Mapping[str, Any]) -> Experiment:
    """A parsed experiment file as an `Experiment`, every part resolved against its registry."""
    algorithms = table.get("algorithms", [{"kind": "net-fleet"}])
    algorithms = [algorithms] if isinstance(algorithms, Mapping) else algorithms
    if not isinstance(algorithms, list) or not algorithms:
        raise ConfigError(f"algorithms must be one or more [[algorithms]] tables, got {algorithms!r}")
    given = {
        **table,
        "topology": resolve_topology({"kind": "erdos-renyi", **_table(table, "topology")}),
        "problem": resolve_problem({"kind": "classification", **_table(table, "problem")}),
        "algorithms": tuple(resolve_method(a) for a in algorithms),
        "evaluation": make(Evaluation, _table(table, "evaluation"), "[evaluation]"),
        "engine": make_engine_config(_table(table, "engine"), "[engine]"),
    }
    if "network" in table:
        faults = make(Faults, _table(table, "network"), "[network]")
        given["network"] = faults if faults.any else None
    if "privacy" in table:
        given["privacy"] = make(Privacy, _table(table, "privacy"), "[privacy]")
    if "time_box" in table:
        given["time_box"] = make(TimeBox, _table(table, "time_box"), "[time_box]")
    if "contract" in table:
        given["contract"] = make_contract(_table(table, "contract"))
    if "track" in table:
        given["track"] = resolve_trackers(table["track"])
    if "seed" in given:
        raise ConfigError(f"write seeds = [{given['seed']}] instead of seed = {given['seed']}")
    return check_experiment(given)


def check_experiment(given: Mapping[str, Any]) -> Experiment:
    """An experiment from its resolved parts, which must fit."""
    result = make(Experiment, given, "the experiment")
    _at_least("rounds", result.rounds, 1)
    _at_least("checkpoint_every", result.checkpoint_every, 1)
    if not result.seeds or len(set(result.seeds)) < len(result.seeds) or not all(0 <= s < 2**63 for s in result.seeds):
        raise ConfigError(f"seeds must be one or more different whole numbers from 0 on, got {list(result.seeds)}")
    if result.privacy is not None and result.privacy.exact_rounds >= result.rounds:
        cause = (
            f"privacy.exact_rounds = {result.privacy.exact_rounds} leaves none of the {result.rounds} rounds with noise"
        )
        raise ConfigError(f"{cause}; use fewer, or leave link_noise out")
    result.runs()  # labels must differ
    return result


def make(cls: type[T], table: Mapping[str, Any], where: str) -> T:
    """A dataclass from a table; an unknown, missing or ill-typed key is an error that names it."""
    hints = parameters(cls)
    for key, value in table.items():
        if key not in hints:
            known = f"{suggestion(key, hints)}; known: {', '.join(sorted(hints))}"
            raise ConfigError(f"unknown key {key!r} in {where}{known}")
        check_type(value, hints[key].annotation, f"{key} in {where}")
    for key, hint in hints.items():
        if hint.default is hint.empty and key not in table:
            raise ConfigError(f"{where} needs {key!r}; add {key} = …")
    return cls(**{key: tuple(v) if isinstance(v, list) else v for key, v in table.items()})


def make_contract(table: Mapping[str, Any]) -> Contract:
    """A [contract] table."""
    parts = {key: make(TensorContract, _table(table, key), f"contract.{key}") for key in _TENSORS if key in table}
    return make(Contract, {**table, **parts}, "[contract]")


def make_engine_config(table: Mapping[str, Any], where: str) -> EngineConfig:
    """An [engine] table; it may have what earlier versions wrote: kind = "peers", and backend = "auto"."""
    known = {key: value for key, value in table.items() if (key, value) != ("backend", "auto")}
    if known.get("kind") == "peers":
        known["kind"] = "threads"
    return make(EngineConfig, known, where)


def resolve_topology(table: Table) -> Table:
    """A [topology] table with every default written out."""
    weights = table.pop("weights", None)
    graph = GRAPHS.resolve(table, {"seed": None})
    if isinstance(graph.get("base"), str | Mapping):
        graph["base"] = GRAPHS.resolve(graph["base"], {"seed": None, "workers": None})
    if weights is not None or not varies(graph["kind"]):
        graph["weights"] = WEIGHTS.resolve(weights or "laplacian", dict.fromkeys(GIVEN))
    return graph


def resolve_problem(table: Table) -> Table:
    """A [problem] table with every default written out."""
    from netfleet.data import PARTITIONS, SOURCES
    from netfleet.problems import LOSSES, PROBLEMS
    from netfleet.problems.models import MODELS
    from netfleet.problems.site_weights import resolve_weights

    nested: dict[str, Registry[Any]] = {"data": SOURCES, "partition": PARTITIONS, "model": MODELS, "loss": LOSSES}
    weights = resolve_weights(table.pop("weights", "equal"))
    resolved = PROBLEMS.resolve(table, dict.fromkeys(GIVEN)) | {"weights": weights}
    for key, registry in nested.items():
        if key in resolved:
            given = () if key == "data" else GIVEN  # a source gets nothing but what the file says
            resolved[key] = registry.resolve(resolved[key], dict.fromkeys(given))
    return resolved


def resolve_method(table: Any) -> Table:
    """An [[algorithms]] table with every default written out; its label is kept."""
    from netfleet.algorithms import ALGORITHMS
    from netfleet.algorithms.build import algorithm_label, make_algorithm, resolve_algorithm

    kind, params = split(table, "algorithm")
    label = params.pop("label", None)
    if label is not None:
        check_type(label, str, f"algorithm {kind!r}: label")
    resolved = resolve_algorithm({"kind": kind, **params})
    make_algorithm(resolved)  # refuses K < 1 or a negative step size before anything runs
    if label is None and kind in ALGORITHMS.aliases:
        label = algorithm_label({"kind": kind})
    return resolved | ({"label": label} if label else {})


def _table(parent: Mapping[str, Any], key: str) -> Table:
    value = parent.get(key, {})
    if not isinstance(value, Mapping):
        raise ConfigError(f"[{key}] must be a table, got {value!r}")
    return dict(value)


def read_toml(path: str | Path | None) -> Table:
    """The table of a TOML file; None: of the embedded demo."""
    file = resources.files("netfleet.runs") / "demo.toml" if path is None else Path(path)
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}; correct the file there") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ConfigError(f"cannot read {str(path)!r}: {reason}; check the path, and that it is a text file") from None


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, got {value}")
