"""Stopping the ranks of a job by a signal: all of them save the same round, and --resume continues from it.

A scheduler sends SIGTERM or SIGUSR1 before it takes the machines away, maybe to some ranks only. Every few seconds the
ranks tell each other whether one was told to stop. torchrun also sends SIGTERM to the others when a rank has died;
then no rank can save, and the next exchange fails.
"""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from netfleet.engines.host import Host
from netfleet.engines.job import Job, Recorder, Snapshot
from netfleet.errors import EngineError, StoppedError

AGAIN = "Start the same command again with --resume to resume from the last checkpoint"
#: About how often the ranks ask each other, in seconds.
PAUSE = 5.0


class StopRequest:
    """Whether a signal has told this process to stop."""

    def __init__(self) -> None:
        self.made, self._waits = False, False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Within this, SIGTERM and SIGUSR1 are requests to stop."""
        self.made = False
        before = {number: signal.signal(number, self._receive) for number in (signal.SIGTERM, signal.SIGUSR1)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def waits_for_the_round(self) -> Iterator[None]:
        """Within this, SIGTERM does not end the process at once: the ranks save a round together."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    def _receive(self, number: int, frame: object) -> None:
        self.made = True
        if number == signal.SIGTERM and not self._waits:
            raise ended_with_the_others()


def ended_with_the_others() -> EngineError:
    return EngineError(f"stopped by SIGTERM, which torchrun sends to all when one has died: see its report. {AGAIN}")


#: The one of this process: signals have one handler.
REQUEST = StopRequest()


class StoppableRecorder(Recorder):
    """A job's recorder that also ends the run, on all ranks after the same round, if one of them was told to stop."""

    def __init__(self, job: Job, request: StopRequest, pause: float = PAUSE) -> None:
        self._inner, self._rounds, self._request, self._pause = job.recorder, job.rounds, request, pause
        self._next, self._asked, self._since = 0, -1, 0.0

    def due(self, t: int) -> bool:
        return t >= self._next or self._inner.due(t)

    def record(self, snapshot: Snapshot, host: Host) -> None:
        if self._inner.due(snapshot.t):
            self._inner.record(snapshot, host)
        if snapshot.t >= self._next and self._agreed_to_stop(snapshot.t, host) and snapshot.t < self._rounds:
            self.save(snapshot, host)
            error = StoppedError(f"stopped by a signal after round {snapshot.t} of {self._rounds}. {AGAIN}")
            error.shared = True
            raise error

    def _agreed_to_stop(self, t: int, host: Host) -> bool:
        """Whether a rank was told to stop; all ranks compute the same, also when they ask again."""
        if self._asked < 0:  # the first round of this process
            self._asked, self._since = t, time.monotonic()
        milliseconds = int(1000 * (time.monotonic() - self._since))
        told, spent, ranks = host.collective.total(torch.tensor([[self._request.made, milliseconds, 1]])).tolist()
        self._next = t + rounds_within(self._pause, t - self._asked, spent / ranks / 1000)
        self._asked, self._since = t, time.monotonic()
        return bool(told)

    def save(self, snapshot: Snapshot, host: Host) -> None:
        self._inner.save(snapshot, host)

    def progress(self, t: int) -> None:
        self._inner.progress(t)


def rounds_within(pause: float, rounds: int, seconds: float) -> int:
    """About how many rounds take `pause` seconds, if some took `seconds`; at most ten times as many as those."""
    wanted = pause * rounds / max(seconds, 1e-3)
    return max(1, min(10 * rounds, int(wanted)))
