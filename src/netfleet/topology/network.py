"""What carries the messages of a round: the topology itself, a failing one, or a server that averages exactly.

| symbol | here | meaning |
|---|---|---|
| m, n | `m`, `n` | number of workers, and of those that a round is done with |
| 𝒮_t | `chosen(t)` | who takes part in round t |

Engines see a network only through `Network`; a `Topology` is one.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

Mask = npt.NDArray[np.bool_]
Weights = npt.NDArray[np.float64]


class Network(Protocol):
    """Who hears whom in round t, with what weight, and how many messages that takes."""

    @property
    def m(self) -> int: ...
    @property
    def varying(self) -> bool: ...

    def W(self, t: int = 0) -> csr_array:
        """The weights of round t; row i is what worker i makes of the others."""

    def average(self, t: int = 0) -> Weights | None:
        """The one row of a W(t) whose rows are all equal, where that is how it is meant."""

    def sends(self, i: int, t: int = 0) -> int:
        """Messages of one exchange that are sent by worker i, or to it by a server."""

    def messages(self, t: int = 0) -> int:
        """Messages of one exchange, of all workers."""

    def active(self, t: int = 0) -> Mask | None:
        """Who computes in round t, `[m]`; None: all do."""

    @property
    def freezes(self) -> bool:
        """Whether those who do not compute keep all that they have; else the method says what they keep."""
