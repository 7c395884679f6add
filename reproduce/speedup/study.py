"""A study of linear speedup: what is varied, the runs that this makes, and their numbers.

A study is one TOML file in reproduce/speedup:

    title = "quadratics"            # and the base of all its lines
    workers = [1, 2, 4, 8]          rounds = [256, 1024]        seeds = [0, 1, 2]
    scale = 0.05                    # η = scale · √(m / (SK))
    problem = {kind = "quadratics", sigma = 10.0}               topology = {kind = "erdos-renyi", p = 0.5}
    [[lines]]                       # one or more: what is compared
    label = "K = 4, on a ring"      K = 4                       topology = {kind = "ring"}
"""

import copy
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from netfleet.compute.threads import one_intra_op_thread
from netfleet.errors import ConfigError
from netfleet.files import write_atomically
from netfleet.gradients.paths import Sample
from netfleet.problems.base import Problem
from netfleet.runs.build import Setting, build_job, build_setting
from netfleet.runs.config import Experiment, config_hash, experiment, make, read_toml
from netfleet.runs.metrics import measure_objective
from netfleet.runs.progress import Display
from netfleet.runs.run import run_one
from netfleet.theory import bounds as theory
from netfleet.theory.estimates import Survey, survey
from reproduce.panels import merged
from reproduce.runs import Work

#: The studies' folder beside the panels, their name on the command line, and that of their picture.
NAME = "speedup"


@dataclass(frozen=True)
class Line:
    """What is compared within a study, and how it differs from the study's own settings."""

    label: str
    algorithm: str = "net-fleet"
    K: int = 0  # local steps; 0: the corollary's
    most_steps: int = 0  # 0: the study's
    problem: Mapping[str, Any] = field(default_factory=dict)
    topology: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """What is varied, and what stays."""

    title: str
    problem: Mapping[str, Any]
    topology: Mapping[str, Any]
    workers: Sequence[int]
    rounds: Sequence[int]
    scale: float
    seeds: Sequence[int]
    lines: Sequence[Line]
    most_steps: int = 1 << 30  # points of more local steps are left out
    least_steps: int = 0  # as are points of fewer, which still depend on where they began
    most_gradients: int = 1 << 60  # and points of more gradients mSK, which take too long
    measures: int = 1000  # the metric is taken at about so many of a run's gradients
    samples: int = 0  # from so many samples; 0: all
    fixed: int = 0  # the picture shows the metric after so many rounds; 0: the rounds to a metric
    name: str = ""

    def __post_init__(self) -> None:
        for key, values in (("workers", self.workers), ("rounds", self.rounds), ("seeds", self.seeds)):
            if not values or min(values) < (key != "seeds"):
                raise ConfigError(f"{key} must be a list of whole numbers, got {list(values)}")
        if not self.scale > 0 or self.measures < 1 or self.samples < 0:
            given = f"scale = {self.scale}, measures = {self.measures}, samples = {self.samples}"
            raise ConfigError(f"a study needs scale > 0, measures >= 1 and samples >= 0, got {given}")
        if self.fixed and self.fixed not in self.rounds:
            raise ConfigError(f"fixed, the rounds that are drawn, must be one of {list(self.rounds)}, got {self.fixed}")
        labels = {line.label for line in self.lines}
        if len(labels) < len(self.lines) or min(line.K for line in self.lines) < 0:
            raise ConfigError(f"lines need K >= 0 (0: the corollary's) and labels of their own, got {self.lines}")

    def points(self) -> "Iterator[Point]":
        """Every run of the study, the cheap ones first."""
        for S in sorted(self.rounds):
            for m in sorted(self.workers):
                for line in self.lines:
                    K, eta = theory.corollary(m, S, self.scale, line.K)
                    fits = self.least_steps <= S * K <= (line.most_steps or self.most_steps)
                    if fits and m * S * K <= self.most_gradients:
                        yield from (Point(self, line, m, S, K, eta, seed) for seed in self.seeds)


