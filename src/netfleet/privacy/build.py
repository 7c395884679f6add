"""Makes a problem private, as an experiment's `[privacy]` says."""

from netfleet.algorithms.base import Algorithm
from netfleet.errors import ConfigError
from netfleet.privacy.accounting import noise_for
from netfleet.privacy.mechanism import Mechanism, Rate, Secret
from netfleet.privacy.queries import queries_after
from netfleet.privacy.settings import Privacy
from netfleet.privacy.spending import Spending
from netfleet.problems.base import Problem
from netfleet.problems.module import ModuleProblem


def make_private(
    problem: Problem, privacy: Privacy, method: Algorithm, rounds: int, secret: Secret, earlier: int = 0
) -> ModuleProblem:
    """The problem with private gradients for its workers, and what they spend; raises if it has no rows to protect.

    `earlier` are gradients that were computed on the same rows before.
    """
    if not isinstance(problem, ModuleProblem):
        raise ConfigError(
            f"privacy protects rows of data, and {type(problem).__name__} has none that netfleet knows of; leave "
            f"[privacy] out, or train a model on data"
        )
    counts = queries_after(method, rounds, problem.seed)
    rates = {i: _rate(problem, i, privacy, earlier + counts[-1]) for i in problem.workers}
    spending = Spending(rates, privacy.delta, counts, earlier)
    return problem.private(Mechanism(privacy.clip, rates, secret), spending)


def rounds_allowed(problem: Problem, privacy: Privacy | None, rounds: int) -> int:
    """How many of the rounds the budget allows."""
    if privacy is None or privacy.epsilon is None or privacy.noise is None or problem.spending is None:
        return rounds  # solved noise allows all of them
    allowed = problem.spending.rounds_within(privacy.epsilon)
    if allowed < 1:
        spent = problem.spending.epsilon(min(1, rounds))
        raise ConfigError(
            f"privacy: with noise = {privacy.noise:g} the first round would spend epsilon = {spent:.3g} of "
            f"{privacy.epsilon:g}; raise noise or epsilon, or leave noise out so that it is solved for"
        )
    return allowed


def _rate(problem: ModuleProblem, worker: int, privacy: Privacy, queries: int) -> Rate:
    rows = len(problem.parts[worker])
    if privacy.delta * rows >= 1:
        raise ConfigError(
            f"privacy.delta = {privacy.delta:g} is not below 1 / {rows}, the rows of {problem.worker_name(worker)}, so "
            f"publishing a random row would count as private; use a smaller one, such as {0.1 / rows:.0e}"
        )
    rate = 1.0 if problem.batch == 0 else min(1.0, problem.batch / rows)
    if privacy.noise is not None:
        return Rate(privacy.noise, rate, rows)
    assert privacy.epsilon is not None
    return Rate(noise_for(privacy.epsilon, privacy.delta, rate, queries), rate, rows)
