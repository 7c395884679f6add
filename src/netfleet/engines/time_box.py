"""Rounds of limited time (`runs.time_box`): a worker takes as many local steps as fit, some at least and K at most.

Local step k of a round is the k-th `f.step` and the gradient of mini-batch k. A worker that stops after n of them does
not move any more in this round, and its last gradient stands for those that it does not compute. So methods need to
know nothing of it: NET-FLEET's round ends as with K = n, and a mean over K gradients (K-GT's z) counts the last one for
the missing ones. Every corrected step of an exact method is 0 at the optimum, so its fixed point stays where it is.
"""

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor


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

    def __init__(
        self, seconds: float, least: int, K: int, record: StepRecord, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds, self._least, self._K, self._record, self._clock = seconds, least, K, record, clock
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
        if k > self._least and elapsed * k / (k - 1) > self._seconds:
            self._settle(k - 1)
        elif k == self._K:
            self._settle(k)

    def _settle(self, steps: int) -> None:
        self._record.write(self._t, steps)
        self.count = steps
