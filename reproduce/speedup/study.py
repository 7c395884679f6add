"""A study of linear speedup: what is varied, and the runs that this makes.

A study is one TOML file in reproduce/speedup:

    title = "quadratics"            # and the base of all its lines
    workers = [1, 2, 4, 8]          rounds = [256, 1024]        seeds = [0, 1, 2]
    scale = 0.05                    # η = scale · √(m / (SK))
    problem = {kind = "quadratics", sigma = 10.0}               topology = {kind = "erdos-renyi", p = 0.5}
    [[lines]]                       # one or more: what is compared
    label = "K = 4, on a ring"      K = 4                       topology = {kind = "ring"}
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from netfleet.errors import ConfigError
from netfleet.runs.config import Experiment, RunConfig, Table, experiment, make, read_toml
from netfleet.theory import bounds as theory
from reproduce.panels import merged
from reproduce.progress import Work


@dataclass(frozen=True)
class Line:
    """What is compared within a study, and how it differs from the study's own settings."""

    label: str
    algorithm: str = "net-fleet"
    #: Local steps; 0: the corollary's.
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
    #: Points of more local steps are left out, and of fewer, which still depend on where they began.
    most_steps: int = 1 << 30
    least_steps: int = 0
    #: Points of more gradients mSK are left out, as they take too long.
    most_gradients: int = 1 << 60
    #: The metric is taken at about so many of a run's gradients, from so many samples (0: all).
    measures: int = 1000
    samples: int = 0
    #: The picture shows the metric after so many rounds; 0: the rounds to a metric.
    fixed: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        for key in ("workers", "rounds", "seeds"):
            values = getattr(self, key)
            if not values or [v for v in values if not isinstance(v, int) or v < (key != "seeds")]:
                raise ConfigError(f"{key} must be a list of whole numbers, got {list(values)}")
        if not self.scale > 0 or self.measures < 1 or self.samples < 0:
            given = f"scale = {self.scale}, measures = {self.measures}, samples = {self.samples}"
            raise ConfigError(f"a study needs scale > 0, measures >= 1 and samples >= 0, got {given}")
        if self.fixed and self.fixed not in self.rounds:
            raise ConfigError(f"fixed, the rounds that are drawn, must be one of {list(self.rounds)}, got {self.fixed}")
        if not self.lines or [line for line in self.lines if not isinstance(line, Mapping | Line)]:
            raise ConfigError(f"a study needs one or more [[lines]], got {self.lines!r}")
        made = [line if isinstance(line, Line) else make(Line, line, "[[lines]]") for line in self.lines]
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
                    if fits and m * S * K <= self.most_gradients:
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
        base, own = ({"topology": of.topology, "problem": of.problem} for of in (self.study, self.line))
        whole = merged(base, own)
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
        """Everything that the point's number is a function of."""
        return {"run": self.run.config, "stride": self.stride, "samples": self.study.samples}

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
    """Read and check a study."""
    try:
        return make(Study, read_toml(path) | {"name": path.stem}, str(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
