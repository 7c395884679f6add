"""Keeps the record of one run: measures what is due, appends it to the history, writes checkpoints."""

from __future__ import annotations

import math
from dataclasses import asdict

import torch

from netfleet.algorithms import Algorithm
from netfleet.engines.loop import Host, Snapshot, diverged
from netfleet.runs import checkpoint
from netfleet.runs.config import Evaluation
from netfleet.runs.history import History
from netfleet.runs.metrics import measure
from netfleet.runs.progress import Display


class RunRecorder:
    """The `Recorder` of a run whose history may live in memory or in a folder."""

    def __init__(
        self,
        history: History,
        algorithm: Algorithm,
        rounds: int,
        evaluation: Evaluation,
        checkpoint_every: int,
        display: Display,
        stop: int | None = None,
    ) -> None:
        self.stop = stop or rounds
        self.history, self.algorithm, self.rounds = history, algorithm, rounds
        self.evaluation, self.checkpoint_every, self.display = evaluation, checkpoint_every, display
        self._limits = {name: value for name, value in asdict(evaluation).items() if "every" not in name}

    def due(self, t: int) -> bool:
        return self._evaluates(t) or self._checkpoints(t)

    def _evaluates(self, t: int) -> bool:
        return t % self.evaluation.every == 0 or t == self.rounds

    def _checkpoints(self, t: int) -> bool:
        return self.history.folder is not None and (t % self.checkpoint_every == 0 or t == self.stop)

    def take(self, snapshot: Snapshot, host: Host) -> None:
        known = len(self.history) > 0 and self.history.rounds >= snapshot.t
        if self._evaluates(snapshot.t) and not known:
            self._record(snapshot, host)
        if self._checkpoints(snapshot.t):
            self.rescue(snapshot, host)

    def _record(self, snapshot: Snapshot, host: Host) -> None:
        full, collective = self.evaluation.full(snapshot.t, self.rounds), host.collective
        measured = measure(
            host.problem, snapshot.state, snapshot.buffers, collective=collective, full=full, **self._limits
        )
        sent, used = collective.total(torch.tensor([[snapshot.bytes, snapshot.samples]])).tolist()
        record = {
            "round": snapshot.t,
            **measured,
            "eta": self.algorithm.step_size(max(snapshot.t - 1, 0)),
            "bytes": sent,
            "samples": used,
            "seconds": snapshot.seconds,
        }
        bad = [name for name, value in record.items() if value is not None and not math.isfinite(value)]
        if collective.total(torch.tensor([len(bad)])) > 0:  # what x̄ scores is known to one host only
            raise diverged(self.algorithm, bad[0] if bad else "a measured value", max(snapshot.t - 1, 0))
        if collective.keeps_record:
            self.history.append(record)
            self.display.record(record)

    def rescue(self, snapshot: Snapshot, host: Host) -> None:
        if self.history.folder is not None:
            checkpoint.save(self.history.folder, snapshot, host, self.history.hash)

    def progress(self, t: int) -> None:
        self.display.round(t)
