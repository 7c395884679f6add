"""Graphs by name, by file and from networkx: their shapes, their W, their determinism, and every complaint."""

from __future__ import annotations

import dataclasses
import math
import pickle
from functools import reduce
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from netfleet.errors import ConfigError, TopologyError
from netfleet.registry import Spec
from netfleet.report.graph import draw_topology
from netfleet.topology import time_varying as varying
from netfleet.topology import weights as mixing
from netfleet.topology.topology import GRAPHS, Topology, make_topology

VARYING = ["one-peer-exponential", "one-peer-hypercube", "random-matching"]
STATIC = [kind for kind in GRAPHS if kind not in (*VARYING, "edge-list")]
RANDOM = ["erdos-renyi", "random-regular", "watts-strogatz", "geometric", "random-matching"]


def links(topology: Topology) -> set[frozenset[int]]:
    return {frozenset(edge) for edge in topology.graph.edges}


# ---- every kind ----


def test_a_graphs_parameters_are_keywords_too() -> None:
    by_keyword = make_topology("erdos-renyi", workers=12, p=0.3, seed=2)
    by_table = make_topology({"kind": "erdos-renyi", "workers": 12, "p": 0.3}, seed=2)
    assert (by_keyword.W() != by_table.W()).nnz == 0
    assert make_topology({"kind": "grid", "rows": 3}, workers=12, rows=3).m == 12


@pytest.mark.parametrize("kind", STATIC)
@pytest.mark.parametrize("weights", ["laplacian", "metropolis", "max-degree"])
def test_static_kinds_satisfy_section_3_2(kind: str, weights: str) -> None:
    topology = make_topology(kind, workers=16, weights=weights)
    assert (topology.m, topology.name, topology.weights, topology.varying) == (16, kind, weights, False)
    assert list(topology.graph) == list(range(16))
    mixing.check_every_link(topology.W(), topology.graph)
    mixing.check_symmetric(topology.W())
    assert topology.W(3) is topology.W()
    assert topology.lam == mixing.second_eigenvalue(topology.W())
    assert topology.messages() == 2 * topology.graph.number_of_edges()


@pytest.mark.parametrize("kind", [*STATIC, *VARYING])
def test_a_single_worker(kind: str) -> None:
    topology = make_topology(kind, workers=1)
    np.testing.assert_array_equal(topology.W(5).toarray(), [[1.0]])
    assert (topology.lam, topology.gap, topology.messages(), topology.neighbours(0)) == (0, 1, 0, [])
    assert topology.describe()["diameter"] == 0


@pytest.mark.parametrize("kind", [*STATIC, *VARYING])
def test_who_needs_whom_is_read_off_W(kind: str) -> None:
    topology = make_topology(kind, workers=16)
    for t in range(3):
        W = topology.W(t).toarray() - np.diag(topology.W(t).diagonal())
        for i in range(topology.m):
            assert topology.neighbours(i, t) == np.flatnonzero(W[i]).tolist()
            assert topology.readers(i, t) == np.flatnonzero(W[:, i]).tolist()
        assert topology.messages(t) == np.count_nonzero(W)


@pytest.mark.parametrize("kind", RANDOM)
def test_random_kinds_are_functions_of_their_seed(kind: str) -> None:
    def matrix(seed: int) -> list[list[float]]:
        return make_topology(kind, workers=20, seed=seed).W(2).toarray().tolist()

    assert matrix(7) == matrix(7)
    assert matrix(7) != matrix(8)


def test_a_topology_is_immutable_and_survives_pickling() -> None:
    topology = make_topology("torus", workers=12)
    with pytest.raises(dataclasses.FrozenInstanceError):
        topology.name = "other"  # type: ignore[misc]
    with pytest.raises(nx.NetworkXError, match=r"[Ff]rozen"):
        topology.graph.add_edge(0, 7)
    copy = pickle.loads(pickle.dumps(topology))
    assert (copy.W() - topology.W()).count_nonzero() == 0


# ---- shapes ----


