"""Membership inference: was this row among the data? A likelihood-ratio test with shadow models.

Each row has a score under models that were trained with it and under models that were not. Both are taken to be
normal, and the ratio of their densities at the target's score decides (Carlini et al. 2022, online LiRA with pooled
variances). The row says "member" where the ratio is above 1, so no threshold is tuned on the answers.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netfleet import randomness

Floats = npt.NDArray[np.float64]
Members = npt.NDArray[np.bool_]
LEVEL = 0.95
_REPEATS = 500


class Advantage(NamedTuple):
    """Share of members that are found less the share of others that are taken for members: 0 is guessing, 1 is all."""

    value: float
    low: float
    high: float
    rows: int
    at_one_percent: float  # members found where one in a hundred others is taken for a member


def log_ratios(scores: Floats, members: Members) -> Floats:
    """The log-likelihood ratio of each target model and row, from the models of all other pairs, `[models, rows]`.

    Models 2p and 2p + 1 are a pair: each row is a member of one of them.
    """
    inside, outside = (_fit(scores, kind) for kind in (members, ~members))
    return _log_density(scores, *inside) - _log_density(scores, *outside)


def _fit(scores: Floats, kind: Members) -> tuple[Floats, float]:
    """For each target the mean over the other pairs' models of a kind, and their standard deviation over all rows."""
    chosen, pairs = np.where(kind, scores, 0), len(scores) // 2
    own = np.repeat(chosen.reshape(pairs, 2, -1).sum(axis=1), 2, axis=0)
    apart = (scores - chosen.sum(axis=0) / pairs)[kind]
    deviation = math.sqrt(float((apart**2).sum()) / (scores.shape[1] * (pairs - 1)))
    return (chosen.sum(axis=0) - own) / (pairs - 1), max(deviation, 1e-6)


def _log_density(values: Floats, mean: Floats, deviation: float) -> Floats:
    density: Floats = -0.5 * ((values - mean) / deviation) ** 2 - math.log(deviation)
    return density


def advantage(ratios: list[Floats], members: list[Members], seed: int = 0) -> Advantage:
    """Over the rows of all victims; the interval is of the bootstrap over rows, since a row's answers are related."""
    right = np.concatenate([(r > 0) * k for r, k in zip(ratios, members, strict=True)], axis=1).sum(axis=0)
    wrong = np.concatenate([(r > 0) * ~k for r, k in zip(ratios, members, strict=True)], axis=1).sum(axis=0)
    inside = np.concatenate([k.sum(axis=0) for k in members])
    outside = np.concatenate([(~k).sum(axis=0) for k in members])
    rows = len(right)
    drawn = randomness.generator("bootstrap", seed).integers(rows, size=(_REPEATS, rows))
    repeats = _difference(*(part[drawn].sum(axis=1) for part in (right, inside, wrong, outside)))
    low, high = np.quantile(repeats, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    value = float(_difference(*(np.asarray(part.sum()) for part in (right, inside, wrong, outside))))
    return Advantage(value, float(low), float(high), rows, _found_at(ratios, members, 0.01))


def _difference(right: Floats, inside: Floats, wrong: Floats, outside: Floats) -> Floats:
    found: Floats = right / np.maximum(inside, 1) - wrong / np.maximum(outside, 1)
    return found


def _found_at(ratios: list[Floats], members: list[Members], errors: float) -> float:
    values, inside = np.concatenate([r.ravel() for r in ratios]), np.concatenate([k.ravel() for k in members])
    if inside.all() or not inside.any():
        return 0.0
    threshold = np.quantile(values[~inside], 1 - errors)
    return float((values[inside] > threshold).mean())


def bound(epsilon: float, delta: float) -> float:
    """The largest advantage that any test can have against an (ε, δ)-private training (Kairouz, Oh, Viswanath 2015).

    >>> round(bound(1.0, 0.0), 3)
    0.462
    """
    if epsilon > 50:
        return 1.0
    return min(1.0, (math.exp(epsilon) - 1 + 2 * delta) / (math.exp(epsilon) + 1))
