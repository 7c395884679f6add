"""Where workers are placed: balanced, and few rows travel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from netfleet import make_topology
from netfleet.cli import main
from netfleet.engines.placement import Placement, place, place_on, quality, quality_on
from netfleet.topology.server import CentralServer

KINDS = ("ring", "path", "star", "complete", "grid", "erdos-renyi", "one-peer-exponential")


def rows_by_hand(W: np.ndarray, workers: tuple[tuple[int, ...], ...]) -> int:
    """For each worker, the other ranks in which somebody needs it."""
    home = {i: rank for rank, group in enumerate(workers) for i in group}
    return len({(home[i], j) for i in home for j in home if W[i, j] != 0 and home[i] != home[j]})


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(KINDS), st.integers(2, 16), st.integers(1, 5))
def test_every_worker_has_a_place_and_no_rank_more_than_one_more(kind: str, m: int, ranks: int) -> None:
    m, ranks = (16 if kind == "grid" else m), min(ranks, m)
    W = make_topology(kind, workers=m).W()
    placement = place(W, ranks)
    assert sorted(i for group in placement.workers for i in group) == list(range(m))
    assert max(map(len, placement.workers)) - min(map(len, placement.workers)) <= 1
    assert all(list(group) == sorted(group) for group in placement.workers)
    found = quality(W, placement).rows
    assert found == rows_by_hand(W.toarray(), placement.workers)
    plain = Placement(tuple(tuple(part.tolist()) for part in np.array_split(np.arange(m), ranks)))
    assert found <= quality(W, plain).rows


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_ring_in_any_order_is_cut_into_arcs(ranks: int) -> None:
    order = np.random.default_rng(0).permutation(32)
    W = make_topology("ring", workers=32).W().toarray()[np.ix_(order, order)]

    found = quality(csr_array(W), place(csr_array(W), ranks))
    assert (found.rows, found.links) == (2 * ranks, 2 * ranks)
    assert found.random > 2 * found.rows
    assert "a random placement sends" in found.sentence


def test_one_rank_sends_nothing() -> None:
    W = make_topology("complete", workers=4).W()
    assert quality(W, place(W, 1)).sentence == "no row is sent"


def test_the_command_says_how_good_a_placement_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["topology", "ring", "--workers", "16", "--out", str(tmp_path / "t.png")]
    assert main([*command, "--ranks", "4"]) == 0
    assert "8 rows are sent" in " ".join(capsys.readouterr().out.split())
    assert main([*command, "--ranks", "17"]) == 2
    assert "from 1 to the number of workers" in capsys.readouterr().err


def test_a_graph_that_changes_is_placed_by_all_its_rounds() -> None:
    changing = make_topology("one-peer-hypercube", workers=16)
    placement = place_on(changing, 4)
    per_round = [quality(changing.W(t), placement).rows for t in range(4)]
    assert 0 < quality_on(changing, placement).rows == sum(per_round) / 4
    assert quality_on(changing, placement).rows < quality_on(changing, placement).random


def test_where_everyone_needs_everyone_or_nobody_the_order_is_kept() -> None:
    for network in (CentralServer(10), make_topology("complete", workers=10)):
        assert place_on(network, 3).workers == ((0, 1, 2, 3), (4, 5, 6), (7, 8, 9))
