"""A model's parameters as one vector that they are views of, so that there is no second copy of the model."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from netfleet.errors import ConfigError


class FlatParameters:
    """Parameters of one type on one device; `x` is the vector of all of them, `[d]`, in their order."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        _check(parameters)
        self._used: set[int] = set()  # parameters that a backward pass has reached
        self.parameters = list(parameters)
        self.dtype, self.device = parameters[0].dtype, parameters[0].device
        self.sizes = [p.numel() for p in parameters]
        self.shapes = tuple(p.shape for p in parameters)
        self._row: Tensor | None = None  # of the gradients that are awaited
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

    def collect(self) -> None:
        """Take over what the loop has written into parameters that are, or have become, no views of x."""
        for p, part in zip(self.parameters, torch.split(self.x, self.sizes), strict=True):
            if (p.dtype, p.device, p.numel()) != (self.dtype, self.device, part.numel()):
                raise ConfigError(
                    f"a parameter has become {p.dtype} on {p.device}, but the optimizer was made for {self.dtype} on "
                    f"{self.device}; make the optimizer after model.to(...)"
                )
            if p.data_ptr() != part.data_ptr():
                part.copy_(p.detach().flatten())

    def note_used(self) -> None:
        """Tell parameters with a gradient of 0 from those that are not used, as weight decay must."""
        used = self._used
        for p in self.parameters:
            p.register_post_accumulate_grad_hook(lambda reached: used.add(id(reached)))  # type: ignore[no-untyped-call]

    def offer_gradients(self) -> None:
        """Let the next gradients be added up in one new row: each `.grad` is a view of it, where it can be."""
        self._row = torch.zeros(1, self.d, dtype=self.dtype, device=self.device)
        self._version = self._row._version
        self._share()

    def _share(self) -> None:
        for p, part in self._parts():
            p.grad = part if p.is_contiguous() else None  # torch wants a gradient in the parameter's memory layout

    def clear_gradients(self) -> None:
        """As after `offer_gradients`; nothing is written if nothing was."""
        self._used.clear()
        if self._row is not None:
            if self._row._version != self._version:
                self._row.zero_()
                self._version = self._row._version
            self._share()

    def take_gradients(self, decays: Sequence[float]) -> Tensor:
        """The gradients as one row, `[1, d]`, with weight decay added; then there are none any more."""
        assert self._row is not None
        for (p, part), decay in zip(self._parts(), decays, strict=True):
            own = p.grad is not None and not p.grad.is_sparse and p.grad.data_ptr() == part.data_ptr()
            if p.grad is None:
                part.zero_()
            elif not own:  # the loop has put another one there
                part.copy_(p.grad.to_dense() if p.grad.is_sparse else p.grad)
            if decay and ((p.grad is not None and not own) or id(p) in self._used):  # as elsewhere in torch.optim
                part.add_(p.detach(), alpha=decay)
            p.grad = None
        self._used.clear()
        row, self._row = self._row, None
        return row

    def _parts(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Each parameter, and its part of the row of gradients in its shape."""
        assert self._row is not None
        for p, part in zip(self.parameters, torch.split(self._row[0], self.sizes), strict=True):
            yield p, part.view(p.shape)


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
