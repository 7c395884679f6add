"""Which rows are kept for testing where the data has no test rows of its own."""

import zlib

import numpy as np
import numpy.typing as npt

from netfleet import randomness
from netfleet.errors import ConfigError

Rows = npt.NDArray[np.int64]


def check_share(share: float) -> float:
    """The share of the rows that become test rows; raises unless both parts can have some."""
    if not 0 < share < 1:
        raise ConfigError(f"test must be a share of the rows between 0 and 1, got {share:g}; try test = 0.2")
    return share


def split_share(share: float, random: npt.NDArray[np.uint64], *strata: npt.NDArray[np.int64]) -> tuple[Rows, Rows]:
    """Training and test rows: about that share of each stratum becomes test rows, at least one row of all.

    In the order of the strata and, within them, of the random numbers, test rows are at equal distances.
    """
    order = np.lexsort((random, *reversed(strata)))
    count = min(max(round(len(order) * share), 1), len(order) - 1)
    test = np.sort(order[(2 * np.arange(count) + 1) * len(order) // max(2 * count, 1)])
    return np.setdiff1d(order, test, assume_unique=True), test


def stable_numbers(name: str, rows: int) -> npt.NDArray[np.uint64]:
    """A random number for each row that depends on a name and the row's number alone: the same at every start."""
    return randomness.bits("test rows", zlib.crc32(name.encode()), np.arange(rows))
