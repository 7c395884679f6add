"""Linear speedup, measured: the averaged metric of Theorem 1 over workers m and rounds S, with η and K by Corollary 2.

    title = "quadratics"            # a study: one TOML file in reproduce/speedup
    workers = [1, 2, 4, 8]          rounds = [256, 1024]        seeds = [0, 1, 2]
    scale = 0.05                    # η = scale · √(m / (SK))
    problem = {kind = "quadratics", sigma = 10.0}               topology = {kind = "erdos-renyi", p = 0.5}

A point is one run; its mean metric is kept by the hash of its config in NAME.json beside the file, so an interruption
loses one point.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats
from torch import Tensor

from netfleet import theory
from netfleet.checkpoint import write_atomically
from netfleet.config import EngineConfig, Evaluation, Table, config_hash, make, read_toml
from netfleet.errors import ConfigError, DivergedError
from netfleet.experiment import build_problem, build_topology, simulate
from netfleet.problems.base import Problem, Sample
from netfleet.progress import Display, Quiet


@dataclass(frozen=True)
class Study:
    """What is varied, and what stays."""

    title: str
    problem: Mapping[str, Any]
    topology: Mapping[str, Any]
    workers: list[Any]
    rounds: list[Any]
    scale: float
    seeds: list[Any]
    algorithm: str = "net-fleet"
    #: Local steps instead of the corollary's.
    K: int = 0
    #: The metric is taken at every so many gradients.
    stride: int = 1

    def __post_init__(self) -> None:
        for name in ("workers", "rounds", "seeds"):
            values = getattr(self, name)
            if not values or [v for v in values if not isinstance(v, int) or v < (name != "seeds")]:
                raise ConfigError(f"{name} must be a list of whole numbers, got {list(values)}")
        if not self.scale > 0 or self.stride < 1 or self.K < 0:
            given = f"scale = {self.scale}, stride = {self.stride}, K = {self.K}"
            raise ConfigError(f"a study needs scale > 0, stride >= 1 and K >= 0 (0: the corollary's), got {given}")

    def points(self) -> Iterator[Point]:
        """Every run of the study, the cheap ones first."""
        for S in sorted(self.rounds):
            for m in sorted(self.workers):
                for seed in self.seeds:
                    yield Point(m, S, *theory.corollary(m, S, self.scale, self.K), seed)

    def config(self, point: Point) -> Table:
        """All that a point's number is a function of."""
        fixed = {key: getattr(self, key) for key in ("problem", "topology", "algorithm", "stride")}
        return fixed | point._asdict()


class Point(NamedTuple):
    """One run."""

    m: int
    S: int
    K: int
    eta: float
    seed: int


class Results(dict[str, float]):
    """The mean metric of points by the hash of their config, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(json.loads(path.read_text(encoding="utf-8")) if path.exists() else {})

    def keep(self, key: str, value: float) -> None:
        """Add a number and make it durable."""
        self[key] = float(f"{value:.6g}")
        text = "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(self.items())) + "\n}\n"
        write_atomically(self.path, lambda file: file.write(text.encode()))


class Row(NamedTuple):
    """The points of one m and S, over seeds."""

    m: int
    S: int
    K: int
    eta: float
    values: tuple[float, ...]

    @property
    def work(self) -> int:
        """mSK: gradients taken by all workers."""
        return self.m * self.S * self.K

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))


class Fit(NamedTuple):
    """A power law through rows: the metric falls as (mSK)^slope."""

    slope: float
    low: float  # of the 95 % confidence interval
    high: float
    factor: float

    def at(self, work: float) -> float:
        """The fitted metric."""
        return float(self.factor * work**self.slope)


def load_study(path: Path) -> Study:
    """Read and check a study."""
    try:
        return make(Study, read_toml(path), str(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def perform(study: Study, results: Results, display: Display | None = None) -> None:
    """Make the points that are missing."""
    display = display or Quiet()
    todo = [point for point in study.points() if config_hash(study.config(point)) not in results]
    display.begin(study.title, 0, len(todo))
    for done, point in enumerate(todo, 1):
        results.keep(config_hash(study.config(point)), averaged_metric(study, point))
        display.round(done)
    display.end()


def averaged_metric(study: Study, point: Point) -> float:
    """The left-hand side of Theorem 1 for one run; infinite if it diverges."""
    topology = build_topology({**study.topology, "workers": point.m}, point.seed)
    problem = build_problem(study.problem, point.m, point.seed, EngineConfig())
    watched = Watched(problem, study.stride)
    spec = {"kind": study.algorithm, "eta": point.eta, "K": point.K}
    evaluation = Evaluation(every=point.S, gradient=False)
    try:
        simulate(spec, topology=topology, problem=watched.problem, rounds=point.S, evaluation=evaluation)
    except DivergedError:
        return float("inf")
    return watched.total / watched.count


class Watched:
    """A problem whose gradients are watched: methods ask for them at x_{s,k}, one after the other."""

    def __init__(self, problem: Problem, stride: int) -> None:
        self.total, self.count, self._calls, self._stride = 0.0, 0, 0, stride
        self._inner, self.problem = problem, copy.copy(problem)
        self.problem.grad = self._grad  # type: ignore[method-assign]
        self._L = 1.0 if problem.smoothness is None else problem.smoothness

    def _grad(self, x: Tensor, sample: Sample) -> Tensor:
        if self._calls % self._stride == 0:
            self.total += theory.metric(self._inner.objective(x.mean(dim=0))[1], x, self._L)
            self.count += 1
        self._calls += 1
        return self._inner.grad(x, sample)


def rows(study: Study, results: Results) -> list[Row]:
    """What was measured, by m and S; points that are missing are left out."""
    found: dict[tuple[int, int, int, float], list[float]] = {}
    for point in study.points():
        value = results.get(config_hash(study.config(point)))
        if value is not None:
            found.setdefault(point[:4], []).append(value)
    return [Row(*key, tuple(values)) for key, values in found.items()]


def fit(measured: list[Row]) -> Fit:
    """Least squares of log metric over log mSK, with Student's confidence interval."""
    x, y = np.log([row.work for row in measured]), np.log([row.mean for row in measured])
    line = stats.linregress(x, y)
    half = float(stats.t.ppf(0.975, len(x) - 2) * line.stderr)
    return Fit(float(line.slope), float(line.slope) - half, float(line.slope) + half, float(np.exp(line.intercept)))


def rounds_to(measured: list[Row], eps: float) -> dict[int, float]:
    """For each m the rounds S at which the metric is ε, interpolated between those that were run."""
    found = {}
    for m in sorted({row.m for row in measured}):
        line = sorted((row.S, row.mean) for row in measured if row.m == m)
        S, metric = np.log([s for s, _ in line]), np.log([v for _, v in line])
        if metric[-1] <= np.log(eps) <= metric[0]:
            found[m] = float(np.exp(np.interp(-np.log(eps), -metric, S)))
    return found
