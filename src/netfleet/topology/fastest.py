"""The weights with the least λ (Boyd, Diaconis, Xiao 2004), among those with a given least eigenvalue.

With a weight pₑ for every link e = (i, j), W = I − L(p) where L(p) = Σₑ pₑ bₑbₑᵀ and bₑ = eᵢ − eⱼ. The problem

    maximise s   subject to   L(p) ⪰ s (I − J),   L(p) ⪯ (2 − s) I,   L(p) ⪯ (1 − least) I,   p ≥ 0,   Σ_{e∋i} pₑ ≤ 1

has λ = 1 − s. It is convex: Newton's method on the logarithmic barrier of the constraints, with a growing weight of s.
"""

import networkx as nx
import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, cholesky
from scipy.sparse import csr_array

from netfleet.errors import ConfigError
from netfleet.topology.weights import WEIGHTS, Vector, adjacency, with_self_weights

MOST_LINKS = 2000  # Newton's matrix has a row and a column for each: more would take minutes
_GAP = 1e-6  # the largest distance of λ from the least one
_DIGITS = 1e9  # weights are cut to so many parts of 1, so that all machines get the same ones


@WEIGHTS.register("fastest")
def fastest(graph: nx.Graph, least: float = 0.0) -> csr_array:
    """The least λ of all W ≥ 0 on the graph whose eigenvalues are at least `least`; for up to 2,000 links.

    D², LED and ProxSkip need eigenvalues above −1/3 or more, which the default gives them.
    """
    if not -1 <= least < 1:
        raise ConfigError(f"weights 'fastest': least must lie in [−1, 1), got {least:g}; 0 suits every method")
    A = adjacency(graph).tocoo()
    above = A.row < A.col
    i, j, m = A.row[above], A.col[above], A.shape[0]
    if len(i) > MOST_LINKS:
        cause = f"weights 'fastest' can be computed for up to {MOST_LINKS:,} links, and this graph has {len(i):,}"
        raise ConfigError(f"{cause}; use weights = 'metropolis'")
    if len(i) == 0:
        return with_self_weights(csr_array(A))
    B = np.zeros((len(i), m))
    B[np.arange(len(i)), i], B[np.arange(len(i)), j] = 1.0, -1.0
    p = np.floor(_solve(B, least) * _DIGITS) / _DIGITS
    return with_self_weights(csr_array((np.tile(p, 2), (np.r_[i, j], np.r_[j, i])), shape=A.shape))


def _solve(B: Vector, least: float) -> Vector:
    """The links' weights p; rows of B are the bₑ."""
    links, m = B.shape
    degrees = abs(B).sum(axis=0)
    x = np.r_[np.full(links, 0.4 * (1 - least) / degrees.max()), -0.1]  # p and s, inside all constraints
    x[:-1] *= min(1.0, 1 / (1 - least))
    weight, constraints = 1.0, 4 * m + links
    while True:
        x = _centre(B, least, x, weight)
        if constraints / weight < _GAP:
            return x[:-1]
        weight *= 8


def _centre(B: Vector, least: float, x: Vector, weight: float) -> Vector:
    """Newton's method from a point inside the constraints to the minimum of barrier − weight · s."""
    for _ in range(100):
        value, gradient, H = _barrier(B, least, x, weight)
        step = -_solved(H, gradient)
        decrement, length = float(-gradient @ step), 1.0
        if decrement < 1e-6:
            break
        while not _value(B, least, x + length * step, weight) <= value - 0.1 * length * decrement and length > 1e-10:
            length /= 2
        x = x + length * step
    return x


def _solved(H: Vector, gradient: Vector) -> Vector:
    """H⁻¹ gradient, with as much added to the scaled diagonal as H needs to be definite after rounding."""
    scale, added = H.diagonal() ** -0.5, 1e-12
    while True:
        try:
            factor = cho_factor(H * scale[:, None] * scale + added * np.eye(len(H)))
            return np.asarray(scale * cho_solve(factor, scale * gradient))
        except LinAlgError:
            added *= 10


def _blocks(B: Vector, least: float, x: Vector) -> list[tuple[Vector, int, int]]:
    """The matrices that must be positive definite, the sign of L(p) in each, and whether −s I is in it."""
    m, (p, s) = B.shape[1], (x[:-1], x[-1])
    L, eye = (B.T * p) @ B, np.eye(m)
    return [(L + 3 / m - s * eye, 1, 1), ((2 - s) * eye - L, -1, 1), ((1 - least) * eye - L, -1, 0)]


def _value(B: Vector, least: float, x: Vector, weight: float) -> float:
    """The barrier − weight · s; infinite outside the constraints."""
    slack = np.r_[x[:-1], 1 - abs(B).T @ x[:-1]]
    if (slack <= 0).any():
        return np.inf
    try:
        roots = [cholesky(F).diagonal() for F, _, _ in _blocks(B, least, x)]
    except LinAlgError:
        return np.inf
    return float(-weight * x[-1] - np.log(slack).sum() - 2 * np.log(np.concatenate(roots)).sum())


def _barrier(B: Vector, least: float, x: Vector, weight: float) -> tuple[float, Vector, Vector]:
    """The barrier − weight · s with its gradient and Hessian."""
    links, p = len(B), x[:-1]
    C = abs(B).T
    kept = 1 / (1 - C @ p)
    gradient = np.r_[-1 / p + C.T @ kept, -weight]
    H = np.zeros((links + 1, links + 1))
    H[:-1, :-1] = np.diag(p**-2.0) + (C.T * kept**2) @ C
    for F, sign, with_s in _blocks(B, least, x):
        M = np.linalg.inv(F)
        N = B @ M
        K = N @ B.T
        gradient[:-1] -= sign * K.diagonal()
        H[:-1, :-1] += K**2
        if with_s:
            gradient[-1] += np.trace(M)
            H[-1, :-1] -= sign * (N**2).sum(axis=1)
            H[-1, -1] += (M**2).sum()
    H[:-1, -1] = H[-1, :-1]
    return _value(B, least, x, weight), gradient, H
