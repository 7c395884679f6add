"""A model's parameters as one vector that they are views of, so that there is no second copy of the model."""

import hashlib
import itertools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from netfleet.errors import ConfigError


class FlatParameters:
    """Parameters of one type on one device; `x` is the vector of all of them, `[d]`, in their order."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        _check(parameters)
        self.parameters = list(parameters)
        self.dtype, self.device = parameters[0].dtype, parameters[0].device
        self.sizes = [p.numel() for p in parameters]
        self.shapes = tuple(p.shape for p in parameters)
        self.x = torch.empty(0)
        self.show(torch.cat([p.detach().flatten() for p in parameters]))

    @property
    def d(self) -> int:
        return sum(self.sizes)

    def show(self, x: Tensor) -> None:
        """Let the parameters be views of x, `[d]`, from now on; of other memory layouts they get copies."""
        for p, part in zip(self.parameters, torch.split(x, self.sizes), strict=True):
            if p.is_contiguous():
                p.data = part.view(p.shape)
            else:  # channels_last, for example
                p.data.copy_(part.view(p.shape))
        self.x = x

    def take_gradients(self, decays: Sequence[float]) -> Tensor:
        """The gradients as one row, `[1, d]`, with weight decay added; each `.grad` is released at once."""
        row = torch.empty(1, self.d, dtype=self.dtype, device=self.device)
        for p, part, decay in zip(self.parameters, torch.split(row[0], self.sizes), decays, strict=True):
            if p.grad is None:  # unused: neither trained nor decayed, as elsewhere in torch.optim
                part.zero_()
                continue
            place = part.view(p.shape)
            place.copy_(p.grad.to_dense() if p.grad.is_sparse else p.grad)
            if decay:
                place.add_(p.detach(), alpha=decay)
            p.grad = None
        return row


def _check(parameters: Sequence[Tensor]) -> None:
    kinds = {(p.dtype, p.device) for p in parameters}
    if not parameters:
        raise ConfigError("no parameter requires a gradient, so there is nothing to train; unfreeze some")
    if len(kinds) != 1:
        raise ConfigError(f"all parameters must have one type and device, got {sorted(map(str, kinds))}")
    ((dtype, device),) = kinds
    if dtype not in (torch.float32, torch.float64):
        raise ConfigError(
            f"parameters must be float32 or float64 to be averaged, got {dtype}; train with autocast, which keeps them "
            f"in float32"
        )
    if device.type == "meta" or any(type(p.data) is not Tensor for p in parameters):
        raise ConfigError(
            "parameters must be ordinary tensors with values, got some on the meta device or of a special type "
            "(sharded, quantized); give every rank the whole model"
        )
    ends = sorted((p.data_ptr(), p.numel() * p.element_size()) for p in parameters if p.numel())
    if any(a + size > b for (a, size), (b, _) in itertools.pairwise(ends)):
        raise ConfigError(
            "two parameters share memory without being one parameter; tie weights by assigning the Parameter itself "
            "(head.weight = embedding.weight)"
        )


def digest(tensors: Iterable[Tensor]) -> str:
    """A checksum of values, one parameter at a time."""
    found = hashlib.sha256()
    for values in tensors:
        found.update(repr((tuple(values.shape), values.dtype)).encode())
        found.update(values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()[:16]
