"""A `Topology`: a graph by name, from a file or from networkx, and its weights.

>>> make_topology("ring", workers=8, weights="metropolis").describe()["degree_max"]
2
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Self, cast

import networkx as nx
import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, issparse
from scipy.sparse.csgraph import shortest_path

from netfleet.errors import ConfigError, TopologyError
from netfleet.registry import Spec, check_type, shown, split
from netfleet.topology import time_varying as varying
from netfleet.topology import weights as mixing
from netfleet.topology.graphs import GRAPHS, existing, expect_workers, numbered
from netfleet.topology.network import Network
from netfleet.topology.time_varying import WeightSequence
from netfleet.topology.weights import WEIGHTS

EXACT_DIAMETER = 10**7  # workers × links up to which the diameter takes less than a second


@dataclass(frozen=True, eq=False)
class Topology(Network):
    """A connected graph on m workers and its consensus matrix, checked against Section 3.2 of the paper."""

    name: str
    weights: str
    weight_sequence: WeightSequence

    def __post_init__(self) -> None:
        _check_connected(self.graph)
        varying.check(self.weight_sequence)
        if not self.varying:
            mixing.check_every_link(self.W(), self.graph)
        mixing.check_contraction(self.lam)

    @classmethod
    def from_graph(cls, graph: nx.Graph, weights: Spec | npt.ArrayLike = "laplacian", name: str | None = None) -> Self:
        """Any undirected networkx graph; workers are its nodes in natural order ("a2" before "a10").

        Weights are a name, a table with a kind, or W itself with its rows in that order.
        """
        if not isinstance(graph, nx.Graph):
            raise TopologyError(f"expected a networkx.Graph, got {type(graph).__name__}; build it with nx.Graph(edges)")
        if graph.is_directed():
            raise TopologyError("the graph is directed but links go both ways; pass graph.to_undirected()")
        workers = nx.freeze(numbered(graph))
        _check_connected(workers)
        spec: Spec = weights if isinstance(weights, str | Mapping) else {"kind": "matrix", "values": weights}
        W = csr_array(WEIGHTS.build(spec, graph=workers)).astype(np.float64)
        sequence = WeightSequence(workers, partial(_always, W), period=1)
        return cls(name or graph.name or "graph", split(spec, "weights")[0], sequence)

    def __repr__(self) -> str:
        links = self.graph.number_of_edges()
        return (
            f"<Topology {self.name!r}: {self.m} workers, {links} links, weights {self.weights!r}, λ = {self.lam:.4g}>"
        )

    @property
    def graph(self) -> nx.Graph:
        """The links; with a time-varying W those that any round uses."""
        return self.weight_sequence.graph

    @property
    def m(self) -> int:
        """Number of workers."""
        return len(self.graph)

    @property
    def varying(self) -> bool:
        """Whether W changes from round to round."""
        return self.weight_sequence.period != 1

    def W(self, t: int = 0) -> csr_array:
        """The consensus matrix of round t, one and the same object unless time-varying; never write to it."""
        return self.weight_sequence.W(t)

    @cached_property
    def lam(self) -> float:
        """λ; with a time-varying W the contraction per round (`time_varying.rate`)."""
        return varying.rate(self.weight_sequence) if self.varying else mixing.second_eigenvalue(self.W())

    @cached_property
    def least_eigenvalue(self) -> float:
        """The least eigenvalue of a symmetric W, over all rounds of its period (or the first, where there is none)."""
        rounds = map(self.W, range(self.weight_sequence.period or 1))
        return min(1 - mixing.spectral_radius(lambda v, W=W: v - W @ v, self.m) for W in rounds)  # type: ignore[misc]

    @property
    def gap(self) -> float:
        """The spectral gap 1 − λ."""
        return 1 - self.lam

    def neighbours(self, i: int, t: int = 0) -> list[int]:
        """The workers that worker i reads in round t: all j ≠ i with Wᵢⱼ ≠ 0."""
        return sorted(self.row(i, t).keys() - {i})

    def readers(self, i: int, t: int = 0) -> list[int]:
        """The workers that read worker i in round t: all j ≠ i with Wⱼᵢ ≠ 0; its neighbours where W is symmetric."""
        if self.weight_sequence.symmetric:
            return self.neighbours(i, t)
        column = self.W(t)[:, [i]].toarray()[:, 0]
        return [j for j in np.flatnonzero(column).tolist() if j != i]

    def row(self, i: int, t: int = 0) -> dict[int, float]:
        """Row i of W(t), zeros left out."""
        W = self.W(t)
        part = slice(W.indptr[i], W.indptr[i + 1])
        return {j: w for j, w in zip(W.indices[part].tolist(), W.data[part].tolist(), strict=True) if w != 0}

    def sends(self, i: int, t: int = 0) -> int:
        return len(self.readers(i, t))

    def messages(self, t: int = 0) -> int:
        """How many messages an exchange of round t takes, both directions of a link counted."""
        W = self.W(t)
        return int(np.count_nonzero(W.data) - np.count_nonzero(W.diagonal()))

    def describe(self) -> dict[str, str | int | float | None]:
        """The numbers of a report by name; the diameter is `None` where it would take long."""
        degrees = [degree for _, degree in self.graph.degree]
        quick = self.m * self.graph.number_of_edges() <= EXACT_DIAMETER
        return {
            "name": self.name,
            "workers": self.m,
            "edges": self.graph.number_of_edges(),
            "degree_min": min(degrees),
            "degree_mean": sum(degrees) / self.m,
            "degree_max": max(degrees),
            "diameter": int(shortest_path(mixing.adjacency(self.graph), unweighted=True).max()) if quick else None,
            "lambda": self.lam,
            "spectral_gap": self.gap,
            "weights": self.weights,
        }


def make_topology(
    spec: Spec | nx.Graph,
    *,
    workers: int | None = None,
    weights: Spec | npt.ArrayLike | None = None,
    seed: int = 0,
    **parameters: object,
) -> Topology:
    """The topology of a kind ("ring") and its parameters (p = 0.3), of a table with both, or of a networkx graph.

        >>> make_topology("erdos-renyi", workers=20, p=0.3).m
        20

    Weights are the paper's ("laplacian") unless given, also in the table; a graph that varies in time brings its own.
    """
    for name, value in {"workers": workers, "seed": seed}.items():
        check_type(value, int if name == "seed" else int | None, f"make_topology: {name}")
    if isinstance(spec, nx.Graph):
        if parameters:
            raise ConfigError(f"a networkx graph takes no parameters, got {', '.join(parameters)}; leave them out")
        topology = Topology.from_graph(spec, "laplacian" if weights is None else weights)
        expect_workers(topology.graph, workers, topology.name)
        return topology
    kind, table = split(spec, "graph")
    given = parameters | {k: v for k, v in (("workers", workers), ("weights", weights)) if v is not None}
    for name in table.keys() & given.keys():
        if name == "weights" or table[name] != given[name]:
            raise ConfigError(f"graph {kind!r} has {name} = {table[name]!r} and {given[name]!r}; give it once")
    weights = cast(Spec | npt.ArrayLike | None, table.pop("weights", weights))
    table = {"kind": kind, **parameters, **table}
    network = GRAPHS.build(table, seed=seed, **({} if workers is None or "workers" in table else {"workers": workers}))
    if not isinstance(network, WeightSequence):
        expect_workers(network, workers, kind)
        return Topology.from_graph(network, "laplacian" if weights is None else weights, name=kind)
    expect_workers(nx.freeze(network.graph), workers, kind)
    if weights is not None:
        raise ConfigError(f"graph {kind!r} varies in time and brings its own weights; remove weights = {weights!r}")
    return Topology(kind, "half and half", network)


@WEIGHTS.register("matrix")
def matrix(graph: nx.Graph, path: str | None = None, values: Any = None) -> csr_array:
    """The user's own W, a row per worker: a `.npy`, `.csv` or `.txt` file, or in Python an array."""
    if (path is None) == (values is None):
        raise ConfigError("weights 'matrix' needs either a path to a .npy, .csv or .txt file, or values as an array")
    try:
        if path is not None:
            file = existing(path, "weights 'matrix'")
            delimiter = "," if file.suffix == ".csv" else None
            numpy = file.suffix == ".npy"
            values = np.load(file, allow_pickle=False) if numpy else np.loadtxt(file, delimiter=delimiter, ndmin=2)
        if not issparse(values) and np.ndim(values) != 2:
            raise ValueError(f"got {shown(values)}")
        W = csr_array(values, dtype=np.float64)
    except (ValueError, TypeError, EOFError, OSError) as error:
        advice = "give a square table with a row for each worker"
        reason = f"{path or 'values'} is not a table of numbers ({error})"
        raise TopologyError(f"weights 'matrix': {reason}; {advice}") from None
    W.eliminate_zeros()
    return W


def _always(W: csr_array, t: int) -> csr_array:
    return W


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
