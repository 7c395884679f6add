"""What a model learns from a CSV file: a class, a number, whether it is above a threshold, or a time and an event."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from netfleet.data.columns import YesNo, check_values, no_missing, read_values
from netfleet.data.table import Column, Table
from netfleet.errors import ConfigError

Ints = npt.NDArray[np.int64]
_CURE = "remove the row, or fill the value in"


class Targets(NamedTuple):
    """The targets of some rows, and a number by which training and test rows are balanced."""

    y: Tensor
    strata: Ints


class Target(NamedTuple):
    """Which columns the targets are in, how they are read, and how many classes there are, if they are classes."""

    columns: tuple[str, ...]
    read: Callable[[Table], Targets]
    classes: int | None = None


def make_target(
    target: str, classes: Sequence[str | float] | None, positive_above: float | None, event: str | None
) -> Target:
    """The target that an experiment file declares; raises if it declares two."""
    given = {"classes": classes, "positive_above": positive_above, "event": event}
    if len(named := [key for key, value in given.items() if value is not None]) > 1:
        raise ConfigError(f"{' and '.join(named)} say different things of the target {target!r}; keep one of them")
    if classes is not None:
        check_values(classes, "classes")
        return Target((target,), lambda table: _classes(table.column(target), classes), len(classes))
    if positive_above is not None:
        return Target((target,), lambda table: _above(table.column(target), positive_above), 2)
    if event is not None:
        return Target((target, event), lambda table: _survival(table.column(target), table.column(event)))
    return Target((target,), lambda table: _numbers(table.column(target)))


def _classes(column: Column, values: Sequence[str | float]) -> Targets:
    labels = read_values(column, values, no_missing(column, _CURE)).astype(np.int64)
    return Targets(torch.from_numpy(labels), labels)


def _above(column: Column, threshold: float) -> Targets:
    labels = (_read(column) > threshold).astype(np.int64)
    return Targets(torch.from_numpy(labels), labels)


def _numbers(column: Column) -> Targets:
    values = _read(column)
    return Targets(torch.from_numpy(values), np.zeros(len(values), np.int64))


def _survival(time: Column, event: Column) -> Targets:
    happened = YesNo().read(event)  # which raises if one is missing
    times = _read(time)
    if (times < 0).any():
        raise time.wrong(int((times < 0).argmax()), "is a negative time; correct it")
    return Targets(torch.from_numpy(np.stack([times, happened], axis=1)), happened.astype(np.int64))


def _read(column: Column) -> npt.NDArray[np.float64]:
    no_missing(column, _CURE)
    return np.array([column.number(row) for row in range(len(column.texts))], np.float64)
