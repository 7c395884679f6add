"""Registry, schedules, addressed randomness, and the ways W is applied."""

from __future__ import annotations

from typing import Any, Literal

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from netfleet import ConfigError, NetFleet, Topology, make_topology
from netfleet.algorithms.schedules import as_schedule
from netfleet.engines.simulator import Simulator, as_matrix
from netfleet.problems.synthetic import Quadratics
from netfleet.randomness import bits, generator, integers, normal, uniform
from netfleet.registry import Registry

THINGS: Registry[Any] = Registry("thing")


@THINGS.register("box")
def box(
    given_size: int, colour: Literal["red", "blue"] = "red", sides: list[int] | None = None, weight: float = 1
) -> Any:
    return given_size, colour, sides, weight


def test_a_registry_builds_from_names_tables_and_import_paths() -> None:
    assert THINGS.build("box", given_size=3, ignored="x") == (3, "red", None, 1)
    assert THINGS.build({"kind": "box", "colour": "blue", "sides": [1, 2]}, given_size=3) == (3, "blue", [1, 2], 1)
    assert THINGS.build({"kind": f"{__name__}:box", "weight": 2}, given_size=3) == (3, "red", None, 2)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("bax", r"unknown thing 'bax' \(did you mean 'box'\?\); known: box"),
        (
            {"kind": "box", "color": "red"},
            r"no parameter 'color' \(did you mean 'colour'\?\); it takes: colour, sides, w",
        ),
        ({"kind": "box", "colour": "green"}, "must be one of 'red', 'blue', got 'green'"),
        ({"kind": "box", "sides": [1, "two"]}, r"must be a list of a whole number, got \[1, 'two'\]"),
        ({"kind": "box", "weight": True}, "must be a number, got True"),
        ({"colour": "red"}, "the table has no kind"),
        (3, "expected a name or a table with a kind, got 3"),
        ("netfleet.errors:Nothing", "module 'netfleet.errors' has no 'Nothing'"),
    ],
)
def test_a_bad_specification_is_refused(spec: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        THINGS.build(spec, given_size=3)


def test_a_missing_parameter_is_named() -> None:
    with pytest.raises(ConfigError, match="thing 'box' needs given_size"):
        THINGS.build("box")


def test_an_error_inside_a_users_module_is_shown_as_it_is(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_user_module.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        THINGS.build("broken_user_module:thing")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (0.5, [0.5, 0.5, 0.5, 0.5]),
        ({"kind": "halve", "start": 1.0, "every": 2}, [1, 1, 0.5, 0.5]),
        ({"kind": "step", "start": 1.0, "every": 1, "factor": 0.1}, [1, 0.1, 0.01, 0.001]),
        ({"kind": "cosine", "start": 1.0, "rounds": 2}, [1, 0.5, 0, 0]),
        ({"kind": "warm-up", "rounds": 2, "then": {"kind": "halve", "start": 1.0, "every": 1}}, [0.5, 1, 1, 0.5]),
        (lambda t: 1 / (t + 1), [1, 1 / 2, 1 / 3, 1 / 4]),
    ],
)
def test_schedules_are_their_formulas(spec: Any, expected: list[float]) -> None:
    assert [as_schedule(spec)(t) for t in range(4)] == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    "spec",
    [
        {"kind": "halve", "start": -1.0, "every": 2},
        {"kind": "step", "start": 1.0, "every": 0},
        {"kind": "cosine", "start": 1.0, "rounds": 0},
        {"kind": "cosine", "start": 1.0, "rounds": 2, "end": 3.0},
        {"kind": "warm-up", "rounds": 2, "then": 0},
        "fast",
        True,
    ],
)
def test_schedules_that_make_no_sense_are_refused(spec: Any) -> None:
    with pytest.raises(ConfigError):
        NetFleet(eta=spec)


def test_random_bits_are_a_function_of_the_address() -> None:
    grid = bits("x", 1, np.arange(50)[:, None], np.arange(40))
    assert grid.shape == (50, 40)
    assert len(np.unique(grid)) == grid.size
    assert grid[7, 9] == bits("x", 1, 7, 9)
    assert bits("x", 1) != bits("y", 1)
    assert generator("g", 3).integers(1 << 60) == generator("g", 3).integers(1 << 60)


def test_random_bits_stay_what_they_are() -> None:
    """All stored results rest on them. Words may be Python's or numpy's, and are not written to."""
    known, place = 15693719465265693902, np.array([9, 8])
    assert bits("x", 1, -7, 9) == bits("x", np.int64(1), np.asarray(-7), 9) == known
    assert bits("x", 1, -7, place)[0] == bits("x", np.array([1]), -7, place)[0] == known
    assert bits("x", np.array([[1]]), np.array([-7]), 9).item() == known
    assert place.tolist() == [9, 8]
    assert bits("x", -(1 << 63), (1 << 63) - 1) == bits("x", np.array([-(1 << 63)]), (1 << 63) - 1)


def test_random_numbers_have_the_right_moments() -> None:
    n = 100_000
    u, z = uniform("u", np.arange(n)), normal("z", np.arange(n))
    assert abs(u.mean() - 1 / 2) < 5 * np.sqrt(1 / 12 / n)
    assert abs(z.mean()) < 5 / np.sqrt(n)
    assert abs(z.var() - 1) < 5 * np.sqrt(2 / n)
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 5 / np.sqrt(n)  # neighbouring addresses
    counts = np.bincount(integers(10, "i", np.arange(n)), minlength=10)
    assert np.abs(counts - n / 10).max() < 5 * np.sqrt(n / 10)


@given(low=st.integers(1, 10**6), address=st.integers(-(2**40), 2**40))
@settings(max_examples=50, deadline=None)
def test_random_integers_stay_below_their_bound(low: int, address: int) -> None:
    assert 0 <= integers(low, "i", address) < low


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sparse_and_dense_mixing_agree(dtype: torch.dtype) -> None:
    topology = make_topology("ring", workers=80)
    W = as_matrix(topology.W(), dtype, torch.device("cpu"))
    assert W.layout is torch.sparse_csr
    simulator = Simulator(Quadratics(80, d=3, dtype=dtype), topology)
    x = torch.randn(80, 20_000, dtype=dtype, generator=torch.Generator().manual_seed(0))
    expected = torch.from_numpy(topology.W().toarray()).to(dtype) @ x
    mixed, twice = simulator.mixer(0)(x, 2 * x)
    assert torch.allclose(mixed, expected, atol=1e-5)
    assert torch.allclose(twice, 2 * expected, atol=1e-5)
    assert simulator.bytes_sent() == 2 * 80 * 2 * 20_000 * x.element_size()


def test_a_dense_graph_is_mixed_densely() -> None:
    W = make_topology("complete", workers=40).W()
    assert as_matrix(W, torch.float32, torch.device("cpu")).layout is torch.strided


def test_any_networkx_graph_is_a_topology() -> None:
    topology = Topology.from_graph(nx.petersen_graph(), weights="metropolis")
    assert topology.m == 10
    # The Petersen graph has adjacency eigenvalues 3, 1, −2, and W = (I + A)/4.
    assert topology.lam == pytest.approx(1 / 2)
