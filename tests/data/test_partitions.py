"""Partitions: disjointness, coverage and sizes as invariants; the paper's numbers; every error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from netfleet.data import PARTITIONS, Dataset, hold_out, label_counts, make_partition
from netfleet.errors import ConfigError, DataError

MNIST_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
SEEDS = st.integers(0, 2**31)
LABELS = st.lists(st.integers(0, 9), min_size=1, max_size=120).map(np.array)


def dataset(labels: np.ndarray, groups: np.ndarray | None = None) -> Dataset:
    y = torch.from_numpy(labels.astype(np.int64))
    x = torch.zeros(len(y), 1)
    known = None if groups is None else torch.from_numpy(groups.astype(np.int64))
    return Dataset("toy", x, y, x, y, classes=int(y.max()) + 1, groups=known)


def part(spec: Any, labels: np.ndarray, workers: int, seed: int = 0, groups: np.ndarray | None = None) -> Any:
    return make_partition(spec, dataset(labels, groups), workers, seed)


def assert_disjoint_cover(parts: list[np.ndarray], rows: int) -> None:
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(rows))


def mnist_labels() -> np.ndarray:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(10), MNIST_COUNTS))


def test_every_partition_is_known() -> None:
    assert set(PARTITIONS) == {"shared", "iid", "shards", "dirichlet", "groups", "sites"}


@settings(deadline=None)  # speed is not what is tested
@given(LABELS, st.integers(1, 20))
def test_shared_gives_every_row_to_every_worker(labels: np.ndarray, workers: int) -> None:
    for rows in part("shared", labels, workers):
        assert np.array_equal(rows, np.arange(len(labels)))


def test_shared_holds_one_array_that_nobody_can_change() -> None:
    parts = part("shared", np.zeros(9), 4)
    assert all(rows is parts[0] for rows in parts)
    with pytest.raises(ValueError, match="read-only"):
        parts[0][0] = 1


@settings(deadline=None)
@given(LABELS, st.integers(1, 20), SEEDS)
def test_iid_covers_and_is_even(labels: np.ndarray, workers: int, seed: int) -> None:
    assume(workers <= len(labels))
    parts = part("iid", labels, workers, seed)
    assert_disjoint_cover(parts, len(labels))
    assert np.ptp([len(rows) for rows in parts]) <= 1


@settings(deadline=None)
@given(LABELS, st.integers(1, 10), st.integers(1, 3), SEEDS)
def test_shards_cover_and_cross_each_label_boundary_once(
    labels: np.ndarray, workers: int, per_worker: int, seed: int
) -> None:
    """A cut of the sorted rows crosses each of the (labels − 1) boundaries in at most one shard."""
    assume(workers * per_worker <= len(labels))
    parts = part({"kind": "shards", "per_worker": per_worker}, labels, workers, seed)
    assert_disjoint_cover(parts, len(labels))
    assert np.ptp([len(rows) for rows in parts]) <= per_worker
    kinds = [len(np.unique(labels[rows])) for rows in parts]
    assert sum(kinds) <= workers * per_worker + len(np.unique(labels)) - 1


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), SEEDS)
def test_aligned_shards_give_at_most_two_labels(classes: int, size: int, pieces: int, seed: int) -> None:
    """Where every label fills whole shards none straddles, so two shards are at most two labels."""
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), 2 * pieces * size))
    parts = part("shards", labels, classes * pieces, seed)
    assert label_counts(labels, parts, classes).astype(bool).sum(1).max() <= 2


@pytest.mark.parametrize(("workers", "per_worker"), [(50, 2), (70, 2), (125, 2)])
def test_shards_of_the_paper(workers: int, per_worker: int) -> None:
    """250 shards of 200: two shards and 400 samples each, of at most three labels as a rule, four at the worst."""
    labels = mnist_labels()
    spec = {"kind": "shards", "shards": 250, "size": 200, "per_worker": per_worker}
    parts = part(spec, labels, workers, seed=1)
    rows = np.concatenate(parts)
    assert {len(p) for p in parts} == {400}
    assert len(np.unique(rows)) == len(rows) == workers * 400
    assert label_counts(labels, parts, 10).astype(bool).sum(1).max() <= 4


def test_shards_of_the_paper_keep_every_label() -> None:
    """All 250 shards together have each label's share of the 60,000 rows: the sorted array's end is not lost."""
    labels = mnist_labels()
    parts = part({"kind": "shards", "shards": 250, "size": 200}, labels, 125, seed=1)
    counts = label_counts(labels, parts, 10).sum(0)
    expected = np.array(MNIST_COUNTS) * 50_000 / 60_000
    deviation = np.sqrt(expected * (1 - 50_000 / 60_000))  # above that of the hypergeometric draw
    assert counts.sum() == 50_000
    assert (np.abs(counts - expected) < 6 * deviation).all()


def test_shards_alone_cut_all_rows_and_size_alone_makes_as_many_as_fit() -> None:
    labels = np.arange(103) % 4
    assert_disjoint_cover(part({"kind": "shards", "shards": 10}, labels, 5), 103)
    parts = part({"kind": "shards", "size": 10}, labels, 5)
    assert [len(rows) for rows in parts] == [20] * 5


@settings(deadline=None)
@given(st.integers(1, 8), st.floats(0.05, 100), st.integers(1, 5), SEEDS)
def test_dirichlet_covers_with_a_least_size(workers: int, alpha: float, min_size: int, seed: int) -> None:
    labels = np.arange(400) % 10
    parts = part({"kind": "dirichlet", "alpha": alpha, "min_size": min_size}, labels, workers, seed)
    assert_disjoint_cover(parts, len(labels))
    assert min(len(rows) for rows in parts) >= min_size


def test_dirichlet_is_even_for_large_alpha_and_skewed_for_small() -> None:
    labels = np.arange(10_000) % 10
    even = label_counts(labels, part({"kind": "dirichlet", "alpha": 1e6}, labels, 10), 10)
    skewed = label_counts(labels, part({"kind": "dirichlet", "alpha": 0.05}, labels, 10), 10)
    assert np.abs(even - 100).max() <= 5
    assert skewed.max() > 500


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=150).map(np.array), st.integers(1, 10), SEEDS)
def test_groups_stay_whole_and_even(groups: np.ndarray, workers: int, seed: int) -> None:
    names, sizes = np.unique(groups, return_counts=True)
    assume(workers <= len(names))
    parts = part("groups", np.zeros(len(groups)), workers, seed, groups)
    assert_disjoint_cover(parts, len(groups))
    assert sum(len(np.unique(groups[rows])) for rows in parts) == len(names)
    assert np.ptp([len(rows) for rows in parts]) <= sizes.max()


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 3), SEEDS)
def test_groups_per_worker(workers: int, per_worker: int, seed: int) -> None:
    groups = 7 * (np.arange(100) % 17)
    parts = part({"kind": "groups", "per_worker": per_worker}, np.zeros(100), workers, seed, groups)
    owned = [set(groups[rows]) for rows in parts]
    assert [len(names) for names in owned] == [per_worker] * workers
    assert len(set.union(*owned)) == workers * per_worker
    assert sum(len(rows) for rows in parts) == np.isin(groups, list(set.union(*owned))).sum()


@given(st.lists(st.integers(0, 4), min_size=5, max_size=60), SEEDS)
def test_each_site_is_a_worker_in_their_order(drawn: list[int], seed: int) -> None:
    groups = np.array([*range(5), *drawn]) * 3
    parts = part("sites", np.zeros(len(groups)), 5, seed, groups)
    assert_disjoint_cover(parts, len(groups))
    assert [np.unique(groups[rows]).tolist() for rows in parts] == [[0], [3], [6], [9], [12]]


@pytest.mark.parametrize("spec", ["iid", "shards", {"kind": "dirichlet", "alpha": 0.5}, "groups"])
def test_the_seed_decides(spec: Any) -> None:
    labels, groups = np.arange(500) % 10, np.arange(500) % 60
    first, again, other = (part(spec, labels, 7, seed, groups) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    assert all(rows.dtype == np.int64 for rows in first)


def test_label_counts() -> None:
    counts = label_counts(np.array([0, 2, 2, 0]), [np.array([0, 1]), np.array([1, 2, 3])], 4)
    assert counts.tolist() == [[1, 0, 1, 0], [1, 0, 2, 0]]


@pytest.mark.parametrize(
    ("spec", "workers", "message"),
    [
        ("iid", 21, "21 workers but only 20 rows; use at most 20 workers"),
        ("shards", 11, "22 shards of 1 or more rows need 22 rows, but there are 20; lower workers"),
        ({"kind": "shards", "shards": 5, "size": 5}, 2, "need 25 rows, but there are 20; lower shards or size"),
        ({"kind": "shards", "size": 30}, 1, "need 30 rows, but there are 20; lower shards or size"),
        ({"kind": "shards", "shards": 5}, 3, "2 shards each need 6 shards, but there are 5; raise shards"),
        ({"kind": "dirichlet", "alpha": 1.0}, 3, "at least 10 rows each need 30 rows, but there are 20"),
        ({"kind": "dirichlet", "alpha": 1e-3, "min_size": 5}, 4, "raise alpha, or lower workers or min_size"),
        ("groups", 2, "the data has no groups; use a source that has them .*mnist.*writers = true"),
    ],
)
def test_a_partition_that_cannot_be_made(spec: Any, workers: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        part(spec, np.arange(20) % 2, workers)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("groups", "3 workers need 3 groups, but the data has 2; lower workers$"),
        ({"kind": "groups", "per_worker": 2}, "3 workers need 6 groups, but the data has 2; lower .* per_worker"),
    ],
)
def test_fewer_groups_than_needed(spec: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        part(spec, np.zeros(8), 3, groups=np.arange(8) % 2)


@pytest.mark.parametrize(
    ("spec", "workers", "message"),
    [
        ("iid", 0, "workers must be at least 1, got 0"),
        ({"kind": "shards", "per_worker": 0}, 2, "per_worker must be at least 1, got 0"),
        ({"kind": "shards", "size": 0}, 2, "size must be at least 1, got 0"),
        ({"kind": "shards", "shards": -1}, 2, "shards must be at least 1, got -1"),
        ({"kind": "dirichlet", "alpha": 0.0}, 2, "alpha must be above 0, got 0.0"),
        ({"kind": "dirichlet", "alpha": float("nan")}, 2, "alpha must be above 0, got nan"),
        ({"kind": "dirichlet", "alpha": 1.0, "min_size": 0}, 2, "min_size must be at least 1, got 0"),
        ("dirichlet", 2, "needs alpha"),
        ("dirichle", 2, "did you mean 'dirichlet'"),
    ],
)
def test_a_partition_that_makes_no_sense(spec: Any, workers: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        part(spec, np.arange(20) % 2, workers)


def own_empty(labels: np.ndarray, workers: int) -> list[np.ndarray]:
    return [np.arange(len(labels)), *[np.arange(0)] * (workers - 1)]


def own_short(labels: np.ndarray) -> list[np.ndarray]:
    return [np.arange(len(labels))]


def own_outside(labels: np.ndarray, workers: int) -> list[np.ndarray]:
    return [np.arange(len(labels) + 1)] * workers


def own_nothing(labels: np.ndarray) -> None:
    return None


def own_lists(labels: np.ndarray, workers: int) -> list[list[int]]:
    return [[0, 1]] * workers


def own_floats(labels: np.ndarray, workers: int) -> list[np.ndarray]:
    return [np.zeros(3)] * workers


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_empty", "worker 1 of 2 has no rows"),
        ("own_short", "made 1 parts for 2 workers"),
        ("own_outside", "rows 0 to 4, expected 0 to 3"),
        ("own_nothing", "made NoneType for 2 workers"),
        ("own_floats", "float64 array of shape"),
    ],
)
def test_a_users_own_partition_is_checked(name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        part(f"{__name__}:{name}", np.zeros(4), 2)


def test_a_users_own_partition_may_be_lists() -> None:
    parts = part(f"{__name__}:own_lists", np.zeros(4), 2)
    assert [(rows.dtype, rows.tolist()) for rows in parts] == [(np.int64, [0, 1])] * 2


# Rows held out for choices


@pytest.mark.parametrize("spec", ["shared", "iid", {"kind": "shards", "per_worker": 2}])
def test_held_out_rows_are_no_workers_and_take_the_place_of_the_test_rows(spec: Any) -> None:
    labels = np.arange(500) % 10
    whole = dataset(labels)
    whole.train_x[:, 0] = torch.arange(500)
    parts = make_partition(spec, whole, 5, 0)
    data, kept = hold_out(whole, parts, 0.2, seed=3)
    held = set(data.test_x[:, 0].long().tolist())
    assert 60 < len(held) < 140
    assert all(set(part) == set(before) - held for part, before in zip(kept, parts, strict=True))
    assert torch.equal(data.test_y, data.train_y[sorted(held)])
    same, unchanged = hold_out(whole, parts, 0.0, seed=3)
    assert same is whole
    assert unchanged is parts


@pytest.mark.parametrize(
    ("share", "message"), [(1.0, "from 0 to below 1, got 1"), (-0.1, "got -0.1"), (0.99, "takes all rows of worker")]
)
def test_a_share_that_cannot_be_held_out(share: float, message: str) -> None:
    whole = dataset(np.arange(20) % 2)
    with pytest.raises(ConfigError, match=message):
        hold_out(whole, make_partition("iid", whole, 10, 0), share, seed=0)
