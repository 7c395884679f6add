"""Samples on a device, and how to take some of them."""

from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from netfleet import randomness
from netfleet.compute.arena import Arena
from netfleet.data.tensors import Tensors, leaves, mapped, take, to_dtype


class DeviceSamples:
    """Samples on a device; images with their channels last in memory where asked."""

    def __init__(
        self, inputs: Tensors, targets: Tensors, dtype: torch.dtype, device: torch.device, channels_last: bool
    ) -> None:
        self.last = channels_last and isinstance(inputs, Tensor) and inputs.dim() == 4
        self.dtype, self.device = dtype, device
        self._inputs = mapped(self._placed, inputs)
        self._targets = mapped(lambda tensor: to_dtype(tensor.to(device), dtype).contiguous(), targets)

    def _placed(self, inputs: Tensor) -> Tensor:
        inputs = to_dtype(inputs.to(self.device), self.dtype)
        if self.last:  # in one piece also with one channel, whose strides `contiguous()` would leave as they are
            inputs = inputs.permute(0, 2, 3, 1)
        return Arena().empty_like(inputs).copy_(inputs)

    @property
    def storage(self) -> Tensor:
        """The only inputs, `[samples, …]` in one piece, images as `[height, width, channels]` if channels are last."""
        assert isinstance(self._inputs, Tensor)
        return self._inputs

    @property
    def labels(self) -> Tensor:
        """The only targets, `[samples, …]`."""
        assert isinstance(self._targets, Tensor)
        return self._targets

    @property
    def size(self) -> int:
        """Numbers per sample."""
        return self.storage[0].numel()

    def inputs(self, rows: Tensor) -> Tensors:
        """Inputs of the rows `[…]`, as `[…, channels, height, width]` for images."""
        taken = take(self._inputs, rows)
        return taken.movedim(-1, -3) if self.last and isinstance(taken, Tensor) else taken

    def targets(self, rows: Tensor) -> Tensors:
        return take(self._targets, rows)

    def shared(self) -> Self:
        """The same rows in memory that other processes can see."""
        for tensor in (*leaves(self._inputs), *leaves(self._targets)):
            share(tensor)
        return self


def share(tensor: Tensor) -> Tensor:
    """Move a tensor to memory that other processes can see."""
    tensor.share_memory_()  # type: ignore[no-untyped-call]
    return tensor


def draw(rows: npt.NDArray[np.int64], count: int, purpose: str, *address: int) -> npt.NDArray[np.int64]:
    """That many of the rows, drawn at random without replacement; all of them, in their order, if there are no more."""
    if count >= len(rows):
        return rows
    return rows[randomness.generator(purpose, *address).choice(len(rows), count, replace=False)]
