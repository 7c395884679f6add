"""What a site would spend of its privacy in a plan, as its policy asks."""

from typing import NamedTuple, Protocol

from netfleet.algorithms.build import make_algorithm
from netfleet.privacy.accounting import epsilon_spent
from netfleet.privacy.build import sampling_rate
from netfleet.privacy.queries import queries_after
from netfleet.runs.config import Experiment


class Budget(NamedTuple):
    """What a site spends in a whole plan; `epsilon` is None as long as nobody can know it."""

    epsilon: float | None
    delta: float


class Accountant(Protocol):
    """Says what a site would spend in a plan; None: the plan has no differential privacy.

    `rows` are the site's training rows; None: they have not been read, or a loop of its own has them.
    """

    def __call__(self, experiment: Experiment, rows: int | None) -> Budget | None: ...


def planned_budget(experiment: Experiment, rows: int | None) -> Budget | None:
    """The most that all rounds spend; without `epsilon` in `[privacy]` it depends on the site's rows."""
    privacy = experiment.privacy
    if privacy is None or privacy.clip is None:
        return None
    if privacy.epsilon is not None or rows is None:
        return Budget(privacy.epsilon, privacy.delta)
    (run,) = experiment.runs()
    queries = queries_after(make_algorithm(run.config["algorithm"]), experiment.rounds, run.seed)
    assert privacy.noise is not None
    rate = sampling_rate(experiment.problem["batch"], rows)
    return Budget(epsilon_spent(privacy.noise, rate, queries[-1], privacy.delta), privacy.delta)
