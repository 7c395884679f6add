"""Linear speedup, measured: the averaged metric of Theorem 1 over workers m and rounds S, with η and K by Corollary 2.

A study is one TOML file in reproduce/speedup:

    title = "quadratics"            # and the base of all its lines
    workers = [1, 2, 4, 8]          rounds = [256, 1024]        seeds = [0, 1, 2]
    scale = 0.05                    # η = scale · √(m / (SK))
    problem = {kind = "quadratics", sigma = 10.0}               topology = {kind = "erdos-renyi", p = 0.5}
    [[lines]]                       # one or more: what is compared
    label = "K = 4, on a ring"      K = 4                       topology = {kind = "ring"}

A point is one run; its averaged metric is kept by the hash of its config in NAME.json beside the file, so an
interruption loses one point.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats
from torch import Tensor

from netfleet.errors import ConfigError
from netfleet.files import write_atomically
from netfleet.gradients.paths import Sample
from netfleet.problems.base import Problem
from netfleet.runs.build import Setting, build_job, build_setting
from netfleet.runs.config import Experiment, RunConfig, Table, config_hash, experiment, make, read_toml
from netfleet.runs.progress import Display, Quiet
from netfleet.runs.run import run_one
from netfleet.theory import bounds as theory
from netfleet.theory.estimates import survey
from reproduce.panels import merged
from reproduce.progress import Work

#: A metric of so many times the study's median counts as diverged, though it is still finite.
DIVERGED = 1e4


@dataclass(frozen=True)
class Line:
    """What is compared within a study, and how it differs from the study's own settings."""

    label: str
    algorithm: str = "net-fleet"
    #: Local steps instead of the corollary's.
    K: int = 0
    #: The study's unless given.
    most_steps: int = 0
    problem: Mapping[str, Any] = field(default_factory=dict)
    topology: Mapping[str, Any] = field(default_factory=dict)


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
    lines: list[Any]
    #: Points of more local steps are left out, and of fewer, which have not forgotten where they began.
    most_steps: int = 1 << 30
    least_steps: int = 0
    #: Points of more gradients mSK than this are left out as too dear; 0: none.
    most_gradients: int = 0
    #: The metric is taken at about so many of a run's gradients, from so many samples (0: all).
    measures: int = 1000
    samples: int = 0
    #: The metric to which rounds are counted; 0: what the fewest workers reach on every line.
    target: float = 0.0
    #: Rather than the rounds to a metric, the picture shows the metric after so many rounds.
    fixed: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        for key in ("workers", "rounds", "seeds"):
            values = getattr(self, key)
            if not values or [v for v in values if not isinstance(v, int) or v < (key != "seeds")]:
                raise ConfigError(f"{key} must be a list of whole numbers, got {list(values)}")
        if not self.scale > 0 or self.measures < 1 or min(self.target, self.samples, self.most_gradients) < 0:
            given = (
                f"scale = {self.scale}, measures = {self.measures}, samples = {self.samples}, target = {self.target}"
            )
            raise ConfigError(f"a study needs scale > 0, measures >= 1, samples >= 0 and target >= 0, got {given}")
        if self.fixed and self.fixed not in self.rounds:
            raise ConfigError(f"fixed, the rounds that are drawn, must be one of {list(self.rounds)}, got {self.fixed}")
        if not self.lines or [line for line in self.lines if not isinstance(line, Mapping)]:
            raise ConfigError(f"a study needs one or more [[lines]], got {self.lines!r}")
        made = [make(Line, line, "[[lines]]") for line in self.lines]
        if [line for line in made if line.K < 0] or len({line.label for line in made}) < len(made):
            raise ConfigError(f"lines need K >= 0 (0: the corollary's) and labels of their own, got {made}")
        object.__setattr__(self, "lines", made)

    def points(self) -> Iterator[Point]:
        """Every run of the study, the cheap ones first."""
        for S in sorted(self.rounds):
            for m in sorted(self.workers):
                for line in self.lines:
                    K, eta = theory.corollary(m, S, self.scale, line.K)
                    fits = self.least_steps <= S * K <= (line.most_steps or self.most_steps)
                    if fits and (not self.most_gradients or m * S * K <= self.most_gradients):
                        yield from (Point(self, line, m, S, K, eta, seed) for seed in self.seeds)


