"""Rounds of limited time: a worker takes as many local steps as fit, at least `least` and at most the method's K.

Local step k of a round is the k-th `f.step` and the gradient of mini-batch k. A worker that stops after n of them does
not move any more in this round, and its last gradient stands for those that it does not compute. So methods need to
know nothing of it: NET-FLEET's round ends as with K = n, and a mean over K gradients (K-GT's z) counts the last one for
the missing ones. Every corrected step of an exact method is 0 at the optimum, so its fixed point stays where it is.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from netfleet.errors import ConfigError
from netfleet.registry import check_fields


@dataclass(frozen=True, kw_only=True)
class TimeBox:
    """The `[time_box]` table of an experiment.

    A round's local steps take about `seconds`. `step_seconds` says how long a step takes at each worker, or at all of
    them, for engines that do not go by the clock: only sites do.
    """

    seconds: float
    least: int = 1
    step_seconds: float | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_fields(self, "time_box")
        durations = self.step_seconds if isinstance(self.step_seconds, tuple) else (self.step_seconds,)
        for name, value in [("seconds", self.seconds), *(("step_seconds", each) for each in durations)]:
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"time_box.{name} must be a finite number of seconds above 0, got {value!r}")
        if self.least < 1:
            raise ConfigError(f"time_box.least, the fewest local steps of a round, must be 1 or more, got {self.least}")

    def steps(self, worker: int, K: int) -> int:
        """The local steps that fit at a worker, by `step_seconds`."""
        durations = self.step_seconds
        assert durations is not None
        fit = int(self.seconds / (durations[worker] if isinstance(durations, tuple) else durations) + 1e-9)
        return min(max(fit, self.least), K)

    def fixed(self, K: int, workers: Sequence[int]) -> "FixedSteps":
        """What these workers do, by `step_seconds`."""
        return FixedSteps(torch.tensor([self.steps(i, K) for i in workers]))

    def check(self, K: int, m: int, by_clock: bool) -> None:
        """Raise if the table does not fit a method with K local steps and m workers."""
        if self.least > K:
            raise ConfigError(f"time_box.least = {self.least} is more than the method's K = {K} local steps; lower it")
        if by_clock:
            return
        if self.step_seconds is None:
            raise ConfigError(
                "time_box.step_seconds is missing: a simulation does not go by the clock; give the seconds of a local "
                "step, one number for all workers or a list with one for each"
            )
        if isinstance(self.step_seconds, tuple) and len(self.step_seconds) != m:
            raise ConfigError(
                f"time_box.step_seconds has {len(self.step_seconds)} numbers for {m} workers; give one for each, or "
                f"one number for all"
            )


class Steps(Protocol):
    """Decides who takes which local steps."""

    def begin(self, t: int) -> None:
        """Round t begins."""

    def takes(self, k: int) -> Tensor | bool:
        """Who takes local step k of this round: all, nobody, or some of the hosted workers, `[rows]`."""


class FixedSteps(NamedTuple):
    """Each hosted worker takes its own number of steps in every round."""

    counts: Tensor  # [rows]

    def begin(self, t: int) -> None:
        """All rounds are alike."""

    def takes(self, k: int) -> Tensor | bool:
        taken = self.counts >= k
        return bool(taken[0]) if bool((taken == taken[0]).all()) else taken


class StepRecord(Protocol):
    """Keeps the number of steps of a round, so that a repeated round takes as many (`sites.runtime.step_record`)."""

    def read(self, t: int) -> int | None:
        """How many steps round t took; None: it is not decided."""

    def write(self, t: int, steps: int) -> None:
        """Round t takes so many; this is on disk when it returns."""


class ClockSteps:
    """One worker goes by the clock, from its first local step of a round on."""

    def __init__(self, box: TimeBox, K: int, record: StepRecord, clock: Callable[[], float] = time.monotonic) -> None:
        self._box, self._K, self._record, self._clock = box, K, record, clock
        self._t, self._begun, self._asked, self.count = 0, 0.0, 0, 0

    def begin(self, t: int) -> None:
        self._t, self._asked = t, 0
        self.count = self._record.read(t) or 0  # 0: it is not decided yet

    def takes(self, k: int) -> bool:
        if k <= 0:
            return True
        if not self.count and k > self._asked:
            self._asked = k
            self._decide(k)
        return not self.count or k <= self.count

    def _decide(self, k: int) -> None:
        """Before local step k: whether it still fits, judged by those before it."""
        if k == 1:
            self._begun = self._clock()
        elapsed = self._clock() - self._begun
        if k > self._box.least and elapsed * k / (k - 1) > self._box.seconds:
            self._settle(k - 1)
        elif k == self._K:
            self._settle(k)

    def _settle(self, steps: int) -> None:
        self._record.write(self._t, steps)
        self.count = steps
