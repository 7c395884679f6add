"""Labels and groups as numbers 0, 1, …: which targets are labels, how many there are, and what they stand for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from netfleet.data.dataset import IGNORED
from netfleet.data.frames import Array, Values, as_tensor
from netfleet.data.sites import shown_value
from netfleet.data.tensors import Tensors
from netfleet.errors import ConfigError, DataError

Classes = int | Sequence[Any] | None
Names = tuple[str, ...] | None


def make_targets(ys: Sequence[Values | Tensors], classes: Classes, numbers: bool) -> tuple[list[Tensors], int | None]:
    """The targets of training and test rows as tensors, and the number of their classes if they are labels."""
    if numbers and classes is not None:
        raise ConfigError("numbers = True and classes say different things of the targets; give one of them")
    if isinstance(classes, str):
        raise ConfigError(f"classes must be a number or a list of labels, got the text {classes!r}; try classes = 2")
    arrays = [y.array for y in ys if isinstance(y, Values)]
    if len(arrays) < len(ys):
        return [as_tensor(y.array, "y") if isinstance(y, Values) else y for y in ys], None
    known = next((y.classes for y in ys if isinstance(y, Values) and y.classes is not None), None)
    if classes is None and not numbers:
        classes = known
    if numbers or (classes is None and all(_kind(array) == "f" for array in arrays)):
        return [_as_numbers(array) for array in arrays], None
    if isinstance(classes, int | np.integer) or (classes is None and all(_kind(array) in "biu" for array in arrays)):
        labels = [_whole(array) for array in arrays]
        count = int(classes) if isinstance(classes, int | np.integer) else _count(labels)
        return [torch.from_numpy(each) for each in labels], count
    names = _names(arrays, "y") if classes is None else list(classes)
    return [torch.from_numpy(_codes(array, names, "classes")) for array in arrays], len(names)


def _kind(array: Array | Tensor) -> str:
    return "f" if isinstance(array, Tensor) else array.dtype.kind


def _as_numbers(array: Array | Tensor) -> Tensor:
    tensor = as_tensor(array, "y")
    return tensor if tensor.is_floating_point() else tensor.to(torch.float64)


def _whole(array: Array | Tensor) -> npt.NDArray[np.int64]:
    """Labels as whole numbers."""
    values = as_tensor(array, "y").numpy()
    labels = values.astype(np.int64)
    if (labels != values).any():
        came = shown_value(str(values[labels != values].flat[0]))
        raise DataError(f"y has {came}, which is no label; labels are whole numbers; leave classes out for numbers")
    return labels


def _count(labels: Sequence[npt.NDArray[np.int64]]) -> int:
    """How many classes labels without names have: one more than the highest."""
    counted = np.concatenate([each.ravel() if each.ndim == 1 else each[each != IGNORED] for each in labels])
    low, high = (int(counted.min()), int(counted.max())) if counted.size else (0, 0)
    cure = "give classes = [all labels in order], or numbers = True where they are numbers"
    if low < 0:
        raise DataError(f"y has the label {low}, expected 0, 1, …; {cure}")
    if high >= max(counted.size, 2):
        raise DataError(f"y has the label {high} but only {counted.size} labels in all; {cure}")
    return high + 1


def _names(arrays: Sequence[Array | Tensor], what: str) -> list[Any]:
    """The different values in order."""
    values = [value for array in arrays for value in np.asarray(array).ravel().tolist()]
    if wrong := [value for value in values if not isinstance(value, str | bytes | int)]:
        raise DataError(
            f"{what} has {shown_value(repr(wrong[0]))}, expected texts or whole numbers; remove or name such rows"
        )
    if len({type(value) for value in values}) > 1:
        raise DataError(f"{what} has texts and numbers; give all one type")
    return sorted(set(values))


def _codes(array: Array | Tensor, names: Sequence[Any], key: str) -> npt.NDArray[np.int64]:
    """The place of each value in the list of names."""
    places = {value: place for place, value in enumerate(names)}
    if len(places) < len(names):
        raise ConfigError(f"{key} has a value twice: {list(names)!r}; list each once")
    values = np.asarray(array)
    flat = values.ravel().tolist()
    if strange := [value for value in flat if value not in places]:
        raise DataError(
            f"{shown_value(repr(strange[0]))} is none of {key} = {list(names)!r}; add it, or correct the data"
        )
    return np.array([places[value] for value in flat], np.int64).reshape(values.shape)


def number_groups(groups: Sequence[Values | None]) -> tuple[tuple[Tensor | None, Tensor | None], Names]:
    """The number of each row's group, and the groups' names, in order; none where the training rows have none."""
    first = groups[0]
    if first is None:
        return (None, None), None
    given = [each.array for each in groups if each is not None]
    names = list(first.classes) if isinstance(first.classes, tuple) else _group_names(given)
    first_codes, *rest = (None if g is None else torch.from_numpy(_codes(g.array, names, "groups")) for g in groups)
    return (first_codes, rest[0] if rest else None), tuple(map(str, names))


def _group_names(arrays: Sequence[Array | Tensor]) -> list[Any]:
    for array in arrays:
        if array.ndim != 1 or _kind(array) == "f":
            came = f"{array.dtype} {tuple(array.shape)}"
            raise DataError(f"groups must be one text or whole number for each row, got {came}; name each row's group")
    return _names(arrays, "groups")
