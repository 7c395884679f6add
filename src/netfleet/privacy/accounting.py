"""How much privacy gradients have cost: the accountant of Opacus (numerical composition, Gopi, Lee, Wutschitz 2021).

A query is one gradient on a mini-batch that has each row with probability `rate`, with Gaussian noise of `noise` times
the clipping length. ε is an upper bound for data sets that differ by one row more or less.
"""

import functools
import math
import warnings

import numpy as np
from scipy.optimize import brentq

from netfleet.environment import need_packages
from netfleet.errors import ConfigError

#: How exact ε is, as a part of it, and at least.
_RELATIVE, _ABSOLUTE = 0.004, 1e-3
#: Between these the noise is looked for.
_LEAST, _MOST = 0.2, 1e4


@functools.lru_cache(maxsize=4096)
def epsilon_spent(noise: float, rate: float, queries: int, delta: float) -> float:
    """The ε that some queries have cost at this δ."""
    if queries == 0:
        return 0.0
    need_packages("opacus", extra="privacy")
    from opacus.accountants import PRVAccountant, RDPAccountant

    quick = RDPAccountant()
    quick.history = [(noise, rate, queries)]
    exact = PRVAccountant()
    exact.history = quick.history
    with warnings.catch_warnings(), np.errstate(all="ignore"):  # logarithms of 0 at the end of its grid
        warnings.simplefilter("ignore")
        bound = float(quick.get_epsilon(delta))
        error = max(_ABSOLUTE, _RELATIVE * bound)
        found = float(exact.get_epsilon(delta, eps_error=error)) if math.isfinite(bound) and bound < 500 else bound
    return min(found, bound) if math.isfinite(found) else bound


@functools.lru_cache(maxsize=1024)
def noise_for(epsilon: float, delta: float, rate: float, queries: int) -> float:
    """The least noise with which so many queries cost at most (ε, δ)."""

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
