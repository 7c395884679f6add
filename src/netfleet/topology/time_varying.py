"""Consensus matrices that change from round to round: W(t), a pure function of t.

In each of the kinds here a worker averages half and half with one partner per round, W(t) = (I + P(t)) / 2
for a permutation P(t), so a round costs at most one message per worker. `graphs.py` registers them.
"""

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass

import networkx as nx
import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from netfleet.randomness import generator
from netfleet.topology import weights as mixing

Indices = npt.NDArray[np.int64]
WINDOW = 256  # rounds that an expectation over random rounds is taken from


@dataclass(frozen=True)
class WeightSequence:
    """W(t) for every round; with a period of 1 it never changes, with `None` it never repeats."""

    graph: nx.Graph  # every link that any round uses
    W: Callable[[int], csr_array]
    period: int | None
    symmetric: bool = True


def check(sequence: WeightSequence) -> None:
    """Properties (a) to (c) in every round of the period, or in round 0 where there is none.

    A round may leave links idle, and is symmetric only where that is promised.
    """
    for t in range(sequence.period or 1):
        W = sequence.W(t)
        mixing.check_stochastic(W, len(sequence.graph))
        mixing.check_sparsity(W, sequence.graph)
        if sequence.symmetric:
            mixing.check_symmetric(W)


def rate(sequence: WeightSequence) -> float:
    """The contraction per round: over one period, or in the mean square where the rounds are random.

    Random rounds bring the expected squared disagreement down by λ₂(E[WᵀW]) at least; λ is its root, with the
    expectation taken over the first `WINDOW` rounds.
    """
    if sequence.period is not None:
        return mixing.contraction([sequence.W(t) for t in range(sequence.period)])
    squares = (csr_array(W.T @ W) for W in map(sequence.W, range(WINDOW)))
    mean = csr_array(functools.reduce(operator.add, squares) / WINDOW)
    return float(np.sqrt(mixing.second_eigenvalue(mean)))


def halves(partner: Indices) -> csr_array:
    """(I + P) / 2 for the permutation i ↦ partner[i]; a worker that is its own partner keeps its vector."""
    m = len(partner)
    i = np.arange(m)
    rows, columns = np.concatenate([i, i]), np.concatenate([i, partner])
    return csr_array((np.full(2 * m, 0.5), (rows, columns)), shape=(m, m))


def powers(m: int) -> int:
    """How many powers of two lie below m: the period of the one-peer kinds of graph."""
    return (m - 1).bit_length()


def shift_round(m: int, t: int) -> csr_array:
    """Round t of the one-peer exponential graph: i reads i + 2^(t mod τ), which does not read i."""
    return halves((np.arange(m) + (1 << t % powers(m))) % m)


def flip_round(m: int, t: int) -> csr_array:
    """Round t of the one-peer hypercube: i and i XOR 2^(t mod τ) read each other."""
    return halves(np.arange(m) ^ (1 << t % powers(m)))


def matching_round(m: int, links: Indices, seed: int, t: int) -> csr_array:
    """Round t of random matching: a maximal matching of the links, drawn for (seed, t)."""
    order = generator("graph/random-matching", seed, t).permutation(len(links))
    return halves(maximal_matching(m, links, order))


def maximal_matching(m: int, links: Indices, order: Indices) -> Indices:
    """Partners when the links [e, 2] are taken greedily by rising `order`; the unmatched are their own.

    All links that come first at both of their ends are taken at once, which leaves few passes.
    """
    partner = np.arange(m)
    while len(links):
        first = np.full(m, np.iinfo(np.int64).max)
        np.minimum.at(first, links.ravel(), np.repeat(order, 2))
        a, b = links[(first[links] == order[:, None]).all(axis=1)].T
        partner[a], partner[b] = b, a
        free = (partner[links] == links).all(axis=1)
        links, order = links[free], order[free]
    return partner
