"""`nf.make_dataset`: from arrays, tensors, lists and frames, with labels, groups and test rows."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import netfleet as nf
import netfleet.data
from netfleet.data import own_tests
from netfleet.data.frames import FRAMES

ROWS = 40
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(ROWS, 3))
LABELS = np.arange(ROWS) % 3
GROUPS = np.array(["b", "a", "d", "c"])[np.arange(ROWS) // 10]
FRAME = pd.DataFrame(X, columns=["age", "dose", "weight"]).assign(label=LABELS, clinic=GROUPS)


def same(one: nf.Dataset, other: nf.Dataset) -> bool:
    for field in ("train_x", "train_y", "test_x", "test_y", "groups", "test_groups"):
        mine, theirs = getattr(one, field), getattr(other, field)
        if (mine is None) != (theirs is None) or (mine is not None and not torch.equal(mine, theirs)):
            return False
    return (one.classes, one.group_names) == (other.classes, other.group_names)


# ---- where it comes from ----


def test_arrays_tensors_lists_and_frames_give_the_same() -> None:
    expected = nf.make_dataset(X, LABELS, groups=GROUPS)
    assert expected.classes == 3
    assert expected.group_names == ("a", "b", "c", "d")
    forms: list[nf.Dataset] = [
        nf.make_dataset(torch.from_numpy(X), torch.from_numpy(LABELS), groups=GROUPS.tolist()),
        nf.make_dataset(X.tolist(), LABELS.tolist(), groups=GROUPS),
        nf.make_dataset(list(torch.from_numpy(X)), tuple(LABELS.tolist()), groups=GROUPS),
        nf.make_dataset(FRAME, target="label", groups="clinic"),
        nf.make_dataset(FRAME[["age", "dose", "weight"]], FRAME["label"], groups=FRAME["clinic"]),
        nf.make_dataset(FRAME[["age", "dose", "weight"]], FRAME[["label"]], groups=FRAME["clinic"]),
        nf.make_dataset(np.asfortranarray(X)[::1], LABELS.astype(">i4"), groups=GROUPS),
    ]
    assert all(same(expected, form) for form in forms)


def test_polars_frames() -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({name: FRAME[name].to_list() for name in FRAME})
    expected = nf.make_dataset(FRAME, target="label", groups="clinic")
    assert same(expected, nf.make_dataset(frame, target="label", groups="clinic"))
    assert same(expected, nf.make_dataset(frame.select("age", "dose", "weight"), frame["label"], groups=GROUPS))
    gap = frame.with_columns(age=pl.when(pl.col("label") > 0).then(pl.col("age")))
    with pytest.raises(nf.DataError, match="column 'age' has no value"):
        nf.make_dataset(gap, target="label", groups="clinic")


@pytest.mark.filterwarnings("ignore")  # of the library itself
def test_hugging_face_datasets() -> None:
    hf = pytest.importorskip("datasets")
    features = hf.Features({"a": hf.Value("float64"), "b": hf.Value("int32"), "label": hf.ClassLabel(num_classes=5)})
    table = hf.Dataset.from_dict({"a": X[:, 0], "b": LABELS, "label": LABELS}, features=features)
    data = nf.make_dataset(table, target="label")
    assert (data.classes, data.inputs) == (5, (2,))
    tokens = {"input_ids": [[1, 2], [3, 4]] * 5, "attention_mask": [[1, 1]] * 10, "label": [0, 1] * 5}
    texts = nf.make_dataset(hf.Dataset.from_dict(tokens), target="label", test=hf.Dataset.from_dict(tokens))
    assert isinstance(texts.train_x, dict)
    assert set(texts.train_x) == {"input_ids", "attention_mask"}
    with pytest.raises(nf.DataError, match="different shapes"):
        nf.make_dataset(hf.Dataset.from_dict({"a": [[1], [1, 2]], "label": [0, 1]}), target="label")
    with pytest.raises(nf.DataError, match=r"several splits \(train\)"):
        nf.make_dataset(hf.DatasetDict({"train": table}), target="label")


def test_no_library_is_imported_that_the_data_does_not_come_from() -> None:
    files = list(Path(netfleet.data.__file__).parent.glob("*.py"))
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named = {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert len(files) > 10
    assert not {name.partition(".")[0] for name in plain | named} & set(FRAMES)


def test_inputs_of_several_tensors_stay_apart() -> None:
    several = nf.make_dataset({"image": X, "age": X[:, 0]}, LABELS)
    assert isinstance(several.train_x, dict)
    assert {name: tuple(t.shape) for name, t in several.train_x.items()} == {"image": (32, 3), "age": (32,)}
    pair = nf.make_dataset((X, X[:, 0]), LABELS)
    assert isinstance(pair.train_x, tuple)


def test_types_stay_and_columns_of_frames_become_floating_point() -> None:
    assert nf.make_dataset(X.astype(np.float32), LABELS).train_x.dtype == torch.float32  # type: ignore[union-attr]
    assert nf.make_dataset(X, LABELS).train_x.dtype == torch.float64  # type: ignore[union-attr]
    tokens = nf.make_dataset(np.ones((5, 3), np.int64), np.ones((5, 3), np.int64))
    assert (tokens.train_x.dtype, tokens.classes) == (torch.int64, 2)  # type: ignore[union-attr]
    whole = pd.DataFrame({"a": [1, 2, 3], "b": [True, False, True]})
    assert nf.make_dataset(whole, [0, 1, 0]).train_x.dtype == torch.float64  # type: ignore[union-attr]


# ---- targets ----


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        ([True, False] * 5, 2),
        (["no", "yes"] * 5, 2),
        (np.array([0, 4] * 5, np.uint8), 5),
        (pd.Categorical(["low", "high"] * 5, ["low", "mid", "high"]), 3),
        (pd.Series(["a", "b"] * 5, dtype="string"), 2),
        (np.array([b"x", b"y"] * 5), 2),
        (torch.tensor([1, 2] * 5), 3),
    ],
)
def test_whole_numbers_texts_and_categories_are_labels(y: Any, classes: int) -> None:
    data = nf.make_dataset(np.zeros((10, 1)), y if not isinstance(y, pd.Categorical) else pd.Series(y))
    assert data.classes == classes
    assert data.train_y.dtype == torch.int64  # type: ignore[union-attr]


def test_labels_follow_the_order_of_the_categories_or_of_the_given_classes() -> None:
    x, words = np.arange(4.0)[:, None], ["low", "high", "mid", "low"]
    ordered = nf.make_dataset(x, pd.Series(pd.Categorical(words, ["low", "mid", "high"])), test=(x, words))
    assert ordered.train_y.tolist() == ordered.test_y.tolist() == [0, 2, 1, 0]  # type: ignore[union-attr]
    signs = nf.make_dataset(x, [-1, 1, 1, -1], classes=[-1, 1], test=(x, [1, 1, 1, 1]))
    assert signs.train_y.tolist() == [0, 1, 1, 0]  # type: ignore[union-attr]
    floats = nf.make_dataset(x, [0.0, 1.0, 1.0, 0.0], classes=2)
    assert floats.train_y.dtype == torch.int64  # type: ignore[union-attr]


def test_floating_point_targets_stay_numbers_and_whole_ones_may_be_numbers() -> None:
    assert nf.make_dataset(X, X[:, 0]).classes is None
    days = nf.make_dataset(X, LABELS, numbers=True)
    assert (days.classes, days.train_y.dtype) == (None, torch.float64)  # type: ignore[union-attr]
    two = nf.make_dataset(X, FRAME[["age", "dose"]])
    assert tuple(two.train_y.shape) == (32, 2)  # type: ignore[union-attr]


# ---- test rows and groups ----


@given(st.integers(2, 50), st.floats(0.02, 0.98), st.integers(0, 9))
def test_the_rows_are_split_without_loss(rows: int, share: float, seed: int) -> None:
    data = nf.make_dataset(np.arange(rows)[:, None], np.zeros(rows), test=share, seed=seed)
    found = torch.cat([data.train_x, data.test_x])  # type: ignore[list-item]
    assert sorted(found[:, 0].tolist()) == list(range(rows))
    assert data.tests == min(max(round(rows * share), 1), rows - 1)


def test_the_split_is_seeded_and_balanced_by_group_and_label() -> None:
    x = np.arange(120.0)[:, None]
    labels, groups = np.arange(120) % 2, np.repeat(["a", "b", "c"], 40)
    data = nf.make_dataset(x, labels, groups=groups)
    assert same(data, nf.make_dataset(x, labels, groups=groups))
    assert not same(data, nf.make_dataset(x, labels, groups=groups, seed=1))
    assert data.test_groups is not None
    pairs = torch.stack([data.test_groups, data.test_y], dim=1)  # type: ignore[list-item]
    assert pairs.unique(dim=0, return_counts=True)[1].tolist() == [4] * 6
    assert own_tests(data, nf.make_partition("sites", data, workers=3, seed=0)) is not None


def test_given_test_rows_are_kept_as_they_are() -> None:
    data = nf.make_dataset(X[:30], LABELS[:30], groups=GROUPS[:30], test=(X[30:], LABELS[30:], GROUPS[30:]))
    assert torch.equal(data.test_x, torch.from_numpy(X[30:]))  # type: ignore[arg-type]
    assert data.group_names == ("a", "b", "c", "d")
    frames = nf.make_dataset(FRAME[:30], target="label", groups="clinic", test=FRAME[30:])
    assert same(data, frames)
    assert nf.make_dataset(X, LABELS, test=[X, LABELS]).tests == ROWS


def test_a_sites_rows_are_all_its_own() -> None:
    data = nf.make_dataset(X, LABELS, site="clinic", classes=sorted(set(LABELS)))
    assert [len(part) for part in nf.make_partition("iid", data, workers=2, seed=0)] == [32, 32]


def test_it_trains() -> None:
    data = nf.make_dataset(FRAME, target="label", groups="clinic")
    parts = nf.make_partition("sites", data, workers=4, seed=0)
    problem = nf.ModuleProblem(torch.nn.Linear(3, 3), data, parts, batch=4)
    history = nf.simulate(nf.NetFleet(K=2, eta=0.1), topology="ring", problem=problem, rounds=3)
    assert history.last["round"] == 3
