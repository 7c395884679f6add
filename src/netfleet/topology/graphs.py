"""Graphs by name, from a file or at random, all undirected on workers 0, …, m − 1.

Random graphs are functions of their seed and are drawn again until they are connected. The time-varying kinds
(`time_varying.py`) bring their own weights.
"""

import functools
import math
import re
import typing
from collections.abc import Callable
from functools import partial
from pathlib import Path
from xml.etree.ElementTree import ParseError

import networkx as nx
import numpy as np
import numpy.typing as npt
from scipy.spatial import KDTree

from netfleet.errors import ConfigError, TopologyError
from netfleet.randomness import generator
from netfleet.registry import Registry, Spec
from netfleet.topology import time_varying as varying
from netfleet.topology.time_varying import WeightSequence

Pairs = npt.NDArray[np.int64]
Factory = Callable[..., nx.Graph | WeightSequence]
GRAPHS: Registry[nx.Graph | WeightSequence] = Registry("graph")
TRIES = 200  # drawings of a random graph before giving up on a connected one


def _kind(name: str) -> Callable[[Factory], Factory]:
    """Register a factory of graphs on two workers or more; a single worker is the same graph in every kind."""

    def add(factory: Factory) -> Factory:
        @functools.wraps(factory)
        def checked(workers: int, **params: object) -> nx.Graph | WeightSequence:
            counted = isinstance(workers, int) and workers >= 1
            _require(counted, name, f"workers must be a whole number from 1 on, got {workers!r}")
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
    """Worker 0 is linked to all others."""
    return nx.star_graph(workers - 1)


@_kind("complete")
def complete(workers: int) -> nx.Graph:
    """All pairs are linked."""
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
    draw = partial(nx.random_regular_graph, degree, workers)
    return _until_connected("random-regular", seed, lambda random: draw(seed=_seed(random)), "raise degree")


@_kind("watts-strogatz")
def watts_strogatz(workers: int, seed: int, k: int = 4, p: float = 0.1) -> nx.Graph:
    """A ring with links to the k nearest, each moved with probability p (Watts and Strogatz 1998)."""
    fits = 2 <= k < workers and k % 2 == 0
    _require(fits, "watts-strogatz", f"k must be even and below the {workers} workers, got {k}")
    _require(0 <= p <= 1, "watts-strogatz", f"p must lie in [0, 1], got {p}")
    draw = partial(nx.watts_strogatz_graph, workers, k, p)
    return _until_connected("watts-strogatz", seed, lambda random: draw(seed=_seed(random)), "raise k or lower p")


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

    In text, `#` starts a comment, and a comma separates names as a space does. Workers are numbered by the natural
    order of their names; an edge in either direction is a link.
    """
    graph = numbered(_read_graphml(path) if ".graphml" in Path(path).suffixes else _read_pairs(path))
    expect_workers(graph, workers, "edge-list")
    return graph


@_kind("one-peer-exponential")
def one_peer_exponential(workers: int) -> WeightSequence:
    """Round t: i averages with i + 2^(t mod τ), τ = ⌈log₂ m⌉ (Ying et al. 2021).

    After τ rounds that is the exact average if m = 2^τ. Directed: W(t) is doubly stochastic but NOT
    symmetric, so property (b) of Section 3.2 does not hold.
    """
    W = partial(varying.shift_round, workers)
    return WeightSequence(exponential(workers), W, varying.powers(workers), symmetric=workers == 2)


@_kind("one-peer-hypercube")
def one_peer_hypercube(workers: int) -> WeightSequence:
    """Round t: i and i XOR 2^(t mod τ) average, m = 2^τ. Symmetric, and exact after τ rounds."""
    _require_power_of_two("one-peer-hypercube", workers)
    return WeightSequence(hypercube(workers), partial(varying.flip_round, workers), varying.powers(workers))


@_kind("random-matching")
def random_matching(workers: int, seed: int, base: Spec = "complete") -> WeightSequence:
    """Round t: the pairs of a random maximal matching of the graph `base` average, drawn for (seed, t)."""
    graph = GRAPHS.build(base, workers=workers, seed=seed)
    if isinstance(graph, WeightSequence):
        raise ConfigError(f"graph 'random-matching': base must not vary in time, got {base!r}; use a fixed graph")
    expect_workers(graph, workers, "random-matching")
    links = np.sort(np.array(graph.edges, dtype=np.int64), axis=1)
    W = partial(varying.matching_round, workers, links[np.lexsort(links.T[::-1])], seed)
    return WeightSequence(graph, W, period=None)


def varies(kind: str) -> bool:
    """Whether graphs of this kind change from round to round, and so bring their own weights."""
    return typing.get_type_hints(GRAPHS[kind]).get("return") is WeightSequence


def _require(condition: bool, kind: str, complaint: str) -> None:
    if not condition:
        raise ConfigError(f"graph {kind!r}: {complaint}")


def _require_power_of_two(kind: str, workers: int) -> None:
    near = 1 << (workers.bit_length() - 1)
    _require(workers == near, kind, f"workers must be a power of two, got {workers}; use {near} or {2 * near}")


def _seed(random: np.random.Generator) -> int:
    return int(random.integers(2**32))


def _powers(workers: int) -> list[int]:
    return [1 << k for k in range(varying.powers(workers))]


def _from_pairs(workers: int, pairs: Pairs) -> nx.Graph:
    """The graph of the pairs [e, 2]; a pair given twice counts once, and no worker is linked to itself."""
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


def numbered(graph: nx.Graph) -> nx.Graph:
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


def _read_graphml(path: str) -> nx.Graph:
    try:
        return nx.read_graphml(existing(path, "graph 'edge-list'")).to_undirected()
    except (ParseError, nx.NetworkXError, OSError, EOFError) as error:
        raise TopologyError(f"{path} is not a GraphML file ({error}); export it again, or write text") from None


def _read_pairs(path: str) -> nx.Graph:
    graph = nx.Graph()
    for number, line in enumerate(existing(path, "graph 'edge-list'").read_text("utf-8").splitlines(), start=1):
        names = line.split("#")[0].replace(",", " ").split()
        if len(names) not in (0, 2):
            raise TopologyError(f"{path}, line {number}: expected the names of two linked workers, got {line!r}")
        graph.add_edges_from([names] if names else [])
    return graph


def existing(path: str, what: str) -> Path:
    if not Path(path).is_file():
        raise ConfigError(f"{what}: no file {path!r} (looked in {Path.cwd()}); check the path")
    return Path(path)


def expect_workers(graph: nx.Graph, workers: int | None, kind: str) -> None:
    if workers is not None and isinstance(graph, nx.Graph) and len(graph) != workers:
        raise ConfigError(f"graph {kind!r} has {len(graph)} workers but {workers} were asked for; leave workers out")
