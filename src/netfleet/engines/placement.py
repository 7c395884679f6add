"""Which workers each rank hosts, so that ranks send few rows: a balanced partition of the graph.

Two orders of the workers are cut into equal pieces: their own, and one made by bisection along Fiedler vectors. Then
pairs of workers swap ranks as long as that saves rows, and the better result is used. Rows count rather than links: a
row that several workers of another rank need is sent there once.
"""

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, diags_array
from scipy.sparse.linalg import eigsh

from netfleet.topology.network import Network

Ints = npt.NDArray[np.int64]
_DENSE = 500  # workers up to which all eigenvectors are computed
_TRIES = 20_000  # swaps that are tried, at most


class Placement(NamedTuple):
    """The workers of each rank, in their order."""

    workers: tuple[tuple[int, ...], ...]

    @property
    def ranks(self) -> Ints:
        """The rank of each worker."""
        return _ranks_of(self.workers)


class Quality(NamedTuple):
    """How good a placement is."""

    rows: float  # sent in an exchange
    links: float  # directed ones between ranks
    all_links: float
    random: float  # rows of a random placement, on average

    @property
    def sentence(self) -> str:
        if not self.rows:
            return "no row is sent"
        share = self.links / self.all_links
        crossing = f"{self.links:,.3g} of {self.all_links:,.3g} directed links cross ({100 * share:.0f} %)"
        return f"{crossing}, {self.rows:,.3g} rows are sent; a random placement sends {self.random:,.3g}"


#: Rounds that a placement takes into account if the graph changes from round to round.
ROUNDS = 16


def place_on(network: Network, ranks: int) -> Placement:
    """A placement of a network's workers, by the weights of its first rounds. A server sends no rows."""
    if network.average(0) is not None:
        return _equal(network.m, ranks)
    return place(csr_array(functools.reduce(operator.add, _rounds(network))), ranks)


def _rounds(network: Network) -> list[csr_array]:
    """The weights of some rounds; links that may fail are all included."""
    whole = getattr(network, "topology", network)
    return [whole.W(t) for t in range(ROUNDS if whole.varying else 1)]


def quality_on(network: Network, placement: Placement) -> Quality:
    """How good a placement is, on average over some rounds."""
    found = [quality(W, placement) for W in _rounds(network)]
    return Quality(*(sum(values) / len(found) for values in zip(*found, strict=True)))


def place(W: csr_array, ranks: int) -> Placement:
    """A placement of the workers of W on this number of ranks, as equally as possible."""
    m = W.shape[0]
    links = _links(W)
    if links.nnz == m * (m - 1):  # all workers need all others: all placements are equal
        return _equal(m, ranks)
    starts = [np.arange(m), _spectral(links, np.arange(m), ranks)] if 1 < ranks < m else [np.arange(m)]
    tried = [_improved(links, _ranks_of(np.array_split(order, ranks)), ranks) for order in starts]
    best = min(tried, key=lambda of: _rows(links, of, ranks))
    return Placement(tuple(tuple(np.flatnonzero(best == rank).tolist()) for rank in range(ranks)))


def _equal(m: int, ranks: int) -> Placement:
    return Placement(tuple(tuple(group.tolist()) for group in np.array_split(np.arange(m), ranks)))


def quality(W: csr_array, placement: Placement) -> Quality:
    """How many rows and links cross, compared with random placements."""
    links, of, ranks = _links(W), placement.ranks, len(placement.workers)
    i, j = links.nonzero()
    rng = np.random.default_rng(0)
    random = np.mean([_rows(links, rng.permutation(of), ranks) for _ in range(10)])
    return Quality(_rows(links, of, ranks), int(np.count_nonzero(of[i] != of[j])), len(i), float(random))


def _links(W: csr_array) -> csr_array:
    """[i, j] = 1 where i needs j."""
    i, j = W.nonzero()
    off = i != j
    return csr_array((np.ones(off.sum()), (i[off], j[off])), shape=W.shape)


