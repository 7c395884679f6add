"""Who talks to whom: graphs by name, by file or from networkx, and the `Topology` they make with weights.

    >>> make_topology("ring", workers=8, weights="metropolis").describe()["degree_max"]
    2

Every graph here is undirected on workers 0, …, m − 1. The random ones are functions of their seed and are
drawn again until they are connected. The time-varying kinds (`varying.py`) fix their own weights.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

import networkx as nx
import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path
from scipy.spatial import KDTree

from netfleet import mixing, varying
from netfleet.errors import ConfigError, TopologyError
from netfleet.mixing import WEIGHTS
from netfleet.randomness import generator
from netfleet.registry import Registry, Spec, split
from netfleet.varying import Schedule

Pairs = npt.NDArray[np.int64]
GRAPHS: Registry[nx.Graph | Schedule] = Registry("graph")
TRIES = 200  # drawings of a random graph before giving up on a connected one
EXACT_DIAMETER = 10**7  # workers × links up to which the diameter takes less than a second


@dataclass(frozen=True, eq=False)
class Topology:
    """A connected graph on m workers and its consensus matrix, checked against Section 3.2 of the paper."""

    name: str
    weights: str
    schedule: Schedule

    def __post_init__(self) -> None:
        _check_connected(self.graph)
        varying.check(self.schedule)
        if not self.varying:
            mixing.check_every_link(self.W(), self.graph)
        mixing.check_contraction(self.lam)

    @classmethod
    def from_graph(
        cls, graph: nx.Graph, weights: Spec | npt.ArrayLike = "laplacian", name: str | None = None
    ) -> Topology:
        """Any undirected networkx graph; workers are its nodes in natural order ("a2" before "a10").

        Weights are a name, a table with a kind, or W itself with its rows in that order.
        """
        if not isinstance(graph, nx.Graph):
            raise TopologyError(
                f"expected a networkx.Graph, got {type(graph).__name__}; build one with nx.Graph(edges)"
            )
        if graph.is_directed():
            raise TopologyError("the graph is directed but links go both ways; pass graph.to_undirected()")
        numbered = nx.freeze(_numbered(graph))
        _check_connected(numbered)
        spec: Spec = weights if isinstance(weights, str | Mapping) else {"kind": "matrix", "values": weights}
        W = csr_array(WEIGHTS.build(spec, graph=numbered)).astype(np.float64)
        schedule = Schedule(numbered, partial(_always, W), period=1)
        return cls(name or graph.name or "graph", split(spec, "weights")[0], schedule)

    @property
    def graph(self) -> nx.Graph:
        """The links; with a time-varying W all that any round uses."""
        return self.schedule.graph

    @property
    def m(self) -> int:
        """Number of workers."""
        return len(self.graph)

    @property
    def varying(self) -> bool:
        """Whether W changes from round to round."""
        return self.schedule.period != 1

    def W(self, t: int = 0) -> csr_array:
        """The consensus matrix of round t, one and the same object unless time-varying; never write to it."""
        return self.schedule.W(t)

    @cached_property
    def lam(self) -> float:
        """λ; with a time-varying W the contraction per round (`varying.rate`)."""
        return varying.rate(self.schedule) if self.varying else mixing.second_eigenvalue(self.W())

    @property
    def gap(self) -> float:
        """The spectral gap 1 − λ."""
        return 1 - self.lam

    def neighbours(self, i: int, t: int = 0) -> list[int]:
        """Whom worker i needs in round t: all j ≠ i with Wᵢⱼ ≠ 0."""
        return _others(self.W(t), i)

    def readers(self, i: int, t: int = 0) -> list[int]:
        """Who needs worker i in round t: all j ≠ i with Wⱼᵢ ≠ 0; its neighbours where W is symmetric."""
        return _others(self.W(t) if self.schedule.symmetric else csr_array(self.W(t).T), i)

    def messages(self, t: int = 0) -> int:
        """How many messages round t sends, both directions of a link counted."""
        W = self.W(t)
        return int(np.count_nonzero(W.data) - np.count_nonzero(W.diagonal()))

    def describe(self) -> dict[str, str | int | float | None]:
        """What a reader wants to know, by plain names; the diameter is `None` where it would take long."""
        degrees = [degree for _, degree in self.graph.degree]
        return {
            "name": self.name,
            "workers": self.m,
            "edges": self.graph.number_of_edges(),
            "degree_min": min(degrees),
            "degree_mean": sum(degrees) / self.m,
            "degree_max": max(degrees),
            "diameter": _diameter(self.graph),
            "lambda": self.lam,
            "spectral_gap": self.gap,
            "weights": self.weights,
        }


def make_topology(
    spec: Spec, *, workers: int | None = None, weights: Spec | npt.ArrayLike = "laplacian", seed: int = 0
) -> Topology:
    """The topology of a specification: a kind ("ring"), or a table `{kind = "erdos-renyi", p = 0.3}`."""
    kind, params = split(spec, "graph")
    if workers is not None and params.get("workers", workers) != workers:
        raise ConfigError(f"graph {kind!r} says {params['workers']} workers but {workers} were asked for; say it once")
    given = {"seed": seed} if workers is None else {"seed": seed, "workers": workers}
    network = GRAPHS.build(spec, **given)
    if not isinstance(network, Schedule):
        _expect_workers(network, workers, kind)
        return Topology.from_graph(network, weights, name=kind)
    _expect_workers(nx.freeze(network.graph), workers, kind)
    if not isinstance(weights, str | Mapping) or split(weights, "weights") != ("laplacian", {}):
        raise ConfigError(f"graph {kind!r} varies in time and brings its own weights; remove weights = {weights!r}")
    return Topology(kind, "half and half", network)


# ---- graphs by name ----


def _kind(name: str) -> Callable[[Callable[..., nx.Graph | Schedule]], Any]:
    """Register a factory that may count on two workers or more: a single one is the same in every kind."""

    def add(factory: Callable[..., nx.Graph | Schedule]) -> Callable[..., nx.Graph | Schedule]:
        @functools.wraps(factory)
        def checked(workers: int, **params: Any) -> nx.Graph | Schedule:
            _require(
                isinstance(workers, int) and workers >= 1,
                name,
                f"workers must be a whole number from 1 on, got {workers!r}",
            )
            return nx.empty_graph(1) if workers == 1 else factory(workers, **params)

        GRAPHS.register(name)(checked)
        return checked

    return add


@_kind("ring")
def ring(workers: int) -> nx.Graph:
    """Each worker and the next, the last and the first."""
    return nx.cycle_graph(workers)


@_kind("path")
def path(workers: int) -> nx.Graph:
    """Each worker and the next: the worst connected graph."""
    return nx.path_graph(workers)


@_kind("star")
def star(workers: int) -> nx.Graph:
    """Worker 0 and everyone else."""
    return nx.star_graph(workers - 1)


@_kind("complete")
def complete(workers: int) -> nx.Graph:
    """Everyone and everyone else."""
    return nx.complete_graph(workers)


@_kind("grid")
def grid(workers: int, rows: int | None = None) -> nx.Graph:
    """A rectangle, by default the most square one; for a prime number of workers that is a path."""
    i = _rectangle("grid", workers, rows)
    return _lattice(i, [(i[:-1], i[1:]), (i[:, :-1], i[:, 1:])])


@_kind("torus")
def torus(workers: int, rows: int | None = None) -> nx.Graph:
    """A rectangle whose opposite sides meet, by default the most square one; for a prime number a ring."""
    i = _rectangle("torus", workers, rows)
    return _lattice(i, [(i, np.roll(i, -1, axis)) for axis in (0, 1)])


@_kind("hypercube")
def hypercube(workers: int) -> nx.Graph:
    """Workers whose numbers differ in one binary digit."""
    _require_power_of_two("hypercube", workers)
    i = np.arange(workers)
    return _from_pairs(workers, np.concatenate([np.c_[i, i ^ step] for step in _powers(workers)]))


@_kind("exponential")
def exponential(workers: int) -> nx.Graph:
    """Workers a power of two apart on a ring (Ying et al. 2021, here with links in both directions)."""
    i = np.arange(workers)
    return _from_pairs(workers, np.concatenate([np.c_[i, (i + step) % workers] for step in _powers(workers)]))


@_kind("erdos-renyi")
def erdos_renyi(workers: int, seed: int, p: float = 0.5) -> nx.Graph:
    """Each pair is linked with probability p (Erdős and Rényi 1959); the paper's graph."""
    _require(0 < p <= 1, "erdos-renyi", f"p must lie in (0, 1], got {p}")
    first = np.concatenate([[0], np.cumsum(np.arange(workers - 1, 0, -1))])  # where each row of pairs starts

    def draw(random: np.random.Generator) -> nx.Graph:
        hits = np.flatnonzero(random.random(math.comb(workers, 2)) < p)
        row = np.searchsorted(first, hits, side="right") - 1
        return _from_pairs(workers, np.c_[row, hits - first[row] + row + 1])

    return _until_connected("erdos-renyi", seed, draw, "raise p")


