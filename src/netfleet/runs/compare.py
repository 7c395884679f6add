"""Histories side by side: the runs of each label, and a column's mean and range over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netfleet.runs.history import History

Floats = npt.NDArray[np.float64]


class Band(NamedTuple):
    """Mean, lowest and highest over seeds at each place of the horizontal axis."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats


def group(histories: Iterable[History]) -> dict[str, list[History]]:
    """The histories of each label, labels in order of appearance."""
    groups: dict[str, list[History]] = {}
    for history in histories:
        groups.setdefault(history.label, []).append(history)
    return groups


def band(histories: Iterable[History], column: str, x: str = "round") -> Band:
    """Mean and range of a column over seeds, which meet by round; a round counts the seeds that reached it."""
    points: dict[int, list[tuple[float, float]]] = {}
    for history in histories:
        for record in history:
            place, value = record.get(x), record.get(column)
            if place is not None and value is not None and math.isfinite(value):
                points.setdefault(record["round"], []).append((place, value))
    rows = [np.array(points[t], dtype=np.float64).T for t in sorted(points)]
    statistics = [(places.mean(), values.mean(), values.min(), values.max()) for places, values in rows]
    return Band(*np.array(statistics, dtype=np.float64).reshape(-1, 4).T)


def has(histories: Iterable[History], column: str) -> bool:
    """Whether any run measured it."""
    return any(record.get(column) is not None for history in histories for record in history)
