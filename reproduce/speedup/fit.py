"""What the numbers of a study say: power laws in m and SK, and the rounds that a metric takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from reproduce.speedup.results import Results
from reproduce.speedup.study import Study

#: A metric of so many times the study's median counts as diverged, though it is still finite.
DIVERGED = 1e4


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


def within(m: int, S: float, K: int, times: float = 1.0) -> bool:
    """S ≥ times · (mK)³."""
    return times * (m * K) ** 3 <= S


Measured = Mapping[str, Sequence[Row]]


def rows(study: Study, results: Results) -> Measured:
    """What was measured of each line, by m and S; points that are missing are left out, huge ones have diverged."""
    found: dict[str, dict[tuple[int, int, int, float], list[float]]] = {line.label: {} for line in study.lines}
    known = [(point, value) for point in study.points() if (value := results.of(point)) is not None]
    most = DIVERGED * float(np.median([value for _, value in known])) if known else 0.0
    for point, value in known:
        found[point.line.label].setdefault(point[2:6], []).append(value if value <= most else math.inf)
    return {label: [Row(*key, tuple(values)) for key, values in line.items()] for label, line in found.items()}


class Interval(NamedTuple):
    """A mean over seeds with its 95 % confidence interval (Student's); with one seed there is none."""

    mean: float
    half: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        n = len(values)
        half = float(stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / math.sqrt(n)) if n > 1 else None
        return cls(float(np.mean(values)), half)

    def __str__(self) -> str:
        return f"{self.mean:.2f}{'' if self.half is None else f' ± {self.half:.2f}'}".replace("-", "−")


class Fit(NamedTuple):
    """Power laws through rows: the metric goes as (mSK)^work, and as m^workers (SK)^steps."""

    work: Interval
    factor: float
    workers: Interval | None  # None where m and SK were not varied independently
    steps: Interval | None

    def at(self, work: float) -> float:
        """The metric by the law in mSK."""
        return float(self.factor * work**self.work.mean)


def fit(measured: Sequence[Row]) -> Fit | None:
    """Least squares of the logarithms, each seed by itself, as its points share their functions; None without three."""
    finite = [row for row in measured if np.isfinite(row.mean)]
    seeds = min((len(row.values) for row in finite), default=0)
    if len(finite) < 3:
        return None
    m, SK = np.log([row.m for row in finite]), np.log([row.S * row.K for row in finite])
    y = np.log([row.values[:seeds] for row in finite])  # [rows, seeds]
    laws, both = _solve([m + SK], y), _solve([m, SK], y)
    if laws is None:
        return None
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


def reachable(lines: Measured) -> float:
    """The least metric that the fewest workers reach on every line."""
    fewest = min(row.m for measured in lines.values() for row in measured)
    return max(min((row.mean for row in line if row.m == fewest), default=0.0) for line in lines.values())


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
        found[m] = None
        if len(falls) and np.log(eps) >= falls[-1] - 1e-9:
            rounds = float(np.exp(np.interp(-np.log(eps), -falls, S)))
            found[m] = Needed(rounds, bool(np.log(eps) > falls[0]))
    return found
