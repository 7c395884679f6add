"""What carries the messages of a round, as engines see it: a topology, a failing one, or a server."""

from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

Mask = npt.NDArray[np.bool_]
Weights = npt.NDArray[np.float64]


class Network(Protocol):
    """Which workers exchange messages in round t, with which weights, and how many messages that takes."""

    @property
    def m(self) -> int: ...
    @property
    def varying(self) -> bool: ...

    def W(self, t: int = 0) -> csr_array:
        """The weights of round t; row i are those that worker i gives to the others."""

    def average(self, t: int = 0) -> Weights | None:
        """The row of a W(t) that is an exact average, whose rows are all equal; None for other networks."""
        return None

    def sends(self, i: int, t: int = 0) -> int:
        """Messages of one exchange that worker i sends, or that a server sends to it."""

    def messages(self, t: int = 0) -> int:
        """Messages of one exchange, of all workers."""

    def active(self, t: int = 0) -> Mask | None:
        """Which workers compute in round t, `[m]`; None: all do."""
        return None

    @property
    def freezes(self) -> bool:
        """Whether workers that do not compute keep their state; else the method says what they keep."""
        return False
