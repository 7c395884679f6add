"""Step sizes over rounds: `eta(t)` is the step size η of round t.

In an experiment file a step size is a number, or a table such as `{kind = "halve", start = 0.01, every = 100}`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from netfleet.errors import ConfigError
from netfleet.registry import Registry

Schedule = Callable[[int], float]
StepSize = float | Mapping[str, object] | Schedule
SCHEDULES: Registry[Schedule] = Registry("schedule")


def as_schedule(eta: StepSize) -> Schedule:
    """A step size in any of its forms (number, table, function of the round) as a function of the round."""
    if isinstance(eta, int | float) and not isinstance(eta, bool):
        return Constant(float(eta))
    if isinstance(eta, Mapping):
        return SCHEDULES.build(eta)
    if callable(eta):
        return eta
    raise ConfigError(f"step size must be a number above 0 or a table with a kind, got {eta!r}; write eta = 0.01")


def resolve(eta: object) -> object:
    """A step size with every default of its table written out."""
    if not isinstance(eta, Mapping):
        return eta
    return {key: resolve(value) for key, value in SCHEDULES.resolve(eta).items()}


def as_table(schedule: Schedule) -> StepSize:
    """A schedule as an experiment file has it: a number or a table; a function of the user's own stays as it is.

    >>> as_table(Constant(0.1)), as_table(WarmUp(5, 0.1))
    (0.1, {'kind': 'warm-up', 'rounds': 5, 'then': 0.1})
    """
    if isinstance(schedule, Constant):
        return schedule.start
    kind = SCHEDULES.name_of(type(schedule))
    if kind is None or not is_dataclass(schedule):
        return schedule
    values = {field.name: getattr(schedule, field.name) for field in fields(schedule)}
    return {"kind": kind, **{name: as_table(value) if callable(value) else value for name, value in values.items()}}


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            name = "step size" if name == "start" else name
            raise ConfigError(f"{name} must be a finite number above 0, got {value!r}; write for example 0.01")


@SCHEDULES.register("constant")
@dataclass(frozen=True)
class Constant:
    """The same step size in every round."""

    start: float

    def __post_init__(self) -> None:
        _positive(start=self.start)

    def __call__(self, t: int) -> float:
        return self.start


@SCHEDULES.register("step")
@dataclass(frozen=True)
class Step:
    """Multiplied by `factor` after every `every` rounds."""

    start: float
    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        _positive(start=self.start, every=self.every, factor=self.factor)

    def __call__(self, t: int) -> float:
        return float(self.start * self.factor ** (t // self.every))


@SCHEDULES.register("halve")
def halve(start: float, every: int) -> Step:
    """Halved after every `every` rounds, as in figure 1 of the paper (with `every = 100`)."""
    return Step(start, every, 0.5)


@SCHEDULES.register("cosine")
@dataclass(frozen=True)
class Cosine:
    """From `start` to `end` over `rounds` rounds along half a cosine; `end` afterwards (Loshchilov, Hutter 2017)."""

    start: float
    rounds: int
    end: float = 0.0

    def __post_init__(self) -> None:
        _positive(start=self.start, rounds=self.rounds)
        if not 0 <= self.end <= self.start:
            raise ConfigError(f"cosine: end must lie between 0 and start = {self.start}, got {self.end}")

    def __call__(self, t: int) -> float:
        part = min(t, self.rounds) / self.rounds
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * part)) / 2


@SCHEDULES.register("warm-up")
@dataclass(frozen=True)
class WarmUp:
    """Grows linearly over the first `rounds` rounds, then follows `then` (whose round 0 is the first after)."""

    rounds: int
    then: Any

    def __post_init__(self) -> None:
        _positive(rounds=self.rounds)
        object.__setattr__(self, "then", as_schedule(self.then))

    def __call__(self, t: int) -> float:
        if t < self.rounds:
            return float(self.then(0) * (t + 1) / self.rounds)
        return float(self.then(t - self.rounds))