@pytest.mark.parametrize(
    ("kind", "m", "degree", "diameter"),
    [
        ("ring", 9, 2, 4),
        ("complete", 9, 8, 1),
        ("hypercube", 16, 4, 4),
        ("exponential", 16, 7, 2),
        ("exponential", 11, 8, 2),
        ("random-regular", 20, 4, None),
        ("torus", 16, 4, 4),
        ("torus", 7, 2, 3),  # a prime number: a ring
        ({"kind": "torus", "rows": 2}, 8, 3, 3),  # a side of 2: one link across, not two
        ({"kind": "torus", "rows": 2}, 4, 2, 2),
    ],
)
def test_regular_graphs(kind: Spec, m: int, degree: int, diameter: int | None) -> None:
    facts = make_topology(kind, workers=m).describe()
    assert facts["degree_min"] == facts["degree_max"] == facts["degree_mean"] == degree
    assert facts["edges"] == m * degree / 2
    assert diameter is None or facts["diameter"] == diameter


@pytest.mark.parametrize(
    ("kind", "m", "edges", "diameter"),
    [
        ("path", 6, 5, 5),
        ("star", 6, 5, 2),
        ("grid", 12, 17, 5),  # 3 × 4
        ({"kind": "grid", "rows": 2}, 12, 16, 6),
        ("grid", 7, 6, 6),  # a prime number: a path
        ("watts-strogatz", 20, 40, None),
    ],
)
def test_irregular_graphs(kind: Spec, m: int, edges: int, diameter: int | None) -> None:
    facts = make_topology(kind, workers=m).describe()
    assert facts["edges"] == edges
    assert diameter is None or facts["diameter"] == diameter


def test_erdos_renyi_links_each_pair_with_probability_p() -> None:
    m, p = 200, 0.3
    pairs = math.comb(m, 2)
    graph = make_topology({"kind": "erdos-renyi", "p": p}, workers=m).graph
    assert abs(graph.number_of_edges() - p * pairs) < 5 * math.sqrt(pairs * p * (1 - p))  # five deviations
    assert nx.density(make_topology({"kind": "erdos-renyi", "p": 1.0}, workers=10).graph) == 1


def test_geometric_links_exactly_those_within_the_radius() -> None:
    topology = make_topology({"kind": "geometric", "radius": 0.4}, workers=30)
    places = np.array([topology.graph.nodes[i]["pos"] for i in range(30)])
    near = {frozenset((i, j)) for i in range(30) for j in range(i) if math.dist(places[i], places[j]) <= 0.4}
    assert links(topology) == near


def test_lambda_of_a_large_ring_has_its_closed_form() -> None:
    m = 5000
    expected_gap = (2 / 3) * (1 - math.cos(2 * math.pi / m)) / 2
    assert make_topology("ring", workers=m).gap == pytest.approx(expected_gap, rel=1e-5)


def test_the_diameter_of_a_large_graph_is_left_out() -> None:
    assert make_topology("ring", workers=5000).describe()["diameter"] is None


# ---- time-varying ----


@pytest.mark.parametrize("kind", VARYING)
@pytest.mark.parametrize("m", [4, 16])
def test_varying_kinds_are_doubly_stochastic_on_their_links(kind: str, m: int) -> None:
    topology = make_topology(kind, workers=m)
    assert topology.varying
    for t in range(12):
        mixing.check_stochastic(topology.W(t), m)
        mixing.check_sparsity(topology.W(t), topology.graph)
        assert topology.messages(t) <= m
        assert (topology.W(t) - topology.W(t)).count_nonzero() == 0


@pytest.mark.parametrize("kind", ["one-peer-exponential", "one-peer-hypercube"])
@pytest.mark.parametrize("exponent", [1, 2, 3, 5])
def test_one_peer_periods_average_exactly(kind: str, exponent: int) -> None:
    m = 2**exponent
    topology = make_topology(kind, workers=m)
    product = reduce(lambda P, t: topology.W(t) @ P, range(exponent), np.eye(m))
    np.testing.assert_array_equal(product, np.full((m, m), 1 / m))
    assert (topology.lam, topology.gap) == (0, 1)


def test_one_peer_exponential_is_not_symmetric() -> None:
    topology = make_topology("one-peer-exponential", workers=8)
    assert [topology.neighbours(3, t) for t in range(4)] == [[4], [5], [7], [4]]
    assert [topology.readers(3, t) for t in range(4)] == [[2], [1], [7], [2]]
    with pytest.raises(TopologyError, match="not symmetric"):
        mixing.check_symmetric(topology.W(0))


