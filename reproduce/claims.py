"""What the paper claims, as checks on the curves of a panel, and the verdict on each.

A measure turns the values of some curves into one number. `end` is the mean of the last WINDOW evaluations, as in the
paper's smoothed curves; `overall` is the mean over all rounds, which shows who learns faster.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from netfleet.errors import ConfigError
from netfleet.registry import Registry
from netfleet.runs.history import History

Values = Mapping[str, float]
Histories = Mapping[str, Sequence[History]]
Floats = npt.NDArray[np.float64]
WINDOW = 10


class Reading(NamedTuple):
    """What "test accuracy" may mean."""

    words: str
    doubt: float  # a verdict of one seed that is decided by less is provisional


#: The paper does not say which it means. Three seeds of one run end 0.6 points apart (reproduce/seeds.toml), by the
#: workers 0.9, and the part of the test samples that these are scored on can move a number by as much again.
COLUMNS = {"accuracy": Reading("x̄", 0.006), "worker_accuracy_mean": Reading("workers", 0.015)}


class Measure(NamedTuple):
    """A number made of the values of some curves, and of these numbers over seeds."""

    labels: tuple[str, ...]
    unit: Literal["%", "points"]
    number: Callable[[Values], float]
    least: int = 1  # labels that it needs
    over: Callable[[Sequence[float]], float] = fmean
    seeds: int = 1  # seeds that it needs


MEASURES: Registry[Measure] = Registry("measure", returns=Measure)


@MEASURES.register("value")
def value(of: str) -> Measure:
    return Measure((of,), "%", lambda v: v[of])


@MEASURES.register("lowest")
def lowest(of: list[str]) -> Measure:
    return Measure(tuple(of), "%", lambda v: min(v[label] for label in of))


@MEASURES.register("lead")
def lead(of: str | list[str], over: str | list[str]) -> Measure:
    """By how much the lowest of some curves is above the highest of others."""
    ahead, behind = ([x] if isinstance(x, str) else list(x) for x in (of, over))
    if not ahead or not behind:
        raise ConfigError("measure 'lead' needs a curve or more in of, and in over")
    return Measure((*ahead, *behind), "points", lambda v: min(v[a] for a in ahead) - max(v[b] for b in behind))


@MEASURES.register("range")
def between(of: list[str]) -> Measure:
    """By how much the highest of some curves is above the lowest."""
    return Measure(tuple(of), "points", lambda v: max(v[x] for x in of) - min(v[x] for x in of), 2)


@MEASURES.register("least-step")
def least_step(of: list[str]) -> Measure:
    """The least step up from each curve to the next: above 0 if their values rise in this order."""
    return Measure(tuple(of), "points", lambda v: min(v[b] - v[a] for a, b in itertools.pairwise(of)), 2)


@MEASURES.register("seed-range")
def seed_range(of: str) -> Measure:
    """By how much a curve's best seed is above its worst."""
    return Measure((of,), "points", lambda v: v[of], over=lambda numbers: max(numbers) - min(numbers), seeds=2)


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and the range of our number in which it holds."""

    number: str
    text: str
    paper: str
    measure: Mapping[str, Any]
    take: Literal["end", "overall"] = "end"
    at_least: float = -math.inf
    at_most: float = math.inf

    def __post_init__(self) -> None:
        low, high = self.at_least, self.at_most
        if math.isinf(low) and math.isinf(high):
            raise ConfigError(f"claim {self.text!r} has neither at_least nor at_most, so it could not fail; add one")
        if low > high:
            raise ConfigError(f"claim {self.text!r}: at_least = {low} is above at_most = {high}, so it could not hold")
        if bad := [bound for bound in (low, high) if 1 < abs(bound) < math.inf]:
            raise ConfigError(f"claim {self.text!r}: bounds are shares, 0.95 for 95 % or for 95 points; got {bad[0]}")

    @functools.cached_property
    def made(self) -> Measure:
        return MEASURES.build(self.measure)

    def check(self, labels: Iterable[str], where: str) -> None:
        """Raise unless the claim is about these curves."""
        known, measure = list(labels), self.made
        if len(measure.labels) < measure.least:
            least = "a curve" if measure.least == 1 else f"{measure.least} curves"
            raise ConfigError(f"{where}: the claim {self.text!r} needs {least} or more")
        for label in measure.labels:
            if label not in known:
                raise ConfigError(f"{where}: the claim {self.text!r} names {label!r}; the curves are: {known}")

    def holds(self, number: float) -> bool:
        """Whether a number lies in the claim's range; NaN does not."""
        return self.at_least <= number <= self.at_most

    def rule(self) -> str:
        if math.isfinite(self.at_least) and math.isfinite(self.at_most):
            return f"{self.show(self.at_least)} to {self.show(self.at_most)}"
        return f"≥ {self.show(self.at_least)}" if math.isfinite(self.at_least) else f"≤ {self.show(self.at_most)}"

    def show(self, number: float, digits: int = 1) -> str:
        """A number of this claim in its unit; points have two digits."""
        return f"{100 * number:.{digits}f} %" if self.made.unit == "%" else f"{100 * number:+.2f}"


