"""Makes a problem private, as an experiment's `[privacy]` says."""

from collections.abc import Sequence
from typing import Protocol

from netfleet.errors import ConfigError
from netfleet.privacy.accounting import noise_for
from netfleet.privacy.link_noise import LinkNoise, LinkSecret
from netfleet.privacy.mechanism import Mechanism, Rate, Secret, simulated_secret
from netfleet.privacy.settings import Privacy
from netfleet.privacy.spending import Spending
from netfleet.problems.base import Problem
from netfleet.problems.module import ModuleProblem


def make_private(
    problem: Problem, privacy: Privacy, queries: Sequence[int], account: "Account | None" = None
) -> ModuleProblem:
    """The problem with private gradients for its workers; raises if it has no rows to protect.

    `queries` are a worker's gradients after 0, 1, … rounds. Without an account of its own, as in a simulation, all that
    is drawn follows from the problem's seed.
    """
    if not isinstance(problem, ModuleProblem):
        raise ConfigError(
            f"privacy protects rows of data, and {type(problem).__name__} has none that netfleet knows of; leave "
            f"[privacy] out, or train a model on data"
        )
    assert privacy.clip is not None
    rates = {i: _rate(problem, i, privacy, queries[-1]) for i in problem.workers}
    known = simulated_secret(problem.seed)
    secret, counted = (lambda t: known, queries.__getitem__) if account is None else (account.secret, account.counted)
    charged = rates if account is None else {i: account.charged(rate) for i, rate in rates.items()}
    spending = Spending(charged, privacy.delta, len(queries) - 1, counted)
    return problem.private(Mechanism(privacy.clip, rates, secret), spending)


def link_noise(privacy: Privacy, rounds: int, secret: LinkSecret) -> LinkNoise:
    """The noise on the links of a training of so many rounds."""
    assert privacy.link_noise is not None
    return LinkNoise(privacy.link_noise, rounds - privacy.exact_rounds, secret)


def check_buffers(problem: Problem) -> None:
    """Reject noise on a model's running statistics."""
    if problem.mixes_buffers:
        raise ConfigError(
            'privacy.link_noise: noise could make running variances negative; use batch_norm = "local" or '
            '"recalibrated", or GroupNorm'
        )


class Account(Protocol):
    """Who counts gradients, and has the secret that they are made with (`account.SiteAccount`)."""

    def secret(self, t: int) -> Secret:
        """The secret for the gradients of round t, which count from now on."""

    def counted(self, t: int) -> int:
        """Gradients that were computed after t rounds."""

    def charged(self, rate: Rate) -> Rate:
        """What all gradients are counted with, when they have this rate from now on."""


def rounds_allowed(problem: Problem, privacy: Privacy | None, rounds: int, first: int = 0) -> int:
    """The round after which the budget allows no further one; raises if it allows none after the first."""
    if privacy is None or privacy.epsilon is None:
        return rounds
    assert problem.spending is not None
    allowed = problem.spending.rounds_within(privacy.epsilon, first)
    if allowed <= first < rounds:
        spent = problem.spending.epsilon(first + 1)
        raise ConfigError(
            f"privacy: after one more round epsilon would be {spent:.3g}, and the budget is {privacy.epsilon:g}; raise "
            f"noise or epsilon, or leave noise out so that it is solved for"
        )
    return allowed


def sampling_rate(batch: int, rows: int) -> float:
    """With which probability a row is in a mini-batch; `batch` = 0 means all rows."""
    return 1.0 if batch == 0 else min(1.0, batch / rows)


def _rate(problem: ModuleProblem, worker: int, privacy: Privacy, queries: int) -> Rate:
    rows = len(problem.parts[worker])
    if privacy.delta * rows >= 1:
        raise ConfigError(
            f"privacy.delta = {privacy.delta:g} is not below 1 / {rows}, the rows of {problem.worker_name(worker)}, so "
            f"publishing a random row would count as private; use a smaller one, such as {0.1 / rows:.0e}"
        )
    rate = sampling_rate(problem.batch, rows)
    if privacy.noise is not None:
        return Rate(privacy.noise, rate, rows)
    assert privacy.epsilon is not None
    return Rate(noise_for(privacy.epsilon, privacy.delta, rate, queries), rate, rows)