@pytest.mark.parametrize("m", [3, 5, 12, 50])
def test_one_peer_exponential_contracts_on_any_number_of_workers(m: int) -> None:
    assert 0 < make_topology("one-peer-exponential", workers=m).lam < 1


@pytest.mark.parametrize("base", ["complete", "ring", "star", {"kind": "erdos-renyi", "p": 0.3}])
def test_random_matching_is_symmetric_and_pure_in_t(base: Spec) -> None:
    topology = make_topology({"kind": "random-matching", "base": base}, workers=15)
    rounds = [topology.W(t).toarray() for t in range(10)]
    for t in reversed(range(10)):
        mixing.check_symmetric(topology.W(t))
        np.testing.assert_array_equal(topology.W(t).toarray(), rounds[t])
    assert len({W.tobytes() for W in rounds}) > 1
    assert 0 < topology.lam < 1


@settings(deadline=None)
@given(st.integers(2, 15), st.floats(0, 1), st.integers(0, 2**32))
def test_matching_is_the_greedy_one(m: int, p: float, seed: int) -> None:
    edges = np.array(nx.gnp_random_graph(m, p, seed=seed).edges, dtype=np.int64).reshape(-1, 2)
    order = np.random.default_rng(seed).permutation(len(edges))
    greedy = np.arange(m)
    for a, b in edges[np.argsort(order)]:
        if greedy[a] == a and greedy[b] == b:
            greedy[a], greedy[b] = b, a
    np.testing.assert_array_equal(varying.maximal_matching(m, edges, order), greedy)


def test_matching_an_even_complete_graph_leaves_nobody_out() -> None:
    topology = make_topology("random-matching", workers=10)
    assert [topology.messages(t) for t in range(20)] == [10] * 20


# ---- graphs of the user's own ----


def test_from_graph_numbers_any_labels_in_natural_order() -> None:
    topology = Topology.from_graph(nx.Graph([("n10", "n2"), ("n2", "n1"), ("n1", "n10")]), name="three")
    assert [topology.graph.nodes[i]["label"] for i in range(3)] == ["n1", "n2", "n10"]
    lattice = Topology.from_graph(nx.grid_2d_graph(3, 12), weights="metropolis")
    assert links(lattice) == links(make_topology({"kind": "grid", "rows": 3}, workers=36))


def test_from_graph_keeps_the_order_of_labels_that_have_none() -> None:
    first, second, third = object(), object(), object()
    topology = Topology.from_graph(nx.Graph([(third, first), (first, second)]))
    assert links(topology) == {frozenset((0, 1)), frozenset((1, 2))}


def test_from_graph_counts_parallel_edges_once_and_drops_self_loops() -> None:
    topology = Topology.from_graph(nx.MultiGraph([(0, 1), (0, 1), (1, 2), (2, 2)]))
    assert links(topology) == {frozenset((0, 1)), frozenset((1, 2))}


def test_from_graph_does_not_touch_the_graph_given() -> None:
    graph = nx.path_graph(3)
    Topology.from_graph(graph)
    graph.add_edge(2, 3)
    assert not nx.is_frozen(graph)


OWN = np.array([[0.5, 0.5, 0.0], [0.5, 0.25, 0.25], [0.0, 0.25, 0.75]])


def test_weights_as_an_array() -> None:
    topology = Topology.from_graph(nx.path_graph(3), weights=OWN)
    np.testing.assert_array_equal(topology.W().toarray(), OWN)
    assert topology.weights == "matrix"
    assert make_topology("path", workers=3, weights=OWN.tolist()).lam == topology.lam


