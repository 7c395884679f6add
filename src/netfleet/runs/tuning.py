"""Hyper-parameters chosen by trying: every method on the same grid, in full or by successive halving.

Successive halving (Jamieson, Talwalkar 2016) gives all points of a method's grid a few rounds, and the better third of
them three times as many, until one is left with all. A run resumes where it stopped, so no round is computed twice.
Halving favours points that start fast: it may keep a large step size that fails late.

Where the problem has test data, a part of the training rows is held out for the choice (VALIDATION): a step size that
was chosen on test data would make the comparison on the same data look better than it is.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from netfleet.algorithms.build import WRAPPERS, make_algorithm
from netfleet.engines.job import Job
from netfleet.errors import ConfigError
from netfleet.registry import suggestion
from netfleet.runs.build import Settings, build_job
from netfleet.runs.config import Experiment, RunConfig, Table
from netfleet.runs.history import History, Record, higher_is_better, is_percent
from netfleet.runs.progress import Display, Quiet
from netfleet.runs.run import run_one

Grid = Mapping[str, Sequence[float]]
GRID: Grid = {"eta": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)}
FACTOR = 3  # one in so many points of a stage enters the next one, which has so many times the rounds
VALIDATION = 0.1  # share of the training rows that points are scored on, unless the experiment names one
LAST = 0.1  # share of the rounds whose evaluations are the score of a point


def parse_grid(texts: Sequence[str]) -> Grid:
    """`eta=0.01,0.1` texts as a grid; without any, the usual one."""
    grid: dict[str, Sequence[float]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        try:
            numbers = [int(v) if v.strip().isdigit() else float(v) for v in values.split(",")]
        except ValueError:
            raise ConfigError(f"--grid takes NAME=A,B,… with numbers, got {text!r}; for example eta=0.01,0.1") from None
        if name.strip() in grid:
            raise ConfigError(f"--grid {text}: {name.strip()} was given before; give all its values at once")
        grid[name.strip()] = numbers
    return grid or GRID


@dataclass(frozen=True)
class Trial:
    method: str
    point: tuple[tuple[str, float], ...]
    experiment: Experiment

    @property
    def label(self) -> str:
        return ", ".join([self.method, *(f"{name} = {value:g}" for name, value in self.point)])


@dataclass(frozen=True)
class Outcome:
    """How good a trial was after some rounds: accuracy where there is one, else the loss with its sign turned."""

    trial: Trial
    score: float
    rounds: int
    #: The first round with the target, as a mean over the seeds, if a target is given and all seeds reach it.
    reached: float | None = None

    @property
    def rank(self) -> tuple[float, float]:
        """Outcomes in this order are the best first: by the rounds to the target, then by the score."""
        return (math.inf if self.reached is None else self.reached, -self.score)


def validated(experiment: Experiment) -> Experiment:
    """The experiment scored on rows that are held out of the training data, if its problem can."""
    if experiment.problem.get("validation") != 0:
        return experiment
    return replace(experiment, problem=experiment.problem | {"validation": VALIDATION})


def trials(experiment: Experiment, grid: Grid = GRID) -> dict[str, list[Trial]]:
    """The points of every method, by its label; parameters that a method does not have are left out."""
    experiment = validated(experiment)
    known = {name for table in experiment.algorithms for name in table} - {"kind", "label", *WRAPPERS}
    for name, values in grid.items():
        if name not in known:
            others = f"{suggestion(name, known)}; they have: {', '.join(sorted(known))}"
            raise ConfigError(f"no algorithm of the experiment has a parameter {name!r}{others}")
        if not values or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            raise ConfigError(f"the grid of {name} must be one or more numbers, got {list(values)}")
    found: dict[str, list[Trial]] = {}
    labels = [run.label for run in experiment.runs()][: len(experiment.algorithms)]
    for label, table in zip(labels, experiment.algorithms, strict=True):
        names = [name for name in grid if name in table]
        points = [tuple(zip(names, at, strict=True)) for at in itertools.product(*(grid[name] for name in names))]
        found[label] = [Trial(label, p, replace(experiment, algorithms=(_at(table, p),))) for p in points]
    return found


def _at(table: Table, point: Sequence[tuple[str, float]]) -> Table:
    """An algorithm's table with the values of a point; a schedule's step size is where it starts."""
    changed = dict(table)
    for name, value in point:
        scheduled = name == "eta" and isinstance(table[name], Mapping) and "start" in table[name]
        changed[name] = table[name] | {"start": value} if scheduled else value
    make_algorithm({key: value for key, value in changed.items() if key != "label"})
    return changed


def stages(rounds: int, points: int, every: int, halving: bool) -> list[int]:
    """The rounds of each stage; the last stage has all rounds."""
    count = math.ceil(math.log(points, FACTOR) - 1e-9) if halving and points > 1 else 0
    wanted = [rounds / FACTOR**k for k in range(count, 0, -1)]
    early = {min(rounds, max(every, math.ceil(r / every) * every)) for r in wanted}
    return sorted(early | {rounds})


def starts(experiment: Experiment, grid: Grid = GRID, *, halving: bool = False) -> int:
    """How many times a run is started or resumed."""
    total = 0
    for points in trials(experiment, grid).values():
        for stage, _ in enumerate(stages(experiment.rounds, len(points), experiment.evaluation.every, halving)):
            total += math.ceil(len(points) / FACTOR**stage)
    return total * len(experiment.seeds)


def tune(
    experiment: Experiment,
    grid: Grid = GRID,
    out: Path | None = None,
    *,
    halving: bool = False,
    target: float | None = None,
    display: Display | None = None,
) -> dict[str, list[Outcome]]:
    """Try every method's points and return their outcomes, the best first.

    The best has the highest score or, with a `target` (an accuracy; a loss where there is none), reaches it in the
    fewest rounds. Runs are saved in `out`, from which the same call resumes them after an interruption.
    """
    if target is not None and not math.isfinite(target):
        raise ConfigError(f"the target must be a number (an accuracy such as 0.9, or a loss), got {target}")
    methods = trials(experiment, grid)
    setting = Settings(validated(experiment), keep=len(experiment.seeds))
    jobs = {  # of all trials by the hash of their run, so bad input is found before the first run starts
        run.hash: build_job(run.config["algorithm"], run.seed, trial.experiment, setting(run.seed))
        for trial in itertools.chain.from_iterable(methods.values())
        for run in trial.experiment.runs()
    }
    if target is not None:
        problem = next(iter(jobs.values())).problem
        scores = problem.evaluate(problem.start()[None], limit=1)
        _check_target(target, labelled=scores.accuracy is not None)
    results = {}
    for method, points in methods.items():
        outcomes, left = dict[str, Outcome](), points
        for rounds in stages(experiment.rounds, len(points), experiment.evaluation.every, halving):
            for trial in left:
                made = [_run(trial, r, jobs[r.hash], out, display or Quiet(), rounds) for r in trial.experiment.runs()]
                outcomes[trial.label] = _outcome(trial, made, rounds, target)
            ranked = sorted((outcomes[trial.label] for trial in left), key=lambda o: o.rank)
            left = [outcome.trial for outcome in ranked[: math.ceil(len(ranked) / FACTOR)]]
        results[method] = sorted(outcomes.values(), key=lambda o: (-o.rounds, o.rank))
    return results


def _check_target(target: float, *, labelled: bool) -> None:
    if labelled and not 0 < target <= 1:
        raise ConfigError(f"an accuracy to reach is above 0 and at most 1 (0.9 for 90 %), got {target:g}")


def _outcome(trial: Trial, made: Sequence[History], rounds: int, target: float | None) -> Outcome:
    # A saved run may have more records than those up to this round.
    made = [replace(history, records=[r for r in history if r["round"] <= rounds]) for history in made]
    hits = [None if target is None or h.diverged else rounds_to(h, target) for h in made]
    known = [hit for hit in hits if hit is not None]
    reached = float(np.mean(known)) if len(known) == len(made) else None
    return Outcome(trial, float(np.mean([score(h) for h in made])), rounds, reached)


def _run(trial: Trial, run: RunConfig, job: Job, out: Path | None, display: Display, rounds: int) -> History:
    folder = None if out is None else out / run.hash[:16]
    return run_one(trial.experiment, run, lambda: job, folder, display, label=trial.label, stop=rounds)


def score(history: History) -> float:
    """The mean over the last tenth of the rounds of accuracy, else of −loss; −∞ if the run diverged."""
    if history.diverged or not history.records:
        return -math.inf
    return float(np.mean([_quality(r) for r in history if r["round"] >= (1 - LAST) * history.rounds]))


def rounds_to(history: History, target: float, column: str | None = None) -> int | None:
    """The first measured round with at least this accuracy (at most this loss, where there is no accuracy).

    With a `column` the target is one for its values.
    """
    for record in history:
        name = column or ("loss" if record.get("accuracy") is None else "accuracy")
        _check_target(target, labelled=is_percent(name))
        value = record.get(name)
        if value is not None and (value >= target if higher_is_better(name) else value <= target):
            return int(record["round"])
    return None


def _quality(record: Record) -> float:
    return float(-record["loss"] if record.get("accuracy") is None else record["accuracy"])


def best(experiment: Experiment, results: Mapping[str, Sequence[Outcome]]) -> Experiment:
    """The experiment with every method at its best point; one that diverged at all of them is left out."""
    found = [outcomes[0] for outcomes in results.values() if math.isfinite(outcomes[0].score)]
    return replace(experiment, algorithms=tuple(o.trial.experiment.algorithms[0] for o in found))


def at_the_edge(outcomes: Sequence[Outcome], grid: Grid) -> list[str]:
    """The parameters whose best value is the first or the last of several in the grid."""
    if not math.isfinite(outcomes[0].score):
        return []
    ends = {name: (min(values), max(values)) for name, values in grid.items() if len(values) > 1}
    return [name for name, value in outcomes[0].trial.point if value in ends.get(name, ())]
