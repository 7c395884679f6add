"""Bytes between an accelerator and the network: only what is sent or received crosses, through the host's memory.

A state and its averages stay where the model is. On the CPU nothing is copied that was not copied anyway.
"""

import torch
from torch import Tensor

from netfleet.compute.arena import Arena


class HostMemory:
    """Memory of the host for messages; pages are locked for a GPU, which then copies at full speed."""

    def __init__(self) -> None:
        self._arena = Arena()

    def empty_like(self, row: Tensor) -> Tensor:
        """Uninitialised memory of the host for a row that may be anywhere."""
        if row.device.type == "cpu":
            return self._arena.empty_like(row)
        pinned = row.device.type == "cuda" and torch.cuda.is_available()
        return torch.empty(row.shape, dtype=row.dtype, pin_memory=pinned)

    def copy(self, row: Tensor) -> Tensor:
        """A copy of a row in the host's memory, complete when this returns."""
        return self.empty_like(row).copy_(row)

    def landing(self, row: Tensor) -> Tensor:
        """Where the bytes of a row arrive: in the row itself if the network can write there."""
        return row if row.device.type == "cpu" else self.empty_like(row)


def deliver(arrived: Tensor, row: Tensor) -> None:
    """Bring what has arrived in a landing place to its row."""
    if arrived is not row:
        row.copy_(arrived)
