"""Consensus matrices: closed forms for λ, the properties of Section 3.2 as invariants, and every complaint."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import csr_array

from netfleet.errors import ConfigError, TopologyError
from netfleet.registry import Spec
from netfleet.topology import time_varying as varying
from netfleet.topology import weights as mixing
from netfleet.topology.topology import Topology
from netfleet.topology.weights import WEIGHTS, contraction, second_eigenvalue

BEYOND_DENSE = mixing.DENSE + 100


def check(W: csr_array, graph: nx.Graph) -> None:
    """A topology checks its W against Section 3.2."""
    Topology.from_graph(graph, W)


@st.composite
def connected_graphs(draw: st.DrawFn) -> nx.Graph:
    """A random tree on 1 to 12 workers and some links more."""
    m = draw(st.integers(1, 12))
    graph = nx.empty_graph(m)
    graph.add_edges_from((i, draw(st.integers(0, i - 1))) for i in range(1, m))
    pairs = st.tuples(st.integers(0, m - 1), st.integers(0, m - 1)).filter(lambda pair: pair[0] != pair[1])
    graph.add_edges_from(draw(st.lists(pairs, max_size=20)) if m > 1 else [])
    return graph


# ---- invariants ----


@settings(deadline=None)
@given(connected_graphs(), st.sampled_from(["laplacian", "metropolis", "max-degree"]))
def test_weights_have_the_properties_of_section_3_2(graph: nx.Graph, weights: str) -> None:
    check(WEIGHTS.build(weights, graph=graph), graph)


@settings(deadline=None)
@given(connected_graphs(), st.floats(0.01, 1.99))
def test_laplacian_weights_spread_their_eigenvalues_over_the_factor(graph: nx.Graph, factor: float) -> None:
    W = WEIGHTS.build({"kind": "laplacian", "factor": factor}, graph=graph)
    check(W, graph)
    if len(graph) > 1:
        assert np.linalg.eigvalsh(W.toarray())[0] == pytest.approx(1 - factor)


@settings(deadline=None, max_examples=40)
@given(connected_graphs(), st.sampled_from([-1.0, -1 / 3, 0.0, 1 / 3]))
def test_the_fastest_weights_mix_as_fast_as_any_with_their_least_eigenvalue(graph: nx.Graph, least: float) -> None:
    W = WEIGHTS.build({"kind": "fastest", "least": least}, graph=graph)
    check(W, graph)
    eigenvalues = np.linalg.eigvalsh(W.toarray())
    assert W.data.min() > 0
    assert eigenvalues[0] > least - 1e-8
    for other in ("metropolis", "max-degree", {"kind": "laplacian", "factor": min(1 - least, 1.9)}):
        found = WEIGHTS.build(other, graph=graph).toarray()  # type: ignore[arg-type]
        if len(graph) > 1 and found.min() >= 0 and np.linalg.eigvalsh(found)[0] >= least - 1e-12:
            assert second_eigenvalue(W) < second_eigenvalue(csr_array(found)) + 1e-5


@pytest.mark.parametrize(
    ("graph", "lam"),
    [
        (nx.path_graph(5), math.cos(math.pi / 5)),  # Boyd, Diaconis, Sun, Xiao 2006: weights 1/2
        (nx.cycle_graph(5), 1 / math.sqrt(5)),
        (nx.complete_graph(6), 0.0),
        (nx.star_graph(9), 8 / 9),
    ],
)
def test_the_fastest_weights_of_graphs_with_a_known_optimum(graph: nx.Graph, lam: float) -> None:
    W = WEIGHTS.build({"kind": "fastest", "least": -1.0}, graph=graph)
    assert second_eigenvalue(W) == pytest.approx(lam, abs=1e-5)


def test_the_fastest_weights_of_the_exponential_graph_are_those_of_a_linear_programme() -> None:
    """By symmetry a weight depends on the offset alone, and the eigenvalues are linear in these four weights."""
    m, offsets = 20, np.array([1, 2, 4, 8])
    laplacian = 2 - 2 * np.cos(2 * np.pi * np.outer(np.arange(1, m), offsets) / m)  # eigenvalues by offset
    bounds = np.vstack([np.c_[-laplacian, -np.ones(m - 1)], np.c_[laplacian, -np.ones(m - 1)], [[2, 2, 2, 2, 0]]])
    best = linprog([0, 0, 0, 0, 1], bounds, np.r_[-np.ones(m - 1), np.ones(m - 1), 1])
    W = WEIGHTS.build({"kind": "fastest", "least": -1.0}, graph=nx.circulant_graph(m, offsets))
    assert second_eigenvalue(W) == pytest.approx(best.fun, abs=1e-6)


@settings(deadline=None)
@given(connected_graphs())
def test_lambda_is_the_distance_to_exact_averaging(graph: nx.Graph) -> None:
    W, m = WEIGHTS.build("metropolis", graph=graph), len(graph)
    assert second_eigenvalue(W) == pytest.approx(np.linalg.norm(W.toarray() - np.ones((m, m)) / m, 2), abs=1e-12)


@settings(deadline=None)
@given(connected_graphs(), st.integers(1, 5))
def test_contraction_of_a_constant_sequence_is_lambda(graph: nx.Graph, rounds: int) -> None:
    W = WEIGHTS.build("laplacian", graph=graph)
    assert contraction([W] * rounds) == pytest.approx(second_eigenvalue(W))


def test_edge_attributes_and_self_loops_do_not_count() -> None:
    plain, decorated = nx.cycle_graph(5), nx.cycle_graph(5)
    nx.set_edge_attributes(decorated, 7.0, "weight")
    decorated.add_edge(2, 2)
    for weights in ("laplacian", "metropolis", "max-degree", "uniform"):
        same = WEIGHTS.build(weights, graph=plain) - WEIGHTS.build(weights, graph=decorated)
        assert abs(same).max() == 0


# ---- closed forms ----


@pytest.mark.parametrize("m", [3, 4, 7, 10, 25])
@pytest.mark.parametrize("weights", ["metropolis", "max-degree", "uniform"])
def test_lambda_of_a_ring_with_thirds(m: int, weights: str) -> None:
    W = WEIGHTS.build(weights, graph=nx.cycle_graph(m))
    modes = (1 + 2 * np.cos(2 * np.pi * np.arange(1, m) / m)) / 3
    assert second_eigenvalue(W) == pytest.approx(abs(modes).max(), abs=1e-12)


@pytest.mark.parametrize("m", [3, 4, 7, 10, 25, BEYOND_DENSE, BEYOND_DENSE + 1])
def test_lambda_of_a_ring_with_laplacian_weights(m: int) -> None:
    largest = 2 - 2 * math.cos(2 * math.pi * (m // 2) / m)
    expected = 1 - (2 / 3) * (2 - 2 * math.cos(2 * math.pi / m)) / largest
    assert second_eigenvalue(WEIGHTS.build("laplacian", graph=nx.cycle_graph(m))) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("m", [2, 3, 10])
def test_complete_graph(m: int) -> None:
    graph = nx.complete_graph(m)
    for weights in ("metropolis", "max-degree", "uniform"):
        W = WEIGHTS.build(weights, graph=graph)
        np.testing.assert_allclose(W.toarray(), np.full((m, m), 1 / m))
        assert second_eigenvalue(W) == 0
    assert second_eigenvalue(WEIGHTS.build("laplacian", graph=graph)) == pytest.approx(1 / 3)


@pytest.mark.parametrize("dimension", [1, 2, 3, 5])
def test_hypercube(dimension: int) -> None:
    graph = nx.convert_node_labels_to_integers(nx.hypercube_graph(dimension))
    # the Laplacian has eigenvalues 0, 2, …, 2 × dimension
    assert second_eigenvalue(WEIGHTS.build("laplacian", graph=graph)) == pytest.approx(1 - 2 / 3 / dimension)
    expected = max(abs(1 - 2 / (dimension + 1)), abs(1 - 2 * dimension / (dimension + 1)))
    assert second_eigenvalue(WEIGHTS.build("uniform", graph=graph)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("m", [3, 8, BEYOND_DENSE])
def test_star(m: int) -> None:
    graph = nx.star_graph(m - 1)
    # the Laplacian has eigenvalues 0, 1 (m − 2 times) and m
    assert second_eigenvalue(WEIGHTS.build("laplacian", graph=graph)) == pytest.approx(1 - 2 / (3 * m), abs=1e-12)
    assert second_eigenvalue(WEIGHTS.build("metropolis", graph=graph)) == pytest.approx(1 - 1 / m, abs=1e-12)


@pytest.mark.parametrize("weights", ["laplacian", "metropolis", "max-degree", "uniform"])
def test_a_single_worker_keeps_what_it_has(weights: str) -> None:
    graph = nx.empty_graph(1)
    W = WEIGHTS.build(weights, graph=graph)
    check(W, graph)
    np.testing.assert_array_equal(W.toarray(), [[1.0]])
    assert second_eigenvalue(W) == 0
    assert contraction([W, W]) == 0


# ---- sparse against dense ----


@pytest.mark.parametrize(
    "graph",
    [
        nx.path_graph(120),
        nx.random_regular_graph(4, 120, seed=1),
        nx.convert_node_labels_to_integers(nx.grid_2d_graph(10, 12)),
        nx.barbell_graph(30, 60),
        nx.star_graph(119),
    ],
    ids=["path", "random-regular", "grid", "barbell", "star"],
)
def test_lanczos_agrees_with_lapack(graph: nx.Graph) -> None:
    A, m = mixing.adjacency(graph), len(graph)
    L = np.diag(A.sum(axis=1)) - A.toarray()
    assert mixing.spectral_radius(lambda v: L @ v, m) == pytest.approx(np.linalg.eigvalsh(L)[-1], rel=1e-12)
    W = WEIGHTS.build("metropolis", graph=graph)
    assert mixing.spectral_radius(lambda v: W @ v - v.mean(), m) == pytest.approx(second_eigenvalue(W), abs=1e-12)


def test_lanczos_finds_the_negative_end() -> None:
    m = 120
    W = 1.05 * mixing.adjacency(nx.random_regular_graph(4, m, seed=1)).toarray() / 4 - 0.05 * np.eye(m)
    low, *_, second, _ = np.linalg.eigvalsh(W)
    assert abs(low) > abs(second)
    assert mixing.spectral_radius(lambda v: W @ v - v.mean(), m) == pytest.approx(abs(low), abs=1e-12)


def test_lanczos_on_exact_averaging() -> None:
    m = 120
    assert mixing.spectral_radius(lambda v: np.full((m, m), 1 / m) @ v - v.mean(), m) < m * np.finfo(float).eps


@pytest.mark.parametrize("m", [3, 6, 50, BEYOND_DENSE])
def test_contraction_of_circulant_rounds(m: int) -> None:
    rounds = varying.powers(m)
    Ws = [varying.shift_round(m, t) for t in range(rounds)]
    modes = np.arange(1, m)[:, None] * 2 ** np.arange(rounds)  # |1 + exp(2πik/m)| / 2 = |cos(πk/m)|
    norm = abs(np.cos(np.pi * modes / m)).prod(axis=1).max()
    assert contraction(Ws) == pytest.approx(norm ** (1 / rounds), rel=1e-8)


@pytest.mark.parametrize("m", [2, 8, 64, 1024])
def test_contraction_to_nothing_is_exactly_zero(m: int) -> None:
    for one_round in (varying.shift_round, varying.flip_round):
        assert contraction([one_round(m, t) for t in range(varying.powers(m))]) == 0


# ---- complaints ----


def ring_with(changes: dict[tuple[int, int], float]) -> csr_array:
    W = WEIGHTS.build("uniform", graph=nx.cycle_graph(5)).toarray()
    for (i, j), value in changes.items():
        W[i, j] += value
    return csr_array(W)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({(3, 3): 0.25}, r"row 3 of W sums to 1\.25.*3\.2 \(a\).*add -0\.25 to the self-weight W\[3, 3\]"),
        ({(1, 1): 0.25, (1, 2): -0.25}, r"column 1 of W sums to 1\.25.*3\.2 \(a\)"),
        ({(0, 1): math.nan}, r"W\[0, 1\] = nan, but weights must be finite"),
        ({(2, 2): math.inf}, r"W\[2, 2\] = inf, but weights must be finite"),
        (
            {(i, (i + 1) % 5): 0.1 for i in range(5)} | {(i, i): -0.1 for i in range(5)},
            r"W\[0, 1\] = 0\.43.* but W\[1, 0\] = 0\.33.*not symmetric \(Section 3\.2 \(b\)\); use \(W \+ W\.T\) / 2",
        ),
        (
            {(0, 2): 0.1, (2, 0): 0.1, (0, 0): -0.1, (2, 2): -0.1},
            r"W\[0, 2\] = 0\.1 but workers 0 and 2 are not linked \(Section 3\.2 \(c\)\); set the weight to exactly 0",
        ),
        (
            {(0, 1): -1 / 3, (1, 0): -1 / 3, (0, 0): 1 / 3, (1, 1): 1 / 3},
            r"workers 0 and 1 are linked but W\[0, 1\] = 0 ≤ 0 \(Section 3\.2 \(c\)\); give the link a positive weight",
        ),
    ],
)
def test_check_names_the_broken_property(changes: dict[tuple[int, int], float], complaint: str) -> None:
    with pytest.raises(TopologyError, match=complaint):
        check(ring_with(changes), nx.cycle_graph(5))


def test_check_refuses_another_shape() -> None:
    with pytest.raises(TopologyError, match=r"W has shape \(5, 5\) but there are 6 workers"):
        check(ring_with({}), nx.cycle_graph(6))


def test_check_refuses_workers_that_only_swap() -> None:
    with pytest.raises(TopologyError, match=r"λ = 1 but the workers agree only if λ < 1.*\(I \+ W\) / 2"):
        check(csr_array(np.array([[0.0, 1.0], [1.0, 0.0]])), nx.path_graph(2))


def test_check_allows_a_negative_self_weight_while_lambda_is_below_one() -> None:
    graph = nx.complete_graph(3)
    check(csr_array(0.55 * np.ones((3, 3)) - 0.65 * np.eye(3)), graph)  # Wᵢᵢ = −0.1, λ = 0.65
    with pytest.raises(TopologyError, match=r"λ = 1\.25"):
        check(csr_array(0.75 * np.ones((3, 3)) - 1.25 * np.eye(3)), graph)


@pytest.mark.parametrize(
    ("weights", "error", "complaint"),
    [
        ("uniform", TopologyError, r"the degrees go from 1 to 3; use weights = 'metropolis'"),
        ({"kind": "laplacian", "factor": 2}, ConfigError, r"factor must lie in \(0, 2\).*got 2"),
        ({"kind": "fastest", "least": 1.0}, ConfigError, r"least must lie in \[−1, 1\), got 1"),
        ("metropolish", ConfigError, r"unknown weights 'metropolish' \(did you mean 'metropolis'\?\)"),
    ],
)
def test_weights_that_cannot_be_made(weights: Spec, error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        WEIGHTS.build(weights, graph=nx.star_graph(3))


def test_the_fastest_weights_of_a_large_graph_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"up to 2,000 links, and this graph has 2,016; use weights = 'metropolis'"):
        WEIGHTS.build("fastest", graph=nx.complete_graph(64))


def test_weights_need_numbered_workers() -> None:
    with pytest.raises(TopologyError, match=r"got \['a', 'b'\] …; use Topology.from_graph"):
        WEIGHTS.build("metropolis", graph=nx.Graph([("a", "b")]))
