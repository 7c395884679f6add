"""Which losses the native path has code for (`heads.h`), and which targets fit them."""

import torch
from torch import Tensor

from netfleet.gradients.paths import Head

#: The numbers of `Loss` in heads.h.
NUMBERS: dict[Head, int] = {"cross-entropy": 0, "bce": 1, "mse": 2}


def fits(head: Head, targets: Tensor, outputs: int, dtype: torch.dtype) -> bool:
    """Whether `heads.h` can read the targets of a model with so many outputs, whose numbers are of this type."""
    if head == "cross-entropy":
        classes = targets.dtype == torch.int64 and targets.dim() == 1
        return classes and int(targets.min()) >= 0 and int(targets.max()) < outputs
    return targets.dtype == dtype and targets.dim() <= 2 and targets[:1].numel() == outputs


def right_answers(head: Head, counted: Tensor, outputs: int) -> Tensor:
    """What heads.h counted, as a number of samples: a label is a part of its sample; under "mse" it is NaN."""
    if head == "mse":
        return torch.full_like(counted, torch.nan, dtype=torch.float64)
    return counted.double() / (outputs if head == "bce" else 1)
