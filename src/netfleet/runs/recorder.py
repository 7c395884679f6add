"""The recorder of a run: it measures snapshots that are due, appends them to the history, and writes checkpoints."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from netfleet.algorithms import Algorithm
from netfleet.engines.host import Host
from netfleet.engines.job import Recorder, Snapshot
from netfleet.engines.loop import diverged
from netfleet.problems import ModuleProblem
from netfleet.runs import checkpoint
from netfleet.runs.config import Experiment
from netfleet.runs.history import History, Record
from netfleet.runs.metrics import averages, measure
from netfleet.runs.progress import Display
from netfleet.runs.score_table import score_table
from netfleet.runs.worker_log import WorkerLog


class RunRecorder(Recorder):
    def __init__(
        self,
        history: History,
        algorithm: Algorithm,
        settings: Experiment,
        display: Display,
        stop: int | None = None,
        follow: Callable[[], None] | None = None,
        workers: bool = False,
    ) -> None:
        """With `stop` the run ends after that round, as if it were interrupted there.

        `follow` is called when the history has a new record. With `workers` the run's folder gets them one by one.
        """
        self.history, self.algorithm, self.display = history, algorithm, display
        self._follow, self._workers = follow, workers and history.folder is not None
        self._log: WorkerLog | None = None
        self.rounds, self.stop = settings.rounds, stop or settings.rounds
        self.evaluation, self.checkpoint_every = settings.evaluation, settings.checkpoint_every

    def due(self, t: int) -> bool:
        return self._evaluates(t) or self._checkpoints(t)

    def _evaluates(self, t: int) -> bool:
        return t % self.evaluation.every == 0 or t == self.rounds

    def _checkpoints(self, t: int) -> bool:
        return self.history.folder is not None and (t % self.checkpoint_every == 0 or t == self.stop)

    def record(self, snapshot: Snapshot, host: Host) -> None:
        known = len(self.history) > 0 and self.history.rounds >= snapshot.t
        if self._evaluates(snapshot.t) and not known:
            self._measure(snapshot, host)
        if self._checkpoints(snapshot.t):
            self._write(snapshot, host)

    def _measure(self, snapshot: Snapshot, host: Host) -> None:
        collective, full = host.collective, self.evaluation.full(snapshot.t, self.rounds)
        values: dict[str, Tensor] = {}
        each = values.__setitem__ if self._workers else None
        record: Record = {"round": snapshot.t, **measure(snapshot, host, self.evaluation, full=full, each=each)}
        record |= self.counters(snapshot, host)
        bad = [name for name, value in record.items() if value is not None and not math.isfinite(value)]
        if collective.total(torch.tensor([len(bad)])) > 0:  # one host only knows the scores of x̄
            raise diverged(self.algorithm, bad[0] if bad else "a measured value", max(snapshot.t - 1, 0))
        if snapshot.t == self.rounds and self.evaluation.metrics and isinstance(host.problem, ModuleProblem):
            mean, buffers = averages(snapshot, host)
            if collective.keeps_record:  # before the record, which says that the run is complete
                self.history.save_scores(score_table(host.problem, mean, self.evaluation.metrics, buffers))
        if collective.keeps_record:
            self._write_workers(snapshot.t, values)
            self.write_down(record)

    def _write_workers(self, t: int, values: dict[str, Tensor]) -> None:
        if values and self.history.folder is not None:
            if self._log is None:
                self._log = WorkerLog(self.history.folder, len(next(iter(values.values()))))
            self._log.append(t, {name: each.tolist() for name, each in values.items()})

    def write_down(self, record: Record) -> None:
        """Keep a record, and then show it."""
        self.history.append(record)
        self.display.record(record)
        if self._follow is not None:
            self._follow()

    def counters(self, snapshot: Snapshot, host: Host) -> Record:
        """What a record has besides measurements."""
        sent, used = host.collective.total(torch.tensor([[snapshot.bytes, snapshot.samples]])).tolist()
        eta = self.algorithm.step_size(max(snapshot.t - 1, 0))
        counted = {"eta": eta, "bytes": sent, "samples": used, "seconds": snapshot.seconds}
        spending = host.problem.spending
        return counted if spending is None else counted | {"epsilon": spending.epsilon(snapshot.t)}

    def save(self, snapshot: Snapshot, host: Host) -> None:
        self.history.final = snapshot
        self._write(snapshot, host)

    def _write(self, snapshot: Snapshot, host: Host) -> None:
        if self.history.folder is not None:
            checkpoint.save(self.history.folder, snapshot, host, self.history.hash)

    def progress(self, t: int) -> None:
        self.display.round(t)
