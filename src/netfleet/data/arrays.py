"""`make_dataset`: a Dataset from arrays and frames that are in memory."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from netfleet import randomness
from netfleet.data.dataset import Dataset
from netfleet.data.frames import Array, Frame, Values, as_inputs, is_frame, library, values_of
from netfleet.data.labels import Classes, make_targets, number_groups
from netfleet.data.splits import check_share, split_share
from netfleet.data.tensors import Tensors, count_rows, leaves, take
from netfleet.errors import ConfigError, DataError
from netfleet.registry import check_type


class Given(NamedTuple):
    """Rows as they came: inputs, targets and groups, of which the last may be missing."""

    x: Tensors
    y: Values | Tensors
    groups: Values | None


def make_dataset(
    x: Any,
    y: Any = None,
    *,
    target: str | None = None,
    groups: Any = None,
    test: Any = 0.2,
    classes: Classes = None,
    numbers: bool = False,
    name: str = "data",
    seed: int = 0,
    site: str | None = None,
) -> Dataset:
    """A Dataset from numpy arrays, torch tensors, lists, pandas or polars frames, or Hugging Face datasets.

    `x` has a row for each sample: an array, a frame of numeric columns, or a dict or tuple of arrays for a model of
    several inputs. `y` are the targets; where x is a frame, `target` may name their column instead, and `groups` the
    column of the natural groups. Floating-point targets are numbers. Whole numbers, truth values, texts and
    categories are labels, 0, 1, …, unless `numbers` says that they are numbers. `classes` is the number of labels, or a
    list of what each stands for. `test` is the share of the rows that is held out, drawn by `seed` in equal shares of
    each group and label; or it is the test rows themselves: (x, y), (x, y, groups), or a frame like x. `site` says that
    these are the rows of one site, which trains on all of them.

    >>> make_dataset([[0.0], [1.0], [2.0], [3.0], [4.0]], ["a", "b", "a", "b", "a"])
    Dataset('data', 4 + 1 rows, x: float64 [1], y: int64 [], 2 classes)
    """
    check_type(seed, int, "make_dataset: seed")
    check_type(name, str, "make_dataset: name")
    given = _given(x, y, target, groups, "x")
    held = None if isinstance(test, float | int) else _test_rows(_ordered_like(x, test), target, groups)
    parts = [given] if held is None else [given, held]
    targets, count = make_targets([part.y for part in parts], classes, numbers)
    if site is not None and count is not None and classes is None:
        raise ConfigError(f'site {site!r} knows the labels of its own rows only; list those of all: classes = ["…", …]')
    marks, names = number_groups([part.groups for part in parts])
    columns = _columns(x, given.x, target, groups)
    if held is not None:
        return Dataset(name, given.x, targets[0], held.x, targets[1], count, *marks, names, site, columns)
    y, own = targets[0], marks[0]
    train, kept = _split(given.x, y, count, own, check_share(test), seed)
    rows = (take(given.x, train), take(y, train), take(given.x, kept), take(y, kept), count)
    if own is None:
        return Dataset(name, *rows, site=site, columns=columns)
    return Dataset(name, *rows, own[train], own[kept], names, site, columns)


def _columns(x: Any, inputs: Tensors, target: str | None, groups: Any) -> tuple[str, ...] | None:
    """The names of the columns of inputs that are one matrix out of a frame."""
    if not is_frame(x) or not isinstance(inputs, Tensor) or inputs.dim() != 2:
        return None
    taken = (target, groups if isinstance(groups, str) else None)
    names = tuple(str(name) for name in Frame(x, "x").names if name not in taken)
    return names if len(names) == inputs.shape[1] else None


def _given(x: Any, y: Any, target: str | None, groups: Any, where: str) -> Given:
    """Inputs, targets and groups, by columns or as arrays; raises unless they have as many rows."""
    if target is not None:
        check_type(target, str, "make_dataset: target")
    named = [column for column in (target, groups) if isinstance(column, str)]
    if (y is None) == (target is None):
        came = "neither y nor target" if y is None else "both y and target"
        raise ConfigError(f"got {came}; give the targets as y, or as target = the name of their column")
    if named and not is_frame(x):
        raise ConfigError(f"{named[0]!r} names a column, but {where} is a {type(x).__name__}; give arrays, or a frame")
    frame = Frame(x, where) if is_frame(x) else None
    taken = {column: frame.take(column) for column in named} if frame else {}
    inputs = as_inputs(x, where) if frame is None else frame.inputs(named)
    if target is not None:
        goal: Values | Tensors = taken[target]
    else:
        goal = as_inputs(y, "y") if isinstance(y, dict) or _several(y) else values_of(y, "y")
    group = taken[groups] if isinstance(groups, str) else None if groups is None else values_of(groups, "groups")
    _check_lengths(inputs, goal, group, where)
    return Given(inputs, goal, group)


def _several(y: Any) -> bool:
    """Whether y is a tuple of arrays, and not of numbers."""
    return isinstance(y, tuple) and len(y) > 0 and all(isinstance(each, np.ndarray | Tensor | list) for each in y)


def _check_lengths(x: Tensors, y: Values | Tensors, groups: Values | None, where: str) -> None:
    for tensor in leaves(x):
        if tensor.dim() == 0 or len(tensor) == 0:
            raise DataError(f"{where} is empty (shape {tuple(tensor.shape)}); give it at least one row")
    rows = {len(tensor) for tensor in leaves(x)}
    if len(rows) > 1:
        raise DataError(f"the inputs in {where} have {', '.join(map(str, sorted(rows)))} rows; make the lengths agree")
    others = {"the targets": _length(y), "groups": rows if groups is None else _length(groups)}
    for what, found in others.items():
        if found != rows:
            came = ", ".join(map(str, sorted(found)))
            raise DataError(f"{what} have {came} rows, but {where} has {rows.pop()}; make the lengths agree")


def _length(given: Values | Tensors) -> set[int]:
    arrays: Sequence[Array | Tensor] = [given.array] if isinstance(given, Values) else leaves(given)
    return {len(array) if array.ndim else 0 for array in arrays}


def _test_rows(test: Any, target: str | None, groups: Any) -> Given:
    """Test rows that were given: a frame like x, or (x, y) or (x, y, groups)."""
    if is_frame(test) and target is not None:
        return _given(test, None, target, groups if isinstance(groups, str) else None, "test")
    if not isinstance(test, tuple | list) or len(test) not in (2, 3):
        came = f"{type(test).__name__} of {len(test)}" if isinstance(test, tuple | list) else type(test).__name__
        raise ConfigError(f"test must be a share of the rows, or the test rows (x, y), got a {came}; try test = 0.2")
    return _given(test[0], test[1], None, test[2] if len(test) == 3 else None, "test")


def _ordered_like(x: Any, test: Any) -> Any:
    """Test rows that are a frame with the columns in the order of the frame x, which decides about the inputs."""
    if isinstance(test, tuple | list) and len(test) > 0:
        return (_ordered_like(x, test[0]), *test[1:])
    if isinstance(x, dict) and isinstance(test, dict) and x.keys() == test.keys():
        return {name: test[name] for name in x}
    if not is_frame(x) or not is_frame(test):
        return test
    names, own = Frame(x, "x").names, Frame(test, "test").names
    if set(names) != set(own):
        odd = sorted(map(str, set(names) ^ set(own)))
        raise DataError(f"x and test do not have the same columns: only one has {odd[0]!r}; give both the same")
    return test.select_columns(names) if library(test) == "datasets" else test[names]


def _split(
    x: Tensors, y: Tensors, classes: int | None, groups: Tensor | None, share: float, seed: int
) -> tuple[Tensor, Tensor]:
    rows = count_rows(x)
    if rows < 2:
        raise DataError("one row cannot be for training and for testing; give more rows, or test = (x, y)")
    labelled = classes is not None and isinstance(y, Tensor) and y.dim() == 1
    strata = [each.numpy() for each in (groups, y if labelled else None) if isinstance(each, Tensor)]
    train, test = split_share(share, randomness.bits("test rows", seed, np.arange(rows)), *strata)
    return torch.from_numpy(train), torch.from_numpy(test)