@pytest.mark.parametrize("suffix", ["npy", "csv", "txt"])
def test_weights_from_a_file(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"W.{suffix}"
    if suffix == "npy":
        np.save(file, OWN)
    else:
        np.savetxt(file, OWN, delimiter="," if suffix == "csv" else " ")
    topology = make_topology("path", workers=3, weights={"kind": "matrix", "path": str(file)})
    np.testing.assert_array_equal(topology.W().toarray(), OWN)


@pytest.mark.parametrize("text", ["0 1\n1 2\n2 0\n", "# three banks\nb,a\n\nc , b # last\na c\n"])
def test_edge_list_from_text(tmp_path: Path, text: str) -> None:
    file = tmp_path / "links.txt"
    file.write_text(text)
    topology = make_topology({"kind": "edge-list", "path": str(file)})
    assert links(topology) == links(make_topology("ring", workers=3))
    assert make_topology({"kind": "edge-list", "path": str(file)}, workers=3).m == 3


@pytest.mark.parametrize("suffix", ["graphml", "graphml.gz"])
@pytest.mark.parametrize("directed", [False, True])
def test_edge_list_from_graphml(tmp_path: Path, suffix: str, directed: bool) -> None:
    file = tmp_path / f"network.{suffix}"
    nx.write_graphml(nx.cycle_graph(12, create_using=nx.DiGraph if directed else nx.Graph), file)
    topology = make_topology({"kind": "edge-list", "path": str(file)})
    assert links(topology) == links(make_topology("ring", workers=12))


def own_pair() -> nx.Graph:
    return nx.path_graph(["left", "right"])


def own_schedule(workers: int) -> varying.WeightSequence:
    return varying.WeightSequence(nx.path_graph(workers), lambda t: varying.flip_round(workers, t), period=2)


def test_factories_of_the_users_own() -> None:
    assert make_topology(f"{__name__}:own_pair").m == 2
    with pytest.raises(TopologyError, match=r"W\[0, 2\] = 0\.5 but workers 0 and 2 are not linked"):
        make_topology(f"{__name__}:own_schedule", workers=4)


# ---- complaints ----


@pytest.mark.parametrize(
    ("spec", "arguments", "complaint"),
    [
        ("rnig", {"workers": 4}, r"unknown graph 'rnig' \(did you mean 'ring'\?\)"),
        ("ring", {}, r"graph 'ring' needs workers"),
        ("ring", {"workers": 0}, r"workers must be a whole number from 1 on, got 0"),
        ({"kind": "ring", "workers": 3}, {"workers": 4}, r"has workers = 3 and 4; give it once"),
        (
            {"kind": "ring", "weights": "fastest"},
            {"workers": 4, "weights": np.eye(4)},
            r"(?s)fastest' and array.*give it once",
        ),
        ({"kind": "erdos-renyi", "p": 0.3}, {"workers": 4, "p": 0.5}, r"has p = 0\.3 and 0\.5; give it once"),
        ("erdos-renyi", {"workers": 4, "q": 0.5}, r"'erdos-renyi' has no parameter 'q'.*it takes: p"),
        ("erdos-renyi", {"workers": 4, "p": "half"}, r"'erdos-renyi': p must be a number, got 'half'"),
        (nx.path_graph(3), {"p": 0.5}, r"a networkx graph takes no parameters, got p"),
        ("hypercube", {"workers": 12}, r"must be a power of two, got 12; use 8 or 16"),
        ("one-peer-hypercube", {"workers": 3}, r"must be a power of two, got 3; use 2 or 4"),
        ({"kind": "grid", "rows": 5}, {"workers": 12}, r"rows must divide the 12 workers, got 5; leave rows out"),
        ({"kind": "torus", "rows": 0}, {"workers": 12}, r"rows must divide the 12 workers, got 0"),
        ({"kind": "erdos-renyi", "p": 1.5}, {"workers": 5}, r"p must lie in \(0, 1\], got 1\.5"),
        ({"kind": "random-regular", "degree": 3}, {"workers": 5}, r"even if their number is odd, got 3"),
        ({"kind": "random-regular", "degree": 5}, {"workers": 5}, r"degree must be below the 5 workers.*got 5"),
        ({"kind": "watts-strogatz", "k": 3}, {"workers": 9}, r"k must be even and below the 9 workers, got 3"),
        ({"kind": "watts-strogatz", "p": -1.0}, {"workers": 9}, r"p must lie in \[0, 1\], got -1\.0"),
        ({"kind": "geometric", "radius": 0}, {"workers": 9}, r"radius must be positive, got 0"),
        ({"kind": "random-matching", "base": "one-peer-exponential"}, {"workers": 8}, r"base must not vary in time"),
        ({"kind": "edge-list", "path": "nowhere.txt"}, {}, r"no file 'nowhere\.txt' \(looked in .*check the path"),
        ("one-peer-exponential", {"workers": 8, "weights": "metropolis"}, r"remove weights = 'metropolis'"),
        ("path", {"workers": 3, "weights": "matrix"}, r"needs either a path to a \.npy.* or values as an array"),
        (f"{__name__}:own_pair", {"workers": 3}, r"has 2 workers but 3 were asked for; leave workers out"),
    ],
)
def test_specifications_that_make_no_sense(spec: Spec, arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make_topology(spec, **arguments)


@pytest.mark.parametrize(
    ("spec", "remedy"),
    [
        ({"kind": "erdos-renyi", "p": 0.01}, "raise p"),
        ({"kind": "random-regular", "degree": 1}, "raise degree"),
        ({"kind": "geometric", "radius": 0.01}, "raise radius"),
    ],
)
def test_random_graphs_that_are_never_connected(spec: Spec, remedy: str) -> None:
    with pytest.raises(TopologyError, match=f"not one of 200 drawings on 20 workers was connected; {remedy}"):
        make_topology(spec, workers=20)


@pytest.mark.parametrize(
    ("graph", "complaint"),
    [
        (nx.Graph([(0, 1), (2, 3), (3, 4)]), r"2 components of 3, 2 workers, which can never agree; add links"),
        (nx.empty_graph(9), r"9 components of 1, 1, 1, 1, 1, … workers"),
        (nx.Graph(), r"the graph has no nodes"),
        (nx.DiGraph([(0, 1)]), r"directed but links go both ways; pass graph\.to_undirected\(\)"),
        ([(0, 1)], r"expected a networkx\.Graph, got list; build it with nx\.Graph\(edges\)"),
    ],
)
def test_graphs_that_cannot_be_used(graph: nx.Graph, complaint: str) -> None:
    with pytest.raises(TopologyError, match=complaint):
        Topology.from_graph(graph)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (OWN[:2, :2], r"shape \(2, 2\) but there are 3 workers"),
        (OWN[::-1], r"W\[0, 2\] = 0\.75 but workers 0 and 2 are not linked"),
        ([["a"]], r"values is not a table of numbers"),
    ],
)
def test_matrices_that_cannot_be_used(values: object, complaint: str) -> None:
    with pytest.raises(TopologyError, match=complaint):
        make_topology("path", workers=3, weights={"kind": "matrix", "values": values})


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("links.txt", "0 1\n0 1 2\n", r"links\.txt, line 2: expected the names of two linked workers, got '0 1 2'"),
        ("links.txt", "\n", r"the graph has no nodes"),
        ("links.graphml", "0 1\n", r"links\.graphml is not a GraphML file \(.*\); export it again"),
        ("links.graphml.gz", "0 1\n", r"links\.graphml\.gz is not a GraphML file"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: str, complaint: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(TopologyError, match=complaint):
        make_topology({"kind": "edge-list", "path": str(tmp_path / name)})


def test_a_file_with_another_number_of_workers(tmp_path: Path) -> None:
    (tmp_path / "links.txt").write_text("a b\n")
    with pytest.raises(ConfigError, match="'edge-list' has 2 workers but 5 were asked for"):
        make_topology({"kind": "edge-list", "path": str(tmp_path / "links.txt")}, workers=5)


# ---- pictures ----


@pytest.mark.parametrize("kind", ["ring", "star", "torus", "hypercube", "random-matching"])
@pytest.mark.parametrize("m", [1, 2, 16])
def test_pictures_of_small_graphs(tmp_path: Path, kind: str, m: int) -> None:
    draw_topology(make_topology(kind, workers=m), tmp_path / "graph.png")
    assert (tmp_path / "graph.png").read_bytes().startswith(b"\x89PNG")


def test_pictures_in_axes_of_the_callers_own() -> None:
    axes = Figure().subplots()
    topology = make_topology("erdos-renyi", workers=80, weights="metropolis")
    draw_topology(topology, axes)
    assert f"m = 80, {topology.graph.number_of_edges()} edges" in axes.get_title()


@pytest.mark.parametrize("m", [4, 6, 8])
def test_lambda_of_random_matchings_is_their_mean_square_contraction(m: int) -> None:
    # A uniform perfect matching links each pair with probability 1/(m − 1): E[W] = (I + (J − I)/(m − 1))/2.
    expected = np.sqrt((1 - 1 / (m - 1)) / 2)
    for seed in range(4):
        assert make_topology("random-matching", workers=m, seed=seed).lam == pytest.approx(expected, rel=0.15)
