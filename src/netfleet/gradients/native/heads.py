"""Which losses the native path has code for (`heads.h`), and which targets fit them."""

import torch
from torch import Tensor

from netfleet.data.tensors import Tensors
from netfleet.gradients.paths import Head

#: The numbers of `Loss` in heads.h.
NUMBERS: dict[Head, int] = {"cross-entropy": 0, "bce": 1, "mse": 2}


def fits(head: Head, targets: Tensors, outputs: int) -> bool:
    """Whether `heads.h` can compare the targets with so many outputs; `DeviceSamples` gives them the run's type."""
    if not isinstance(targets, Tensor):
        return False
    if head == "cross-entropy":
        classes = targets.dtype == torch.int64 and targets.dim() == 1
        return classes and int(targets.min()) >= 0 and int(targets.max()) < outputs
    return targets.is_floating_point() and targets.dim() <= 2 and targets[:1].numel() == outputs


def answers(head: Head, outputs: int) -> int:
    """How many of the right answers that `heads.h` counts one sample can have."""
    return outputs if head == "bce" else 1
