"""Samples on a device, and how to take some of them."""

from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from netfleet import randomness
from netfleet.compute.arena import Arena


class DeviceSamples:
    """Samples on a device; images with their channels last in memory where asked."""

    def __init__(
        self, inputs: Tensor, targets: Tensor, dtype: torch.dtype, device: torch.device, channels_last: bool
    ) -> None:
        self.last, self.dtype, self.device = channels_last and inputs.dim() == 4, dtype, device
        inputs = inputs.to(device, dtype)
        if self.last:  # in one piece also with one channel, whose strides `contiguous()` would leave as they are
            inputs = inputs.permute(0, 2, 3, 1)
        #: `[samples, …]` in one piece, images as `[height, width, channels]` if the channels are last.
        self.storage, self.labels = Arena().empty_like(inputs).copy_(inputs), targets.to(device).contiguous()
        self.size = self.storage[0].numel()  # numbers per sample

    def inputs(self, rows: Tensor) -> Tensor:
        """Inputs of the rows `[…]`, as `[…, channels, height, width]` for images."""
        taken = self.storage[rows]
        return taken.movedim(-1, -3) if self.last else taken

    def shared(self) -> Self:
        """The same rows in memory that other processes can see."""
        share(self.storage)
        share(self.labels)
        return self

    def targets(self, rows: Tensor) -> Tensor:
        return self.labels[rows]


def share(tensor: Tensor) -> Tensor:
    """Move a tensor to memory that other processes can see."""
    tensor.share_memory_()  # type: ignore[no-untyped-call]
    return tensor


def draw(rows: npt.NDArray[np.int64], count: int, purpose: str, *address: int) -> npt.NDArray[np.int64]:
    """That many of the rows, drawn at random without replacement; all of them, in their order, if there are no more."""
    if count >= len(rows):
        return rows
    return rows[randomness.generator(purpose, *address).choice(len(rows), count, replace=False)]
