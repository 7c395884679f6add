"""Intervals over seeds. Seeds share graph, split and mini-batches between methods, so differences are taken by seed."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.95


class Interval(NamedTuple):
    """A mean over seeds and where it may lie with LEVEL confidence; with one seed no more is known than its value."""

    mean: float
    low: float
    high: float
    seeds: int


def interval(values: Sequence[float]) -> Interval:
    """Student's t interval for the mean of independent values.

    >>> round(interval([1.0, 2.0, 3.0]).high, 3)
    4.484
    """
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return Interval(mean, mean, mean, count)
    half = float(stdtrit(count - 1, (1 + LEVEL) / 2) * np.std(values, ddof=1)) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count)
