"""Consensus matrices: how to weigh the neighbours, the properties of Section 3.2, and λ.

| symbol | here | meaning |
|---|---|---|
| m | `m` | number of workers |
| 𝓛 | `graph` | the links, an undirected networkx graph on 0, …, m − 1 |
| W | `W` | consensus matrix, a float64 `csr_array` [m, m] |
| λ₁ ≥ … ≥ λₘ | | eigenvalues of W; λ₁ = 1 belongs to the vector of ones |
| λ | `lam` | max(|λ₂|, |λₘ|), the factor by which one mixing shrinks the disagreement |
| J | | 11ᵀ/m, exact averaging; λ = ‖W − J‖₂ |
| L, A, d | `L`, `A`, `d` | Laplacian diag(d) − A, adjacency matrix, degrees |

The user's own W from a file (`kind = "matrix"`) is registered in `topology.py`, since nothing here does I/O.
"""

from collections.abc import Callable, Sequence
from functools import reduce

import networkx as nx
import numpy as np
import numpy.typing as npt
from scipy.linalg import eigvalsh_tridiagonal
from scipy.sparse import csr_array, diags_array

from netfleet.errors import ConfigError, TopologyError
from netfleet.registry import Registry

Vector = npt.NDArray[np.float64]
WEIGHTS: Registry[csr_array] = Registry("weights")
TOLERANCE = 1e-10  # on sums and symmetry: far above rounding, far below any weight that matters
DENSE = 500  # up to this many workers LAPACK is quicker than Lanczos


@WEIGHTS.register("laplacian")
def laplacian(graph: nx.Graph, factor: float = 2 / 3) -> csr_array:
    """The paper's W = I − (2/3) L / λmax(L); its eigenvalues lie in [1 − factor, 1]."""
    if not 0 < factor < 2:
        raise ConfigError(f"weights 'laplacian': factor must lie in (0, 2) so that λ < 1, got {factor}; use 2/3")
    A = adjacency(graph)
    L, m = csr_array(diags_array(A.sum(axis=1)) - A), len(graph)
    largest = np.linalg.eigvalsh(L.toarray())[-1] if m <= DENSE else spectral_radius(lambda v: L @ v, m)
    return with_self_weights(A * (factor / float(largest)) if A.nnz else A)


@WEIGHTS.register("metropolis")
def metropolis(graph: nx.Graph) -> csr_array:
    """Metropolis–Hastings: Wᵢⱼ = 1 / (1 + max(dᵢ, dⱼ)); needs nothing but the degrees of one's neighbours."""
    A = adjacency(graph).tocoo()
    d = A.sum(axis=1)
    weight = 1 / (1 + np.maximum(d[A.row], d[A.col]))
    return with_self_weights(csr_array((weight, (A.row, A.col)), shape=A.shape))


@WEIGHTS.register("max-degree")
def max_degree(graph: nx.Graph) -> csr_array:
    """Wᵢⱼ = 1 / (1 + max d) on every link."""
    A = adjacency(graph)
    return with_self_weights(A / (1 + A.sum(axis=1).max()))


@WEIGHTS.register("uniform")
def uniform(graph: nx.Graph) -> csr_array:
    """The plain average of a worker and its neighbours, 1 / (1 + d): exact averaging on the complete graph.

    Only a regular graph has such a W, for elsewhere the columns would not sum to one.
    """
    d = adjacency(graph).sum(axis=1)
    if d.min() != d.max():
        raise TopologyError(
            f"weights 'uniform' need equally many neighbours for every worker, or W is not doubly "
            f"stochastic, but the degrees go from {d.min():g} to {d.max():g}; use weights = 'metropolis', "
            f"which is the same where both exist"
        )
    return csr_array(max_degree(graph))


def adjacency(graph: nx.Graph) -> csr_array:
    """A with a one per link, whatever edge attributes and self-loops the graph has."""
    m = len(graph)
    if m == 0 or set(graph) != set(range(m)):
        raise TopologyError(f"W needs the nodes 0, …, m − 1, got {list(graph)[:3]!r} …; use Topology.from_graph")
    A = csr_array(nx.to_scipy_sparse_array(graph, nodelist=range(m), weight=None, dtype=np.float64, format="coo"))
    A = csr_array(A - diags_array(A.diagonal()))
    A.eliminate_zeros()
    return A


def with_self_weights(off: csr_array) -> csr_array:
    """Complete the weights of the links with what each worker keeps, so that rows sum to one."""
    W = csr_array(off + diags_array(1 - off.sum(axis=1)))
    W.eliminate_zeros()
    return W


def check_stochastic(W: csr_array, m: int) -> None:
    """(a): [m, m], finite, and all rows and columns sum to one."""
    if W.shape != (m, m):
        raise TopologyError(f"W has shape {W.shape} but there are {m} workers; give one row and column per worker")
    if not np.isfinite(W.data).all():
        i, j, value = _first(W, ~np.isfinite(W.data))
        raise TopologyError(f"W[{i}, {j}] = {value}, but weights must be finite; look for a division by zero")
    for axis, line in ((1, "row"), (0, "column")):
        total = np.asarray(W.sum(axis=axis))
        i = int(np.argmax(abs(total - 1)))
        if abs(total[i] - 1) > TOLERANCE:
            raise TopologyError(
                f"{line} {i} of W sums to {total[i]:.12g}, so W is not doubly stochastic (Section 3.2 (a)); "
                f"add {1 - total[i]:.3g} to the self-weight W[{i}, {i}] or scale the weights of worker {i}"
            )


