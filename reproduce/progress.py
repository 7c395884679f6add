"""The progress display of many runs, with the time that all of them still need."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from typing import NamedTuple

from rich.console import Console

from netfleet.runs.progress import Live, in_words


class Work(NamedTuple):
    """What a run still needs."""

    rounds: int
    cost: float  # of a round, comparable between runs of one kind
    kind: Hashable = None  # runs of one kind take time in proportion to their cost


class LiveTotal(Live):
    """A `Live` display with a bar over all runs and the time that they still need.

    `work` has what every run still needs, by the run's label. The seconds for a kind's unit of cost are measured since
    this display began, else they come from `paces`, else they are the mean over all measured kinds.
    """

    def __init__(
        self, console: Console, work: Mapping[str, Work], paces: Mapping[Hashable, float] | None = None
    ) -> None:
        super().__init__(console, len(work))
        self._work, self._paces = dict(work), dict(paces or {})
        self._seen: dict[Hashable, tuple[float, float]] = {}  # cost done and its seconds, by kind
        self._total = self._progress.add_task("% of all", total=100, note="", left="", visible=len(work) > 1)

    def begin(self, label: str, done: int, rounds: int) -> None:
        super().begin(label, done, rounds)
        self._name, self._at, self._clock = label, done, time.monotonic()
        self._work[label] = self._work[label]._replace(rounds=rounds - done)

    def round(self, t: int) -> None:
        super().round(t)
        now, work = time.monotonic(), self._work[self._name]
        cost, seconds = self._seen.get(work.kind, (0.0, 0.0))
        self._seen[work.kind] = cost + (t - self._at) * work.cost, seconds + now - self._clock
        self._work[self._name] = work._replace(rounds=work.rounds - (t - self._at))
        self._at, self._clock = t, now
        self._progress.update(self._total, completed=int(100 * self.part), left=f"{in_words(self.left)} left")

    def end(self) -> None:
        super().end()
        self._work.pop(self._name)  # also where it stopped early
        self._progress.update(self._task, visible=False)

    def skip(self, label: str) -> None:
        super().skip(label)
        self._work.pop(label)

    @property
    def left(self) -> float:
        """Seconds until all runs are done, estimated."""
        return sum(work.rounds * work.cost * self._pace(work.kind) for work in self._work.values())

    @property
    def part(self) -> float:
        """The share of the time for all runs that has passed."""
        passed = sum(seconds for _, seconds in self._seen.values())
        return passed / (passed + self.left) if passed else 0.0

    def aside(self) -> str:
        """The part that is done and the time that is left."""
        return f"; {100 * self.part:.0f} % of all, {in_words(self.left)} left" if self._seen else ""

    def _pace(self, kind: Hashable) -> float:
        """Seconds for a unit of cost."""
        if kind in self._paces and kind not in self._seen:
            return self._paces[kind]
        seen = [self._seen[kind]] if kind in self._seen else list(self._seen.values())
        cost = sum(cost for cost, _ in seen)
        return sum(seconds for _, seconds in seen) / cost if cost else 0.0
