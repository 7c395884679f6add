"""The numbers of a study: the averaged metric of each point, kept by the hash of its config in NAME.json."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from netfleet.compute.threads import one_intra_op_thread
from netfleet.errors import ConfigError
from netfleet.files import write_atomically
from netfleet.gradients.paths import Sample
from netfleet.problems.base import Problem
from netfleet.runs.build import Setting, build_job, build_setting
from netfleet.runs.config import config_hash
from netfleet.runs.progress import Display, Quiet
from netfleet.runs.run import run_one
from netfleet.theory import bounds as theory
from netfleet.theory.estimates import Survey, survey
from reproduce.speedup.study import Point, Study


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
        """Add a number and save it, so that an interruption loses one point."""
        self[config_hash(point.config)] = float(f"{value:.6g}")
        text = "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(self.items())) + "\n}\n"
        write_atomically(self.path, lambda file: file.write(text.encode()))


def make_points(points: Sequence[tuple[Point, Results]], display: Display | None = None) -> None:
    """Run points and keep their numbers."""
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


class Margin(NamedTuple):
    """How runs compare with Theorem 1."""

    runs: int
    ratio: float  # the largest of the averaged metric over the right-hand side
    excess: float  # the largest of η over what the theorem admits


@one_intra_op_thread()
def margin(study: Study, results: Results) -> Margin | None:
    """NET-FLEET's runs beside the right-hand side of Theorem 1 at their own η; None where constants are not known."""
    surveys: dict[str, Survey] = {}
    ratios, excesses = [], []
    for point in study.points():
        value, given = results.of(point), point.experiment
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
    return Margin(len(ratios), max(ratios), max(excesses)) if ratios else None
