"""How long the training will take: from what it has taken so far, or from a measurement of some steps."""

from pathlib import Path
from typing import NamedTuple

from netfleet.algorithms.base import Algorithm
from netfleet.errors import CheckpointError
from netfleet.problems.base import Problem
from netfleet.runs.config import Experiment
from netfleet.runs.history import History
from netfleet.sites.costs.rounds import QUICK, Rounds, rounds_of, size_of
from netfleet.sites.costs.speed import Speed, measure_steps, steps_in


class Pace(NamedTuple):
    """Rounds that are left, and the seconds of one; `known`: from rounds that were done, waits included."""

    rounds: int
    seconds: float
    known: bool

    @property
    def left(self) -> float:
        return self.rounds * self.seconds


def pace_so_far(folder: Path, experiment: Experiment) -> Pace | None:
    """From the history of the rounds that a site has done; None: it has done none."""
    try:
        last = History.load(folder).records[-1]
        done, seconds = int(last["round"]), float(last["seconds"])
    except (CheckpointError, IndexError, KeyError, TypeError, ValueError):
        return None
    return Pace(max(experiment.rounds - done, 0), seconds / done, True) if done > 0 else None


def measured_pace(
    problem: Problem, algorithm: Algorithm, rounds: Rounds, experiment: Experiment, save: float, span: float
) -> Pace:
    """From some steps at the initial model, and the seconds for which a round is saved. Nothing is kept of them."""
    step, whole = measure_steps(problem, algorithm, rounds, span)
    speed, made = Speed(step, save, whole=whole), rounds
    if experiment.time_box is not None:
        (steps,) = steps_in(experiment.time_box, algorithm, [speed])
        made = rounds_of(algorithm, size_of(problem), experiment.rounds, steps, QUICK)
    return Pace(experiment.rounds, speed.computing(made) + speed.save, False)
