"""How much privacy gradients have cost: the accountant of Opacus (numerical composition, Gopi, Lee, Wutschitz 2021).

A query is one gradient on a mini-batch that has each row with probability `rate`, with Gaussian noise of `noise` times
the clipping length. ε is an upper bound for data sets that differ by one row more or less.
"""

import functools
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from netfleet.environment import need_packages
from netfleet.errors import ConfigError

if TYPE_CHECKING:
    from opacus.accountants.analysis.prv import DiscretePRV

#: How exact ε is, as a part of it, and at least.
_RELATIVE, _ABSOLUTE = 0.003, 1e-3
#: Where ε is larger than this, the quicker and looser bound by moments is enough.
_LARGE = 300.0
#: Of the moments; the library's default has fractions too, which are slow and needed for the last digits only.
_ORDERS = [1.1, 1.25, 1.5, 1.75, *range(2, 33), 40, 48, 64, 96, 128, 256]
#: Between these the noise is looked for.
_LEAST, _MOST = 0.2, 1e4


@functools.lru_cache(maxsize=1 << 16)
def epsilon_spent(noise: float, rate: float, queries: int, delta: float) -> float:
    """The ε that some queries have cost at this δ."""
    if queries == 0:
        return 0.0
    need_packages("opacus", extra="privacy")
    with _quiet():
        query = _query(noise, rate, 4 ** math.ceil(math.log(queries, 4)), delta)
        if query.loss is None:
            return _by_moments(noise, rate, queries, delta)
        from opacus.accountants.analysis.prv import compose_heterogeneous

        composed = compose_heterogeneous([query.loss], [queries])
        return float(composed.compute_epsilon(delta, delta / 1000, query.error)[2])


class _Query(NamedTuple):
    """The privacy loss of one query on a grid that is good for many of them."""

    loss: "DiscretePRV | None"  # None: use moments
    error: float  # of ε


@functools.lru_cache(maxsize=64)
def _query(noise: float, rate: float, most: int, delta: float) -> _Query:
    """As Opacus's `PRVAccountant` makes it for `most` queries."""
    from opacus.accountants.analysis import prv

    bound = _by_moments(noise, rate, most, delta)
    if not bound < _LARGE:
        return _Query(None, 0.0)
    error, delta_error = max(_ABSOLUTE, _RELATIVE * bound), delta / 1000
    one = prv.PoissonSubsampledGaussianPRV(rate, noise)
    # remark 5.6 of the paper, as the library's compute_safe_domain_size has it, with our orders
    single = _by_moments(noise, rate, 1, delta_error / (8 * most))
    size = max(_by_moments(noise, rate, most, delta_error / 4), single, error) + 3
    mesh = error / math.sqrt(most * math.log(12 / delta_error) / 2)
    domain = prv.Domain.create_aligned(-size, size, mesh)
    return _Query(prv.discretize(prv.TruncatedPrivacyRandomVariable(one, domain.t_min, domain.t_max), domain), error)


def _by_moments(noise: float, rate: float, queries: int, delta: float) -> float:
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(noise, rate, queries)]
    return float(accountant.get_epsilon(delta, alphas=_ORDERS))


@contextmanager
def _quiet() -> Iterator[None]:
    """The library takes logarithms of 0 at the end of its grid, and warns where a bound is loose."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


@functools.lru_cache(maxsize=1024)
def noise_for(epsilon: float, delta: float, rate: float, queries: int) -> float:
    """The least noise with which so many queries cost at most (ε, δ)."""
    from scipy.optimize import brentq

    def excess(log_noise: float) -> float:
        spent = epsilon_spent(math.exp(log_noise), rate, queries, delta)
        return math.log(spent / epsilon)

    if excess(math.log(_MOST)) > 0:
        raise ConfigError(
            f"privacy: no reasonable noise keeps {queries} gradients within epsilon = {epsilon:g} at delta = "
            f"{delta:g}; use fewer rounds or local steps, a smaller batch, or a larger epsilon"
        )
    if excess(math.log(_LEAST)) < 0:
        return _LEAST
    found = brentq(excess, math.log(_LEAST), math.log(_MOST), xtol=1e-3)
    return _within(math.exp(found), epsilon, delta, rate, queries)


def _within(noise: float, epsilon: float, delta: float, rate: float, queries: int) -> float:
    """The noise, or a little more: the root is found from either side."""
    while epsilon_spent(noise, rate, queries, delta) > epsilon:
        noise *= 1.0005
    return noise