def _ranks_of(groups: Iterable[Sequence[int] | Ints]) -> Ints:
    """The rank of each worker, from the workers of each rank."""
    workers = [np.asarray(group, dtype=np.int64) for group in groups]
    return np.repeat(np.arange(len(workers)), [len(group) for group in workers])[np.argsort(np.concatenate(workers))]


def _rows(links: csr_array, of: Ints, ranks: int) -> int:
    """Rows that are sent: for each worker, the other ranks that need it."""
    member = csr_array((np.ones(len(of)), (of, np.arange(len(of)))), shape=(ranks, len(of)))
    readers = csr_array(member @ links)  # [ranks, workers]: how many of a rank's workers need each
    return int(readers.count_nonzero() - np.count_nonzero(readers[of, np.arange(len(of))]))


def _spectral(links: csr_array, members: Ints, ranks: int) -> Ints:
    """An order of some workers: halved along the Fiedler vector of their links, and each half likewise."""
    if ranks == 1:
        return members
    order = members[np.argsort(_fiedler(csr_array(links[members][:, members])), kind="stable")]
    left = ranks // 2
    cut = sum(map(len, np.array_split(order, ranks)[:left]))
    return np.concatenate([_spectral(links, order[:cut], left), _spectral(links, order[cut:], ranks - left)])


def _fiedler(links: csr_array) -> npt.NDArray[np.float64]:
    A = csr_array(links + links.T)
    L = csr_array(diags_array(np.asarray(A.sum(axis=1)).ravel()) - A)
    if L.shape[0] <= _DENSE:
        return np.asarray(np.linalg.eigh(L.toarray())[1][:, min(1, L.shape[0] - 1)])
    start = np.random.default_rng(0).standard_normal(L.shape[0])
    return np.asarray(eigsh(L, k=2, sigma=-1e-3, v0=start)[1][:, 1])


class _Assignment:
    """The rank of each worker, and how many workers of each rank need each of them."""

    def __init__(self, links: csr_array, of: Ints, ranks: int) -> None:
        self.of, self.counts = of.copy(), np.zeros((len(of), ranks), dtype=np.int64)
        i, j = links.nonzero()
        np.add.at(self.counts, (j, of[i]), 1)
        self.needs = [links.indices[links.indptr[i] : links.indptr[i + 1]] for i in range(len(of))]

    def crossing(self, workers: Ints) -> int:
        """Rows of some workers that are sent."""
        needed = self.counts[workers] > 0
        needed[np.arange(len(workers)), self.of[workers]] = False
        return int(needed.sum())

    def swap(self, a: int, b: int) -> None:
        of, counts = self.of, self.counts
        for i, other in ((a, of[b]), (b, of[a])):
            counts[self.needs[i], of[i]] -= 1
            counts[self.needs[i], other] += 1
        of[a], of[b] = of[b], of[a]

    def saves(self, a: int, b: int) -> bool:
        """Swap a and b if that saves rows; whether it did."""
        touched = np.unique(np.concatenate([self.needs[a], self.needs[b], [a, b]]))
        before = self.crossing(touched)
        self.swap(a, b)
        if self.crossing(touched) < before:
            return True
        self.swap(a, b)
        return False


def _improved(links: csr_array, of: Ints, ranks: int) -> Ints:
    """Swap pairs of workers while that saves rows, in passes over those with links to other ranks."""
    assigned, tries, moved = _Assignment(links, of, ranks), _TRIES, True
    while moved and tries > 0:
        moved = False
        for a in range(len(of)):
            near = np.unique(assigned.of[assigned.needs[a]])
            others = np.flatnonzero(np.isin(assigned.of, near[near != assigned.of[a]]))
            for b in others[: max(tries, 0)].tolist():
                tries -= 1
                if assigned.saves(a, b):
                    moved = True
                    break
    return assigned.of