def check_symmetric(W: csr_array) -> None:
    """(b): Wᵢⱼ = Wⱼᵢ."""
    D = csr_array(W - W.T)
    if D.nnz and abs(D.data).max() > TOLERANCE:
        i, j, _ = _first(D, abs(D.data) > TOLERANCE)
        raise TopologyError(
            f"W[{i}, {j}] = {W[i, j]:.12g} but W[{j}, {i}] = {W[j, i]:.12g}, which is not symmetric "
            f"(Section 3.2 (b)); use (W + W.T) / 2 if both directions were meant to weigh the same"
        )


def check_sparsity(W: csr_array, graph: nx.Graph) -> None:
    """(c), first half: no weight where there is no link."""
    A = adjacency(graph)
    off = W - diags_array(W.diagonal())
    strangers = csr_array(off - A * off)
    if (strangers.data != 0).any():
        i, j, value = _first(strangers, strangers.data != 0)
        raise TopologyError(
            f"W[{i}, {j}] = {value:.12g} but workers {i} and {j} are not linked (Section 3.2 (c)); "
            f"set the weight to exactly 0 or add the link to the graph"
        )


def check_every_link(W: csr_array, graph: nx.Graph) -> None:
    """(c), second half: a positive weight on every link."""
    A = adjacency(graph)
    idle = csr_array(A - A * csr_array(W > 0))
    if (idle.data != 0).any():
        i, j, _ = _first(idle, idle.data != 0)
        raise TopologyError(
            f"workers {i} and {j} are linked but W[{i}, {j}] = {W[i, j]:.12g} ≤ 0 (Section 3.2 (c)); "
            f"give the link a positive weight or remove it from the graph"
        )


def check_contraction(lam: float) -> None:
    """λ < 1, without which the workers never agree."""
    if not lam < 1 - 1e-12:
        raise TopologyError(
            f"λ = {lam:.12g} but the workers agree only if λ < 1 (Section 3.2); "
            f"connect the graph if it is not, and raise the self-weights, for example with (I + W) / 2"
        )


def _first(W: csr_array, where: npt.NDArray[np.bool_]) -> tuple[int, int, float]:
    """Row, column and value of the first stored entry of W that `where` marks."""
    k = int(np.flatnonzero(where)[0])
    return int(np.searchsorted(W.indptr, k, side="right")) - 1, int(W.indices[k]), float(W.data[k])


def second_eigenvalue(W: csr_array) -> float:
    """λ = max(|λ₂|, |λₘ|) of a symmetric, doubly stochastic W; 0 for a single worker."""
    m = W.shape[0]
    if m <= DENSE:
        return _above_rounding(np.abs(np.linalg.eigvalsh(W.toarray() - 1 / m)).max(), m)
    return _above_rounding(spectral_radius(lambda v: W @ v - v.mean(), m), m)


def contraction(Ws: Sequence[csr_array]) -> float:
    """‖W(T−1) ⋯ W(0) − J‖₂^(1/T): the factor per round by which a sequence shrinks the disagreement.

    For T equal symmetric matrices it is their λ; the matrices need not be symmetric.
    """
    m, T = Ws[0].shape[0], len(Ws)
    if m <= DENSE:
        norm = float(np.linalg.norm(reduce(lambda P, W: W @ P, Ws, np.eye(m)) - 1 / m, 2))
    else:
        norm = float(np.sqrt(spectral_radius(lambda v: _there_and_back(Ws, v), m, tolerance=1e-8)))
    return float(_above_rounding(norm, m) ** (1 / T))


def spectral_radius(apply: Callable[[Vector], Vector], m: int, tolerance: float = 1e-13) -> float:
    """The largest absolute eigenvalue of the symmetric operator `apply` on ℝᵐ, by plain Lanczos.

    There is no reorthogonalisation: without it copies of eigenvalues already found turn up (Paige 1971),
    harmless to the largest, and a step stays as cheap as a product. λ₂ of a ring or path lies in a dense cluster
    that takes thousands of steps: with 5,000 workers about a second here, 6 to 23 in ARPACK, which restarts.
    The starting vector is fixed; the number of steps grows by half until the result no longer moves.
    """
    v = np.random.default_rng(0).standard_normal(m)
    v, previous, beta, scale = v / np.linalg.norm(v), np.zeros(m), 0.0, 1.0
    diagonal: list[float] = []
    beside: list[float] = []
    radius, checkpoint = np.inf, 60
    while len(diagonal) < 20 * m:
        w = apply(v) - beta * previous
        alpha = float(w @ v)
        w -= alpha * v
        beta = float(np.linalg.norm(w))
        diagonal.append(alpha)
        scale = max(scale, abs(alpha), beta)
        if beta <= 1e-13 * scale:  # the steps have spanned all that the start reaches
            break
        if len(diagonal) == checkpoint:
            before, radius = radius, _tridiagonal_radius(diagonal, beside)
            if abs(radius - before) <= tolerance * radius:
                break
            checkpoint += checkpoint // 2
        beside.append(beta)
        previous, v = v, w / beta
    return _tridiagonal_radius(diagonal, beside[: len(diagonal) - 1])


def _tridiagonal_radius(diagonal: list[float], beside: list[float]) -> float:
    ends = [eigvalsh_tridiagonal(diagonal, beside, select="i", select_range=(k, k)) for k in (0, len(diagonal) - 1)]
    return float(np.max(np.abs(ends)))


def _there_and_back(Ws: Sequence[csr_array], v: Vector) -> Vector:
    """MᵀM v for M = W(T−1) ⋯ W(0) − J."""
    for W in Ws:
        v = W @ v
    v = v - v.mean()
    for W in reversed(Ws):
        v = W.T @ v
    return np.asarray(v - v.mean())


def _above_rounding(value: float, m: int) -> float:
    """The value, or 0 where it is no more than rounding: its T-th root would make much of nothing."""
    return float(value) if value > 4 * m * np.finfo(float).eps else 0.0
