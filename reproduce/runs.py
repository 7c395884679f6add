"""The runs behind the curves of panels: each config once, whatever figures show it, and only what no store has."""

import json
import shutil
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from netfleet import engines
from netfleet.algorithms.build import make_algorithm
from netfleet.errors import ConfigError
from netfleet.files import locked, make_folder
from netfleet.runs import checkpoint
from netfleet.runs.build import build_job, build_setting
from netfleet.runs.config import Experiment, RunConfig
from netfleet.runs.history import History
from netfleet.runs.progress import Display, Live, Quiet, in_words
from netfleet.runs.run import run_one
from reproduce.panels import Panel
from reproduce.store import Store, rounded, short


class Work(NamedTuple):
    rounds: int
    cost: float  # of a round, comparable between runs of one kind
    kind: Hashable = None  # runs of one kind take time in proportion to their cost


class LiveTotal(Live):
    """A `Live` display with a bar over all runs and the time that they still need.

    `work` has what every run still needs, by the run's label. The seconds for a kind's unit of cost are measured since
    this display began; until then they are the mean over all measured kinds.
    """

    def __init__(self, console: Console, work: Mapping[str, Work]) -> None:
        super().__init__(console, len(work))
        self._work = dict(work)
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
        return f"; {100 * self.part:.0f} % of all, {in_words(self.left)} left" if self._seen else ""

    def _pace(self, kind: Hashable) -> float:
        seen = [self._seen[kind]] if kind in self._seen else list(self._seen.values())
        cost = sum(cost for cost, _ in seen)
        return sum(seconds for _, seconds in seen) / cost if cost else 0.0


class PlannedRun(NamedTuple):
    label: str
    experiment: Experiment
    run: RunConfig

    def folder(self, work: Path) -> Path:
        """Where it is kept until it is done."""
        return work / short(self.run.hash)

    def work(self, work: Path) -> Work:
        """What is still to do, in samples; the display estimates the time left from it."""
        folder, algorithm = self.folder(work), make_algorithm(self.run.config["algorithm"])
        workers, batch = self.experiment.topology.get("workers", 1), self.experiment.problem.get("batch", 1)
        rounds = self.experiment.rounds - (checkpoint.reached(folder) if checkpoint.exists(folder) else 0)
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
        with locked_folder(folder) as mine:
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


def kind_of(config: Mapping[str, Any]) -> str:
    """Runs of the same kind take about the same time per sample: the model, or the problem that has none."""
    problem = config["problem"]
    return json.dumps(problem.get("model", problem["kind"]), sort_keys=True)


def histories(panel: Panel, store: Store) -> dict[str, list[History]]:
    found = {c.label: [store.load(run) for run in c.experiment.runs()] for c in panel.curves}
    return {label: [h for h in runs if h is not None] for label, runs in found.items()}


class Check(NamedTuple):
    """How far a repeated run differs from the stored one over its first rounds."""

    run: PlannedRun
    rounds: int
    values: int
    different: int
    largest: float  # difference in accuracy


def verify(todo: Sequence[PlannedRun], store: Store, rounds: int, display: Display | None = None) -> list[Check]:
    for run in todo:
        every = run.experiment.evaluation.every
        if rounds < every:
            raise ConfigError(f"--verify {rounds} would verify nothing: {run.label} is measured every {every} rounds")
    settings, checks = SettingCache(), []
    for run in todo:
        stop = min(rounds, run.experiment.rounds)
        made = partial(settings.job, run.experiment, run.run)
        again = run_one(run.experiment, run.run, made, None, display or Quiet(), label=run.label, stop=stop)
        stored = store.load(run.run)
        assert stored is not None, run.label
        checks.append(compare(run, stored, again, stop))
    return checks


def compare(run: PlannedRun, stored: History, again: History, rounds: int) -> Check:
    """Both histories up to a round, value by value, at the digits that are stored."""
    new = {record["round"]: record for record in again.timeless()}
    old = [record for record in stored.timeless() if record["round"] <= rounds]
    again_at = [(record, new.get(record["round"], {})) for record in old]
    pairs = [(name, value, rounded(now.get(name))) for was, now in again_at for name, value in was.items()]
    gaps = [abs(was - now) for name, was, now in pairs if name == "accuracy" and now is not None]
    different = sum(was != now for _, was, now in pairs)
    return Check(run, old[-1]["round"], len(pairs), different, max(gaps, default=0.0))


class SettingCache:
    """Topology and problem of the last experiment, as many runs in a row share theirs."""

    def __init__(self) -> None:
        self._key: object = None

    def job(self, experiment: Experiment, run: RunConfig) -> engines.Job:
        key = (experiment.topology, experiment.problem, experiment.engine, run.seed)
        if key != self._key:
            self._setting, self._key = build_setting(experiment, run.seed), key
        return build_job(run.config["algorithm"], run.seed, experiment, self._setting)


@contextmanager
def locked_folder(folder: Path) -> Iterator[bool]:
    """Lock a run's folder, so that two commands do not write the same run; yields whether it could be locked."""
    make_folder(folder)
    with locked(folder) as mine:
        yield mine
    if folder.exists() and not any(folder.iterdir()):  # the run left nothing
        folder.rmdir()