@_kind("random-regular")
def random_regular(workers: int, seed: int, degree: int = 4) -> nx.Graph:
    """Every worker has `degree` neighbours, drawn at random."""
    fits = 1 <= degree < workers and degree * workers % 2 == 0
    need = f"degree must be below the {workers} workers and even if their number is odd"
    _require(fits, "random-regular", f"{need}, got {degree}")

    def draw(random: np.random.Generator) -> nx.Graph:
        return nx.random_regular_graph(degree, workers, seed=int(random.integers(2**32)))

    return _until_connected("random-regular", seed, draw, "raise degree")


@_kind("watts-strogatz")
def watts_strogatz(workers: int, seed: int, k: int = 4, p: float = 0.1) -> nx.Graph:
    """A ring with links to the k nearest, each moved with probability p (Watts and Strogatz 1998)."""
    fits = 2 <= k < workers and k % 2 == 0
    _require(fits, "watts-strogatz", f"k must be even and below the {workers} workers, got {k}")
    _require(0 <= p <= 1, "watts-strogatz", f"p must lie in [0, 1], got {p}")

    def draw(random: np.random.Generator) -> nx.Graph:
        return nx.watts_strogatz_graph(workers, k, p, seed=int(random.integers(2**32)))

    return _until_connected("watts-strogatz", seed, draw, "raise k or lower p")