class Verdict(NamedTuple):
    """Our number for a claim: mean over seeds, lowest and highest over seeds (and the window's evaluations).

    A claim about a curve that diverged is undecided: a diverged run has no accuracy to compare.
    """

    claim: Claim
    number: float
    low: float
    high: float
    seeds: int
    asked: int
    diverged: tuple[str, ...] = ()
    doubt: float = 0.0
    part: str = ""  # how many of the rounds were run; empty: all

    @property
    def holds(self) -> bool | None:
        """None where it is undecided."""
        return None if self.diverged else self.claim.holds(self.number)

    @property
    def close(self) -> bool:
        """Whether an evaluation or seed of the spread decides otherwise."""
        return any(self.claim.holds(bound) != self.holds for bound in (self.low, self.high))

    @property
    def margin(self) -> float:
        """How far the number is from the bound that decides."""
        return min(abs(self.number - bound) for bound in (self.claim.at_least, self.claim.at_most))

    @property
    def provisional(self) -> bool:
        """Whether another seed may well decide otherwise."""
        return self.holds is not None and (self.close or (self.seeds == 1 and self.margin < self.doubt))

    @property
    def words(self) -> str:
        if self.diverged:
            return f"undecided: {', '.join(self.diverged)} diverged"
        notes = ["within the spread"] if self.close else ["provisional"] if self.provisional else []
        notes += [f"{self.seeds} of {self.asked} seeds"] if self.seeds < self.asked else []
        notes += [self.part] if self.part else []
        return ("holds" if self.holds else "does not hold") + (f" ({', '.join(notes)})" if notes else "")

    def ours(self) -> str:
        """The number and its spread in brackets."""
        if not math.isfinite(self.number):
            return "–"
        digits = 1 if self.claim.made.unit == "%" and self.margin >= 0.001 else 2  # enough to tell it from the bound
        spread = f" [{100 * self.low:.{digits}f}, {100 * self.high:.{digits}f}]" if self.high - self.low > 1e-9 else ""
        return self.claim.show(self.number, digits) + spread


def judge(claim: Claim, curves: Histories, column: str = "accuracy", asked: int = 1, part: str = "") -> Verdict | None:
    """The verdict from the histories of each label; None where runs are missing or did not measure the column."""
    measure, doubt = claim.made, COLUMNS[column].doubt
    chosen = {label: {history.seed: history for history in curves.get(label, ())} for label in measure.labels}
    seeds = sorted(set.intersection(*map(set, chosen.values())))
    by_seed = [{label: runs[seed] for label, runs in chosen.items()} for seed in seeds]
    lost = dict.fromkeys(label for runs in by_seed for label, history in runs.items() if history.diverged)
    if lost:
        return Verdict(claim, math.nan, math.nan, math.nan, len(seeds), asked, tuple(lost))
    if len(by_seed) < measure.seeds or any(column not in h.columns for runs in by_seed for h in runs.values()):
        return None
    numbers = [_number(claim, runs, column) for runs in by_seed]
    number = float(measure.over(numbers))
    around = [near for runs in by_seed for near in _around(claim, runs, column)]
    every = [number] if measure.seeds > 1 else [*numbers, *around]
    return Verdict(claim, number, min(every), max(every), len(numbers), asked, (), doubt, part)


def _number(claim: Claim, runs: Mapping[str, History], column: str) -> float:
    """The measure of the values at the end, or of the means over rounds of the curves through all values."""
    found = {}
    for label, history in runs.items():
        rounds, values = (last if claim.take == "end" else series)(history, column)
        if claim.take == "end" or len(values) < 2:
            found[label] = float(values.mean())
        else:
            found[label] = float(np.trapezoid(values, rounds) / (rounds[-1] - rounds[0]))
    return claim.made.number(found)


def _around(claim: Claim, runs: Mapping[str, History], column: str) -> list[float]:
    """The measure at each of the last evaluations alone, where the claim is about the end."""
    if claim.take != "end":
        return []
    values = {label: last(history, column)[1] for label, history in runs.items()}
    count = min(len(v) for v in values.values())
    return [claim.made.number({label: float(v[i - count]) for label, v in values.items()}) for i in range(count)]


def series(history: History, column: str) -> tuple[Floats, Floats]:
    """The rounds at which a column was measured, and its values."""
    rounds, values = history["round"], history[column]
    known = np.isfinite(values)
    return rounds[known], values[known]


def last(history: History, column: str, window: int = WINDOW) -> tuple[Floats, Floats]:
    """The part of a column's series that lies in the last `window` evaluations (of any column)."""
    rounds, values = series(history, column)
    recent = rounds >= history["round"][-window:][0]
    return rounds[recent], values[recent]


def smoothed(history: History, column: str, window: int = WINDOW) -> History:
    """The history with each value of a column replaced by the mean of the last `window` ones, as the paper draws."""
    rounds, values = series(history, column)
    sums = np.cumsum(np.insert(values, 0, 0.0))
    counts = np.minimum(np.arange(1, len(values) + 1), window)
    means = (sums[1:] - sums[np.arange(1, len(values) + 1) - counts]) / counts
    found = dict(zip(rounds.tolist(), means.tolist(), strict=True))
    records = [record | {column: found.get(record["round"])} for record in history]
    return History(history.config, history.hash, history.label, history.seed, records, history.diverged)
