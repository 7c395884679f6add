"""The runs behind the curves of panels: each config once, whatever figures show it, and only what no store has."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from netfleet import engines
from netfleet.algorithms.build import make_algorithm
from netfleet.errors import ConfigError
from netfleet.runs import checkpoint
from netfleet.runs.build import Setting, build_job, build_setting
from netfleet.runs.config import Experiment, RunConfig
from netfleet.runs.history import History
from netfleet.runs.progress import Display, Quiet
from netfleet.runs.run import run_one
from reproduce.panels import Panel
from reproduce.progress import Work
from reproduce.store import Store, make_folder, rounded, short


class PlannedRun(NamedTuple):
    """A run that a panel asks for."""

    label: str
    experiment: Experiment
    run: RunConfig

    def folder(self, work: Path) -> Path:
        """Where it is kept until it is done."""
        return work / short(self.run.hash)

    def done(self, work: Path) -> int:
        """The round from which an interrupted run will be resumed."""
        folder = self.folder(work)
        return checkpoint.reached(folder) if checkpoint.exists(folder) else 0

    def work(self, work: Path) -> Work:
        """What is still to do, in samples; the display estimates the time left from it."""
        algorithm = make_algorithm(self.run.config["algorithm"])
        workers, batch = self.experiment.topology.get("workers", 1), self.experiment.problem.get("batch", 1)
        rounds = self.experiment.rounds - self.done(work)
        return Work(rounds, float(getattr(algorithm, "K", 1) * workers * batch), kind_of(self.run.config))


def planned(panels: Sequence[Panel], store: Store | None = None) -> list[PlannedRun]:
    """The different runs of some panels that the store lacks: the first seed of each curve, then the second, …"""
    found: dict[str, tuple[int, PlannedRun]] = {}
    for panel in panels:
        for curve in panel.curves:
            for place, run in enumerate(curve.experiment.runs()):
                if store is None or store.load(run) is None:
                    label = f"{panel.name}, {run.label}, seed {run.seed}"
                    found.setdefault(run.hash, (place, PlannedRun(label, curve.experiment, run)))
    return [run for _, run in sorted(found.values(), key=lambda pair: pair[0])]


def make(todo: Sequence[PlannedRun], store: Store, work: Path, display: Display | None = None) -> list[PlannedRun]:
    """Make the runs. Each is kept in `work` until it is done, and is resumed from there after an interruption.

    Returns those that were left out because another command is making them.
    """
    settings, busy, display = SettingCache(), [], display or Quiet()
    for run in todo:
        folder = run.folder(work)
        with locked(folder) as mine:
            if mine and store.load(run.run) is None:  # the list may be hours old
                made = partial(settings.job, run.experiment, run.run)
                store.save(run_one(run.experiment, run.run, made, folder, display, label=run.label))
            else:
                display.skip(run.label)
            if mine:
                shutil.rmtree(folder)
            else:
                busy.append(run)
    return busy


def paces(store: Store) -> dict[Hashable, float]:
    """Seconds per sample of the stored runs, by model."""
    found: dict[Hashable, list[float]] = {}
    for history in store:
        last = history.last
        if last.get("seconds") and last.get("samples"):
            found.setdefault(kind_of(history.config), []).append(last["seconds"] / last["samples"])
    return {kind: median(values) for kind, values in found.items()}


def kind_of(config: Mapping[str, Any]) -> str:
    """Runs of the same kind take about the same time per sample: the model, or the problem that has none."""
    problem = config["problem"]
    return json.dumps(problem.get("model", problem["kind"]), sort_keys=True)


def histories(panel: Panel, store: Store) -> dict[str, list[History]]:
    """The finished runs of each curve."""
    found = {c.label: [store.load(run) for run in c.experiment.runs()] for c in panel.curves}
    return {label: [h for h in runs if h is not None] for label, runs in found.items()}


class Check(NamedTuple):
    """How far a repeated run differs from the stored one over its first rounds."""

    label: str
    hash: str
    rounds: int
    values: int
    different: int
    largest: float  # difference in accuracy


def verify(todo: Sequence[PlannedRun], store: Store, rounds: int, display: Display | None = None) -> list[Check]:
    """Make the first rounds of the stored runs again and compare."""
    for run in todo:
        every = run.experiment.evaluation.every
        if rounds < every:
            raise ConfigError(f"--verify {rounds} would verify nothing: {run.label} is measured every {every} rounds")
    settings, checks = SettingCache(), []
    for run in todo:
        first = replace(run.experiment, rounds=min(rounds, run.experiment.rounds))
        made = partial(settings.job, first, run.run)
        again = run_one(first, run.run, made, None, display or Quiet(), label=run.label)
        stored = store.load(run.run)
        assert stored is not None, run.label
        checks.append(compare(run, stored, again, first.rounds))
    return checks


def compare(run: PlannedRun, stored: History, again: History, rounds: int) -> Check:
    """Both histories up to a round, value by value, at the digits that are stored."""
    new = {record["round"]: record for record in again.timeless()}
    old = [record for record in stored.timeless() if record["round"] <= rounds]
    pairs = [
        (name, value, rounded(new.get(record["round"], {}).get(name)))
        for record in old
        for name, value in record.items()
    ]
    gaps = [abs(was - now) for name, was, now in pairs if name == "accuracy" and now is not None]
    different = sum(was != now for _, was, now in pairs)
    return Check(run.label, run.run.hash, old[-1]["round"], len(pairs), different, max(gaps, default=0.0))


class SettingCache:
    """Topology and problem of the last experiment, as many runs in a row share theirs."""

    def __init__(self) -> None:
        self._key: object = None

    def __call__(self, experiment: Experiment, seed: int) -> Setting:
        key = (experiment.topology, experiment.problem, experiment.engine, seed)
        if key != self._key:
            self._setting, self._key = build_setting(experiment, seed), key
        return self._setting

    def job(self, experiment: Experiment, run: RunConfig) -> engines.Job:
        """What an engine is given for a run."""
        return build_job(run.config["algorithm"], run.seed, experiment, self(experiment, run.seed))


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Lock a run's folder, so that two commands do not write the same run; yields whether it could be locked."""
    make_folder(folder)
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield _try_lock(handle)
    finally:
        os.close(handle)
        if folder.exists() and not any(folder.iterdir()):  # the run left nothing
            folder.rmdir()


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