@_kind("geometric")
def geometric(workers: int, seed: int, radius: float | None = None) -> nx.Graph:
    """Workers at random places of the unit square, linked within `radius`, by default √(ln m / m)."""
    reach = math.sqrt(math.log(workers) / workers) if radius is None else radius
    _require(reach > 0, "geometric", f"radius must be positive, got {radius}")

    def draw(random: np.random.Generator) -> nx.Graph:
        places = random.random((workers, 2))
        graph = _from_pairs(workers, KDTree(places).query_pairs(reach, output_type="ndarray"))
        nx.set_node_attributes(graph, dict(enumerate(map(tuple, places.tolist()))), "pos")
        return graph

    return _until_connected("geometric", seed, draw, "raise radius")


@GRAPHS.register("edge-list")
def edge_list(path: str, workers: int | None = None) -> nx.Graph:
    """The user's own graph: a GraphML file (`.graphml`, `.graphml.gz`), or text with two names per line.

    In text, `#` starts a comment and a comma is as good as a space. Workers are numbered by the natural order
    of their names; an edge in either direction is a link.
    """
    graph = _numbered(_read_graphml(path) if ".graphml" in Path(path).suffixes else _read_pairs(path))
    _expect_workers(graph, workers, "edge-list")
    return graph


@_kind("one-peer-exponential")
def one_peer_exponential(workers: int) -> Schedule:
    """Round t: i averages with i + 2^(t mod τ), τ = ⌈log₂ m⌉ (Ying et al. 2021).

    After τ rounds that is the exact average if m = 2^τ. Directed: W(t) is doubly stochastic but NOT
    symmetric, so property (b) of Section 3.2 does not hold.
    """
    W = partial(varying.shift_round, workers)
    return Schedule(exponential(workers), W, varying.powers(workers), symmetric=workers == 2)


