"""Keeps the record of one run: measures what is due, appends it to the history, writes checkpoints."""

from __future__ import annotations

import math
from dataclasses import asdict

from netfleet import checkpoint
from netfleet.algorithms import Algorithm
from netfleet.config import Evaluation
from netfleet.engines import Snapshot
from netfleet.engines.loop import diverged
from netfleet.history import CHECKPOINT_FILE, History
from netfleet.metrics import measure
from netfleet.problems.base import Problem
from netfleet.progress import Display


class RunRecorder:
    """The `Recorder` of a run whose history may live in memory or in a folder."""

    def __init__(
        self,
        history: History,
        problem: Problem,
        algorithm: Algorithm,
        rounds: int,
        evaluation: Evaluation,
        checkpoint_every: int,
        display: Display,
        stop: int | None = None,
    ) -> None:
        self.stop = stop or rounds
        self.history, self.problem, self.algorithm, self.rounds = history, problem, algorithm, rounds
        self.evaluation, self.checkpoint_every, self.display = evaluation, checkpoint_every, display
        self._limits = {name: value for name, value in asdict(evaluation).items() if "every" not in name}

    def due(self, t: int) -> bool:
        return self._evaluates(t) or self._checkpoints(t)

    def _evaluates(self, t: int) -> bool:
        return t % self.evaluation.every == 0 or t == self.rounds

    def _checkpoints(self, t: int) -> bool:
        return self.history.folder is not None and (t % self.checkpoint_every == 0 or t == self.stop)

    def take(self, snapshot: Snapshot) -> None:
        known = len(self.history) > 0 and self.history.rounds >= snapshot.t
        if self._evaluates(snapshot.t) and not known:
            self._record(snapshot)
        if self._checkpoints(snapshot.t):
            self.rescue(snapshot)

    def _record(self, snapshot: Snapshot) -> None:
        full = self.evaluation.full(snapshot.t, self.rounds)
        record = {
            "round": snapshot.t,
            **measure(self.problem, snapshot.state, snapshot.buffers, full=full, **self._limits),
            "eta": self.algorithm.step_size(max(snapshot.t - 1, 0)),
            "bytes": snapshot.bytes,
            "samples": snapshot.samples,
            "seconds": snapshot.seconds,
        }
        for name, value in record.items():
            if value is not None and not math.isfinite(value):
                raise diverged(self.algorithm, name, max(snapshot.t - 1, 0))
        self.history.append(record)
        self.display.record(record)

    def rescue(self, snapshot: Snapshot) -> None:
        if self.history.folder is not None:
            checkpoint.save(self.history.folder / CHECKPOINT_FILE, snapshot, self.history.hash)

    def progress(self, t: int) -> None:
        self.display.round(t)
