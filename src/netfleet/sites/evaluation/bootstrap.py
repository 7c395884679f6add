"""Intervals from test rows that are drawn again: the bootstrap's, within each class, the same draws for all models.

An interval is from 2.5 to 97.5 per cent of the values on rows drawn with replacement. It says how much the test rows
leave open, not how much another training would differ.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from netfleet import randomness
from netfleet.data.tensors import Tensors, take
from netfleet.problems.scoring import Metric
from netfleet.sites.evaluation.results import Interval

RESAMPLES = 500
_BOUNDS = (0.025, 0.975)


def strata_of(targets: Tensors, rows: int) -> npt.NDArray[np.int64]:
    """The class of each row, where there is one class or one yes/no for each."""
    one = isinstance(targets, Tensor) and targets.reshape(rows, -1).shape[1] == 1
    if isinstance(targets, Tensor) and one and bool((targets == targets.round()).all()):
        return targets.reshape(rows).cpu().numpy().astype(np.int64)
    return np.zeros(rows, np.int64)


def draw_rows(strata: npt.NDArray[np.int64], seed: int, count: int = RESAMPLES) -> Tensor:
    """Rows drawn again `[count, rows]`: of each class as many as there are."""
    draw, parts = randomness.generator("evaluation", seed), []
    for label in np.unique(strata):
        members = np.flatnonzero(strata == label)
        parts.append(members[draw.integers(len(members), size=(count, len(members)))])
    return torch.from_numpy(np.hstack(parts))


def resampled(metric: Metric, outputs: Tensor, targets: Tensors, draws: Tensor) -> list[float | None]:
    """The metric's value on each draw."""
    return [metric(outputs[rows], take(targets, rows)) for rows in draws]


def interval(value: float | None, again: Sequence[float | None]) -> Interval:
    known = [each for each in again if each is not None]
    if value is None or not known:
        return Interval(value)
    low, high = np.quantile(known, _BOUNDS).tolist()
    return Interval(value, low, high)


def paired(
    ours: tuple[float, Sequence[float | None]], theirs: tuple[float, Sequence[float | None]], sign: int
) -> Interval:
    """How much better the first is, draw by draw; `sign` is 1 where higher is better, else −1."""
    pairs = zip(ours[1], theirs[1], strict=True)
    again = [sign * (a - b) for a, b in pairs if a is not None and b is not None]
    return interval(sign * (ours[0] - theirs[0]), again)
