"""What the paper claims, as checks on the curves of a panel, and the verdict on each.

A measure compares curves by differences, or takes their values, seed by seed, and picks the least or the greatest of
the means. `end` is the mean of the last WINDOW evaluations, as in the paper's smoothed curves; `overall` is the mean
over all rounds, which shows who learns faster. A verdict is decided if the whole interval over seeds lies on one side.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from netfleet.errors import ConfigError
from netfleet.registry import Registry
from netfleet.report.intervals import interval
from netfleet.runs.history import History

Histories = Mapping[str, Sequence[History]]
Floats = npt.NDArray[np.float64]
WINDOW = 10


#: What "test accuracy" may mean; the paper does not say which.
COLUMNS = {"accuracy": "x̄", "worker_accuracy_mean": "workers"}
#: A verdict of one seed that is decided by less is provisional: seeds of one run end about as far apart (seeds.toml).
DOUBT = 0.01


class Measure(NamedTuple):
    """Values and differences of curves, (a, b) for a − b, of which the `pick` of the means over seeds is the number."""

    unit: Literal["%", "points"]
    terms: tuple[tuple[str, str | None], ...]
    pick: Callable[[Iterable[float]], float] = min
    least: int = 1  # labels that it needs
    spread: bool = False  # the number is the range of the values over seeds

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(label for term in self.terms for label in term if label is not None))


MEASURES: Registry[Measure] = Registry("measure", returns=Measure)


@MEASURES.register("value")
def value(of: str) -> Measure:
    return Measure("%", ((of, None),))


@MEASURES.register("lowest")
def lowest(of: list[str]) -> Measure:
    return Measure("%", tuple((label, None) for label in of))


@MEASURES.register("lead")
def lead(of: str | list[str], over: str | list[str]) -> Measure:
    """By how much the lowest of some curves is above the highest of others."""
    ahead, behind = ([x] if isinstance(x, str) else list(x) for x in (of, over))
    if not ahead or not behind:
        raise ConfigError("measure 'lead' needs a curve or more in of, and in over")
    return Measure("points", tuple(itertools.product(ahead, behind)))


@MEASURES.register("range")
def between(of: list[str]) -> Measure:
    """By how much the highest of some curves is above the lowest."""
    return Measure("points", tuple(itertools.permutations(of, 2)), max, 2)


@MEASURES.register("least-step")
def least_step(of: list[str]) -> Measure:
    """The least step up from each curve to the next: above 0 if their values rise in this order."""
    return Measure("points", tuple((b, a) for a, b in itertools.pairwise(of)), least=2)


@MEASURES.register("seed-range")
def seed_range(of: str) -> Measure:
    """By how much a curve's best seed is above its worst."""
    return Measure("points", ((of, None),), spread=True)


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

    @property
    def bounds(self) -> list[float]:
        return [bound for bound in (self.at_least, self.at_most) if math.isfinite(bound)]

    def rule(self) -> str:
        if math.isfinite(self.at_least) and math.isfinite(self.at_most):
            return f"{self.show(self.at_least)} to {self.show(self.at_most)}"
        return f"≥ {self.show(self.at_least)}" if math.isfinite(self.at_least) else f"≤ {self.show(self.at_most)}"

    def show(self, number: float, digits: int = 1) -> str:
        """A number of this claim in its unit; points have two digits."""
        return f"{100 * number:.{digits}f} %" if self.made.unit == "%" else f"{100 * number:+.2f}"


class Verdict(NamedTuple):
    """Our number for a claim, and its interval over seeds.

    A claim about a curve that diverged is undecided: a diverged run has no accuracy to compare.
    """

    claim: Claim
    number: float
    low: float
    high: float
    seeds: int
    asked: int
    diverged: tuple[str, ...] = ()
    part: str = ""  # how many of the rounds were run; empty: all

    @property
    def holds(self) -> bool | None:
        """None where it is undecided: a run diverged, or the interval lies on both sides of a bound."""
        sides = {self.claim.holds(self.low), self.claim.holds(self.number), self.claim.holds(self.high)}
        return None if self.diverged or len(sides) > 1 else sides.pop()

    @property
    def margin(self) -> float:
        """How far the number is from the bound that decides."""
        return min(abs(self.number - bound) for bound in (self.claim.at_least, self.claim.at_most))

    @property
    def provisional(self) -> bool:
        """Whether another seed may well decide otherwise."""
        return self.holds is not None and self.seeds == 1 and not self.claim.made.spread and self.margin < DOUBT

    @property
    def words(self) -> str:
        if self.diverged:
            return f"undecided: {', '.join(self.diverged)} diverged"
        notes = ["provisional"] if self.provisional else []
        notes += [f"{self.seeds} of {self.asked} seeds"] if self.seeds < self.asked else []
        notes += [self.part] if self.part else []
        verdict = {True: "holds", False: "does not hold", None: "too close to call"}[self.holds]
        return verdict + (f" ({', '.join(notes)})" if notes else "")

    def ours(self) -> str:
        """The number and its interval in brackets."""
        if not math.isfinite(self.number):
            return "–"
        nearest = min(self.margin, *(abs(end - at) for end in (self.low, self.high) for at in self.claim.bounds))
        digits = 1 if self.claim.made.unit == "%" and nearest >= 0.001 else 2  # enough to tell it from the bound
        spread = f" [{100 * self.low:.{digits}f}, {100 * self.high:.{digits}f}]" if self.high > self.low else ""
        return self.claim.show(self.number, digits) + spread


def judge(claim: Claim, curves: Histories, column: str = "accuracy", asked: int = 1, part: str = "") -> Verdict | None:
    """The verdict from the histories of each label; None where runs are missing or did not measure the column."""
    measure = claim.made
    chosen = {label: {history.seed: history for history in curves.get(label, ())} for label in measure.labels}
    seeds = sorted(set.intersection(*map(set, chosen.values())))
    used = [(label, runs[seed]) for seed in seeds for label, runs in chosen.items()]
    if lost := tuple(dict.fromkeys(label for label, history in used if history.diverged)):
        return Verdict(claim, math.nan, math.nan, math.nan, len(seeds), asked, lost)
    if len(seeds) < 1 + measure.spread or any(column not in history.columns for _, history in used):
        return None
    ends = {label: [_end(runs[seed], column, claim.take) for seed in seeds] for label, runs in chosen.items()}
    if measure.spread:
        number = float(np.ptp(ends[measure.labels[0]]))
        return Verdict(claim, number, number, number, len(seeds), asked, (), part)
    found = [interval(np.subtract(ends[a], ends[b] if b else 0.0).tolist()) for a, b in measure.terms]
    mean, low, high = (measure.pick(getattr(term, name) for term in found) for name in ("mean", "low", "high"))
    return Verdict(claim, mean, low, high, len(seeds), asked, (), part)


def _end(history: History, column: str, take: str) -> float:
    """The mean of the last values, or over rounds of the curve through all values."""
    rounds, values = (last if take == "end" else series)(history, column)
    if take == "end" or len(values) < 2:
        return float(values.mean())
    return float(np.trapezoid(values, rounds) / (rounds[-1] - rounds[0]))


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