class Point(NamedTuple):
    study: Study
    line: Line
    m: int
    S: int
    K: int
    eta: float
    seed: int

    @property
    def label(self) -> str:
        return f"{self.study.name}, {self.line.label}, m = {self.m}, S = {self.S}, seed {self.seed}"

    @property
    def experiment(self) -> Experiment:
        """The run as an experiment that is measured at its end only."""
        base, own = ({"topology": of.topology, "problem": of.problem} for of in (self.study, self.line))
        table = merged(base, own) | {"rounds": self.S, "seeds": [self.seed]}
        table["topology"] = {**table["topology"], "workers": self.m}
        table["algorithms"] = [{"kind": self.line.algorithm, "K": self.K, "eta": self.eta}]
        return experiment(table | {"evaluation": {"every": self.S, "gradient": False}})

    @property
    def hash(self) -> str:
        """Of everything that the point's number is a function of."""
        (run,) = self.experiment.runs()
        return config_hash({"run": run.config, "stride": self.stride, "samples": self.study.samples})

    @property
    def stride(self) -> int:
        """The metric is taken at every so many gradients: at all local steps in turn, as it has no divisor with K."""
        stride = max(1, self.S * self.K // self.study.measures)
        while math.gcd(stride, self.K) > 1:
            stride += 1
        return stride

    @property
    def work(self) -> Work:
        """What it costs: mostly a fixed price for each local step."""
        return Work(self.S, float(self.K), (self.study.name, self.m))


def load_study(path: Path) -> Study:
    table = read_toml(path)
    try:
        lines = table.get("lines")
        if not isinstance(lines, list) or not lines or not all(isinstance(line, Mapping) for line in lines):
            raise ConfigError(f"a study needs one or more [[lines]], got {lines!r}")
        lines = [make(Line, line, "[[lines]]") for line in lines]
        return make(Study, table | {"lines": lines, "name": path.stem}, str(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def find_studies(source: Path, seeds: int | None = None) -> list[Study]:
    studies = [load_study(path) for path in sorted((source / NAME).glob("*.toml"))]
    if not studies:
        raise ConfigError(f"no studies (*.toml) in {str(source / NAME)!r}; run this in a checkout of netfleet")
    return [replace(s, seeds=range(s.seeds[0], s.seeds[0] + seeds)) if seeds else s for s in studies]


def choose(studies: Sequence[Study], names: Sequence[str]) -> list[Study]:
    """The studies that names ask for: "speedup" (all) or "speedup-STUDY"."""
    known = {f"{NAME}-{study.name}": study for study in studies}
    for name in names:
        if name != NAME and name not in known:
            raise ConfigError(f"unknown study {name!r}; there are {NAME} (all of them), {', '.join(known)}")
    return [study for name, study in known.items() if NAME in names or name in names]


class Results(dict[str, float]):
    """The averaged metric of points by their hash, in a file; infinite if a point diverged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            super().__init__(json.loads(path.read_text(encoding="utf-8")) if path.exists() else {})
        except (ValueError, TypeError) as error:
            words = f"{path} does not hold a study's results ({error}); delete it to make them again"
            raise ConfigError(words) from None

    def keep(self, point: Point, value: float) -> None:
        """Add a number and save it, so that an interruption loses one point."""
        self[point.hash] = float(f"{value:.6g}")
        text = "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(self.items())) + "\n}\n"
        write_atomically(self.path, lambda file: file.write(text.encode()))


def averaged_metric(point: Point, display: Display) -> float:
    """The left-hand side of Theorem 1 for one run; infinite if it diverges."""
    given = point.experiment
    (run,) = given.runs()
    built = build_setting(given, point.seed)
    watched = Watched(built.problem, point.stride, point.study.samples)
    job = build_job(run.config["algorithm"], run.seed, given, Setting(built.topology, watched.problem))
    history = run_one(given, run, lambda: job, None, display, label=point.label)
    return math.inf if history.diverged else watched.total / watched.count


class Watched:
    """A problem whose gradients are watched: methods ask for them at x_{s,k}, one after the other.

    Every so many of them the metric is taken, in the middle of each stretch. Where a problem does not know its L, it is
    taken with L = 1.
    """

    def __init__(self, problem: Problem, stride: int, samples: int = 0) -> None:
        self.total, self.count, self._calls, self._stride, self._samples = 0.0, 0, 0, stride, samples
        self._inner, self.problem = problem, copy.copy(problem)
        self.problem.grad = self._grad  # type: ignore[method-assign]
        self._L = 1.0 if problem.smoothness is None else problem.smoothness

    def _grad(self, x: Tensor, sample: Sample) -> Tensor:
        if self._calls % self._stride == self._stride // 2:
            found = measure_objective(self._inner, x.mean(dim=0), self._samples)
            self.total += theory.metric(found["grad_norm2"], x, self._L)
            self.count += 1
        self._calls += 1
        return self._inner.grad(x, sample)


@one_intra_op_thread()
def margin(study: Study, results: Results) -> tuple[int, float, float] | None:
    """How NET-FLEET's runs compare with Theorem 1 at their own η; None where constants are not known.

    Their number, the largest of metric ÷ right-hand side, and the largest of η ÷ what the theorem admits.
    """
    surveys: dict[str, Survey] = {}
    ratios, excesses = [], []
    for point in study.points():
        value, given = results.get(point.hash), point.experiment
        if value is None or point.line.algorithm != "net-fleet":
            continue
        if "data" in given.problem:  # the minimum is not known, and drawing must not need the data
            return None
        setting = build_setting(given, point.seed)
        if setting.problem.optimum is None or setting.problem.variance is None:
            return None
        key = config_hash({"problem": given.problem, "workers": point.m, "seed": point.seed})
        surveys[key] = surveys.get(key) or survey(setting.problem)
        c = surveys[key].constants(point.m, setting.topology.lam)
        ratios.append(value / theory.bound(c, point.eta, point.K, point.S).total)
        excesses.append(point.eta / theory.largest_step(c, point.K)[0])
    return (len(ratios), max(ratios), max(excesses)) if ratios else None


def margins(found: Sequence[tuple[Study, Results]]) -> list[str]:
    """How the runs whose constants are known compare with Theorem 1, a sentence for each study."""
    return [
        f"{study.title}: {m[0]} runs of NET-FLEET, with η up to {m[2]:,.0f} times what Theorem 1 admits, are at most "
        f"{m[1]:.2g} of its right-hand side"
        for study, results in found
        if (m := margin(study, results)) is not None
    ]