class Point(NamedTuple):
    """One run."""

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
        base, line = ({key: getattr(of, key) for key in ("topology", "problem")} for of in (self.study, self.line))
        whole = merged(base, line)
        return experiment(
            {
                "topology": whole["topology"] | {"workers": self.m},
                "problem": whole["problem"],
                "algorithms": [{"kind": self.line.algorithm, "K": self.K, "eta": self.eta}],
                "rounds": self.S,
                "seeds": [self.seed],
                "evaluation": {"every": self.S, "gradient": False},
            }
        )

    @property
    def run(self) -> RunConfig:
        (run,) = self.experiment.runs()
        return run

    @property
    def config(self) -> Table:
        """All that the point's number is a function of."""
        return {"run": self.run.config, "stride": self.stride, "samples": self.study.samples}

    @property
    def stride(self) -> int:
        """The metric is taken at every so many gradients: all local steps in turn, as it has no divisor with K."""
        stride = max(1, self.S * self.K // self.study.measures)
        while math.gcd(stride, self.K) > 1:
            stride += 1
        return stride

    @property
    def work(self) -> Work:
        """What it costs: mostly a fixed price for each local step."""
        return Work(self.S, float(self.K), (self.study.name, self.m))


class Results(dict[str, float]):
    """The averaged metric of points by the hash of their config, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            super().__init__(json.loads(path.read_text(encoding="utf-8")) if path.exists() else {})
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{path} does not hold a study's results ({error}); delete it to make them again"
            ) from None

    def of(self, point: Point) -> float | None:
        """What was measured; infinite if it diverged."""
        return self.get(config_hash(point.config))

    def keep(self, point: Point, value: float) -> None:
        """Add a number and make it durable."""
        self[config_hash(point.config)] = float(f"{value:.6g}")
        text = "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(self.items())) + "\n}\n"
        write_atomically(self.path, lambda file: file.write(text.encode()))


def within(m: int, S: float, K: int, times: float = 1.0) -> bool:
    """S ≥ times · (mK)³."""
    return times * (m * K) ** 3 <= S


class Row(NamedTuple):
    """The points of one line, m and S, over seeds."""

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

    def inside(self, times: float = 1.0) -> bool:
        """Whether K is at most the corollary's S^⅓/m, that is, S ≥ (mK)³, or so many times that."""
        return within(self.m, self.S, self.K, times)


class Interval(NamedTuple):
    """A mean over seeds with its 95 % confidence interval (Student's); with one seed there is none."""

    mean: float
    half: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        n = len(values)
        half = stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / math.sqrt(n) if n > 1 else None
        return cls(float(np.mean(values)), None if half is None else float(half))


class Fit(NamedTuple):
    """Power laws through rows: the metric goes as (mSK)^work, and as m^workers (SK)^steps."""

    work: Interval
    factor: float
    workers: Interval | None  # None where m and SK were not varied independently
    steps: Interval | None

    def at(self, work: float) -> float:
        """The metric by the law in mSK."""
        return float(self.factor * work**self.work.mean)


def find_studies(folder: Path) -> list[Study]:
    """Every study of a folder, by name."""
    return [load_study(path) for path in sorted(folder.glob("*.toml"))]


def load_study(path: Path) -> Study:
    """Read and check a study."""
    table = read_toml(path)
    try:
        return make(Study, table | {"name": path.stem}, str(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def perform(points: Sequence[tuple[Point, Results]], display: Display | None = None) -> None:
    """Make points and keep their numbers."""
    for point, results in points:
        results.keep(point, averaged_metric(point, display or Quiet()))


def averaged_metric(point: Point, display: Display) -> float:
    """The left-hand side of Theorem 1 for one run; infinite if it diverges."""
    built = build_setting(point.experiment, point.seed)
    watched = Watched(built.problem, point.stride, point.study.samples)
    setting = Setting(built.topology, watched.problem)
    job = build_job(point.run.config["algorithm"], point.run.seed, point.experiment, setting)
    history = run_one(point.experiment, point.run, lambda: job, None, display, label=point.label)
    return float("inf") if history.diverged else watched.total / watched.count


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
            slope = self._inner.objective(x.mean(dim=0), self._samples)[1]
            self.total += theory.metric(slope, x, self._L)
            self.count += 1
        self._calls += 1
        return self._inner.grad(x, sample)


def rows(study: Study, results: Results) -> dict[str, list[Row]]:
    """What was measured of each line, by m and S; points that are missing are left out, huge ones have diverged."""
    found: dict[str, dict[tuple[int, int, int, float], list[float]]] = {line.label: {} for line in study.lines}
    known = [(point, value) for point in study.points() if (value := results.of(point)) is not None]
    most = DIVERGED * float(np.median([value for _, value in known])) if known else 0.0
    for point, value in known:
        found[point.line.label].setdefault(point[2:6], []).append(value if value <= most else math.inf)
    return {label: [Row(*key, tuple(values)) for key, values in line.items()] for label, line in found.items()}


def fit(measured: Sequence[Row]) -> Fit | None:
    """Least squares of the logarithms, each seed by itself, as its points share their functions; None without three."""
    finite = [row for row in measured if np.isfinite(row.mean)]
    seeds = min((len(row.values) for row in finite), default=0)
    if len(finite) < 3:
        return None
    m, SK = np.log([row.m for row in finite]), np.log([row.S * row.K for row in finite])
    y = np.log([row.values[:seeds] for row in finite])  # [rows, seeds]
    laws = _solve([m + SK], y)
    if laws is None:
        return None
    both = _solve([m, SK], y)
    slope = float(np.mean(laws[1]))
    factor = float(np.exp(np.mean(np.log([row.mean for row in finite]) - slope * (m + SK))))  # amid the rows' means
    workers, steps = (None, None) if both is None else (Interval.of(both[1]), Interval.of(both[2]))
    return Fit(Interval.of(laws[1]), factor, workers, steps)


def _solve(variables: Sequence[npt.NDArray[np.float64]], y: npt.NDArray[np.float64]) -> npt.NDArray[np.float64] | None:
    """The constant and the exponents of each seed, `[1 + variables, seeds]`; None where rows do not tell them apart."""
    X = np.stack([np.ones(len(y)), *variables], axis=1)
    if len(X) <= X.shape[1] or np.linalg.matrix_rank(X) < X.shape[1]:
        return None
    return np.asarray(np.linalg.lstsq(X, y, rcond=None)[0])


def reachable(lines: Mapping[str, Sequence[Row]]) -> float:
    """The least metric that the fewest workers reach on every line."""
    fewest = min(row.m for measured in lines.values() for row in measured)
    best = [min((row.mean for row in measured if row.m == fewest), default=0.0) for measured in lines.values()]
    return max(best)


class Needed(NamedTuple):
    """Rounds to a metric: interpolated, or at most so many where the fewest rounds that were run are enough."""

    rounds: float
    at_most: bool


def rounds_to(measured: Sequence[Row], eps: float) -> dict[int, Needed | None]:
    """For each m the rounds S at which the metric is ε; None where the most rounds that were run are too few."""
    found: dict[int, Needed | None] = {}
    for m in sorted({row.m for row in measured}):
        line = sorted((row.S, row.mean) for row in measured if row.m == m and np.isfinite(row.mean))
        S, metric = np.log([s for s, _ in line]), np.log([v for _, v in line])
        falls = np.minimum.accumulate(metric)
        if not len(falls) or np.log(eps) < falls[-1] - 1e-9:
            found[m] = None
        else:
            rounds = float(np.exp(np.interp(-np.log(eps), -falls, S)))
            found[m] = Needed(rounds, bool(np.log(eps) > falls[0]))
    return found


class Margin(NamedTuple):
    """How runs compare with Theorem 1."""

    runs: int
    ratio: float  # the largest of the averaged metric over the right-hand side
    excess: float  # the largest of η over what the theorem admits


def margin(study: Study, results: Results) -> Margin | None:
    """NET-FLEET's runs beside the right-hand side of Theorem 1 at their own η; None where constants are not known."""
    known: dict[tuple[str, int, int], theory.Constants | None] = {}
    ratios, excesses = [], []
    for point in study.points():
        value, key = results.of(point), (point.line.label, point.m, point.seed)
        if value is None or point.line.algorithm != "net-fleet":
            continue
        if key not in known:
            known[key] = _constants(point)
        if (c := known[key]) is None:
            return None
        ratios.append(value / theory.bound(c, point.eta, point.K, point.S).total)
        excesses.append(point.eta / theory.largest_step(c, point.K)[0])
    return Margin(len(ratios), max(ratios), max(excesses)) if ratios else None


def _constants(point: Point) -> theory.Constants | None:
    if "data" in point.experiment.problem:  # their minimum is not known, and drawing must not need them
        return None
    setting = build_setting(point.experiment, point.seed)
    if setting.problem.optimum is None or setting.problem.variance is None:
        return None
    return survey(setting.problem).constants(setting.topology.m, setting.topology.lam)