@_kind("one-peer-hypercube")
def one_peer_hypercube(workers: int) -> Schedule:
    """Round t: i and i XOR 2^(t mod τ) average, m = 2^τ. Symmetric, and exact after τ rounds."""
    _require_power_of_two("one-peer-hypercube", workers)
    return Schedule(hypercube(workers), partial(varying.flip_round, workers), varying.powers(workers))


@_kind("random-matching")
def random_matching(workers: int, seed: int, base: Spec = "complete") -> Schedule:
    """Round t: the pairs of a random maximal matching of the graph `base` average, drawn for (seed, t)."""
    graph = GRAPHS.build(base, workers=workers, seed=seed)
    if isinstance(graph, Schedule):
        raise ConfigError(f"graph 'random-matching': base must not vary in time, got {base!r}; use a fixed graph")
    _expect_workers(graph, workers, "random-matching")
    links = np.sort(np.array(graph.edges, dtype=np.int64), axis=1)
    W = partial(varying.matching_round, workers, links[np.lexsort(links.T[::-1])], seed)
    return Schedule(graph, W, period=None)


# ---- how graphs are built ----


def _require(condition: bool, kind: str, complaint: str) -> None:
    if not condition:
        raise ConfigError(f"graph {kind!r}: {complaint}")


def _require_power_of_two(kind: str, workers: int) -> None:
    near = 1 << (workers.bit_length() - 1)
    complaint = f"workers must be a power of two, got {workers}; use {near} or {2 * near}"
    _require(workers == near, kind, complaint)


def _powers(workers: int) -> list[int]:
    return [1 << k for k in range(varying.powers(workers))]


def _from_pairs(workers: int, pairs: Pairs) -> nx.Graph:
    """The graph of the pairs [e, 2]; a pair given twice counts once, and nobody is linked to itself."""
    graph = nx.empty_graph(workers)
    graph.add_edges_from(pairs[pairs[:, 0] != pairs[:, 1]].tolist())
    return graph


def _rectangle(kind: str, workers: int, rows: int | None) -> Pairs:
    """Worker numbers in rows, by default as many as the greatest divisor of their number up to its root."""
    if rows is None:
        rows = max(r for r in range(1, math.isqrt(workers) + 1) if workers % r == 0)
    fits = rows >= 1 and workers % rows == 0
    _require(fits, kind, f"rows must divide the {workers} workers, got {rows}; leave rows out")
    return np.arange(workers).reshape(rows, -1)


def _lattice(numbers: Pairs, links: list[tuple[Pairs, Pairs]]) -> nx.Graph:
    graph = _from_pairs(numbers.size, np.concatenate([np.c_[a.ravel(), b.ravel()] for a, b in links]))
    places = {int(i): (column, -row) for (row, column), i in np.ndenumerate(numbers)}
    nx.set_node_attributes(graph, places, "pos")
    return graph


def _until_connected(kind: str, seed: int, draw: Callable[[np.random.Generator], nx.Graph], remedy: str) -> nx.Graph:
    """The first connected graph among the drawings for (seed, 0), (seed, 1), …"""
    for attempt in range(TRIES):
        graph = draw(generator(f"graph/{kind}", seed, attempt))
        if nx.is_connected(graph):
            return graph
    raise TopologyError(f"graph {kind!r}: not one of {TRIES} drawings on {len(graph)} workers was connected; {remedy}")


def _numbered(graph: nx.Graph) -> nx.Graph:
    """A simple graph on 0, …, m − 1 with the attributes of the old one and the old names as `label`.

    Nodes take their numbers in natural order, or in the order of the graph where they are not text, numbers
    or tuples (the text of an object may hold its address). Parallel edges count once; self-loops are dropped.
    """
    names = list(graph)
    if all(isinstance(v, str | int | float | tuple) for v in names):
        names.sort(key=_natural)
    number = {v: i for i, v in enumerate(names)}
    numbered = nx.Graph(name=graph.name)
    numbered.add_nodes_from((number[v], {"label": str(v), **graph.nodes[v]}) for v in names)
    numbered.add_edges_from((number[a], number[b], data) for a, b, data in graph.edges(data=True) if a != b)
    return numbered


def _natural(name: object) -> list[str | int]:
    """A key that sorts numbers within text by value: text and numbers alternate, so keys are comparable."""
    return [int(part) if k % 2 else part for k, part in enumerate(re.split(r"(\d+)", str(name)))]


# ---- files ----


def _read_graphml(path: str) -> nx.Graph:
    try:
        return nx.read_graphml(_existing(path, "graph 'edge-list'")).to_undirected()
    except (ParseError, nx.NetworkXError, OSError, EOFError) as error:
        raise TopologyError(
            f"{path} is not a GraphML file ({error}); export it again, or write pairs as text"
        ) from None


def _read_pairs(path: str) -> nx.Graph:
    graph = nx.Graph()
    for number, line in enumerate(_existing(path, "graph 'edge-list'").read_text("utf-8").splitlines(), start=1):
        names = line.split("#")[0].replace(",", " ").split()
        if len(names) not in (0, 2):
            raise TopologyError(f"{path}, line {number}: expected the names of two linked workers, got {line!r}")
        graph.add_edges_from([names] if names else [])
    return graph


@WEIGHTS.register("matrix")
def matrix(graph: nx.Graph, path: str | None = None, values: Any = None) -> csr_array:
    """The user's own W, a row per worker: a `.npy`, `.csv` or `.txt` file, or in Python an array."""
    if (path is None) == (values is None):
        raise ConfigError("weights 'matrix' needs either a path to a .npy, .csv or .txt file, or values as an array")
    try:
        W = csr_array(values if path is None else _read_matrix(_existing(path, "weights 'matrix'")), dtype=np.float64)
    except (ValueError, TypeError, EOFError, OSError) as error:
        raise TopologyError(f"weights 'matrix': {path or 'values'} is not a table of numbers ({error})") from None
    W.eliminate_zeros()
    return W


def _read_matrix(file: Path) -> npt.NDArray[np.float64]:
    if file.suffix == ".npy":
        return np.asarray(np.load(file, allow_pickle=False))
    return np.loadtxt(file, delimiter="," if file.suffix == ".csv" else None, ndmin=2)


def _existing(path: str, what: str) -> Path:
    if not Path(path).is_file():
        raise ConfigError(f"{what}: no file {path!r} (looked in {Path.cwd()}); check the path")
    return Path(path)


# ---- what a Topology asks of its graph ----


def _always(W: csr_array, t: int) -> csr_array:
    return W


def _others(W: csr_array, i: int) -> list[int]:
    row = slice(W.indptr[i], W.indptr[i + 1])
    return sorted(int(j) for j, weight in zip(W.indices[row], W.data[row], strict=True) if j != i and weight != 0)


def _expect_workers(graph: nx.Graph, workers: int | None, kind: str) -> None:
    if workers is not None and isinstance(graph, nx.Graph) and len(graph) != workers:
        raise ConfigError(f"graph {kind!r} has {len(graph)} workers but {workers} were asked for; leave workers out")


def _check_connected(graph: nx.Graph) -> None:
    if len(graph) == 0:
        raise TopologyError("the graph has no nodes; give it at least one worker")
    sizes = sorted(map(len, nx.connected_components(graph)), reverse=True)
    if len(sizes) > 1:
        some = ", ".join(map(str, sizes[:5])) + (", …" if len(sizes) > 5 else "")
        raise TopologyError(
            f"the graph falls into {len(sizes)} components of {some} workers, which can never agree; add "
            f"links between them, or keep one: graph.subgraph(max(nx.connected_components(graph), key=len))"
        )


def _diameter(graph: nx.Graph) -> int | None:
    if len(graph) * graph.number_of_edges() > EXACT_DIAMETER:
        return None
    return int(shortest_path(mixing.adjacency(graph), unweighted=True).max())
