"""Copies of an `nn.Module` that can be pointed at any row of parameters.

A replica's parameters are made views into a row of x, so nothing is copied in; its gradient goes into a row of another.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from netfleet.data.tensors import Tensors, describe, leaves
from netfleet.errors import ConfigError

Loss = Callable[..., Tensor]  # outputs [B, …], targets [B, …] -> losses [B]
Right = Callable[..., Tensor]  # outputs and targets -> share of right answers of each sample [B]


def outputs_of(model: nn.Module, inputs: Tensors, parameters: dict[str, Tensor] | None = None) -> Tensor:
    """What a model, or one with other parameters, makes of a batch: called with a tensor, `*tuple` or `**dict`."""
    unnamed = () if isinstance(inputs, dict) else inputs if isinstance(inputs, tuple) else (inputs,)
    named = inputs if isinstance(inputs, dict) else {}
    if parameters is None:
        made = model(*unnamed, **named)
    else:
        made = torch.func.functional_call(model, parameters, unnamed, named)
    outputs: Tensor = getattr(made, "logits", made)  # models of the transformers library return them with more
    return outputs


class Layout:
    """How a module's parameters (and buffers) lie in one flat vector."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.shapes = [t.shape for t in tensors]
        self.sizes = [t.numel() for t in tensors]
        self.total = sum(self.sizes)

    def views(self, flat: Tensor) -> list[Tensor]:
        """The tensors as views into a flat vector `[total]`."""
        return [part.view(shape) for part, shape in zip(torch.split(flat, self.sizes), self.shapes, strict=True)]


def flatten(tensors: list[Tensor], dtype: torch.dtype) -> Tensor:
    """The tensors one after the other in one vector."""
    parts = [t.detach().reshape(-1).to(dtype) for t in tensors]
    return torch.cat(parts) if parts else torch.empty(0, dtype=dtype)


class Replica:
    """One copy of a module that can be pointed at any row of parameters and buffers."""

    def __init__(self, model: nn.Module, loss: Loss, moving: frozenset[str]) -> None:
        self.model = copy.deepcopy(model)
        self.loss = loss
        trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.names, self.parameters = list(trained), list(trained.values())
        self.buffers = [buffer for name, buffer in self.model.named_buffers() if name in moving]
        self.layout = Layout(list(self.parameters))
        self.buffer_layout = Layout(self.buffers)

    def load(self, x: Tensor, buffers: Tensor | None = None) -> None:
        """Point the parameters at x `[d]` and copy the buffers `[b]` in."""
        for parameter, view in zip(self.parameters, self.layout.views(x), strict=True):
            parameter.data = view
        if buffers is not None:
            for buffer, view in zip(self.buffers, self.buffer_layout.views(buffers), strict=True):
                buffer.copy_(view if buffer.is_floating_point() else view.round())  # an averaged count

    def gradient(self, inputs: Tensors, targets: Tensors, weights: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        """Loss and gradients at the loaded point: the mean over the batch, or the sum with the given weights."""
        losses = self.loss(outputs_of(self.model, inputs), targets)
        value = losses.mean() if weights is None else losses @ weights
        return value.detach(), list(torch.autograd.grad(value, self.parameters, materialize_grads=True))

    def write(self, gradients: list[Tensor], out: Tensor) -> None:
        """Put gradients into the flat vector `out` `[d]`."""
        for gradient, view in zip(gradients, self.layout.views(out), strict=True):
            view.copy_(gradient)

    def store_buffers(self, out: Tensor) -> None:
        """Copy the module's buffers into the flat vector `out` `[b]`."""
        for buffer, view in zip(self.buffers, self.buffer_layout.views(out), strict=True):
            view.copy_(buffer)


class Probe(NamedTuple):
    """What one trial of a training step shows about a model."""

    random: bool  # it uses torch's global generator (dropout and the like)
    moving: frozenset[str]  # buffers that it changes: running statistics, not constants
    outputs: Tensor  # of the trial


def probe(model: nn.Module, loss: Loss, inputs: Tensors, targets: Tensors) -> Probe:
    """Run a copy of the model forward once; a model or loss that does not fit the data is an error here."""
    trial, device, rows = copy.deepcopy(model).train(), leaves(inputs)[0].device, len(leaves(inputs)[0])
    buffers = {name: buffer.clone() for name, buffer in trial.named_buffers()}
    with kept_generator(device), torch.no_grad():
        before = generator_states(device)
        try:
            outputs = outputs_of(trial, inputs)
            losses = loss(outputs, targets)
        except Exception as error:
            came = f"{rows} samples of {describe(inputs)} with targets {describe(targets)}"
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"the model and its loss fail on {came}: {reason}; make the model, the loss and the data fit"
            ) from error
        random = have_moved(before, device)
    if not isinstance(losses, Tensor) or tuple(losses.shape) != (rows,):
        came = f"the shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
        raise ConfigError(
            f'the loss must return one value per sample, shape ({rows},), but returned {came}; use reduction="none"'
        )
    moved = {name for name, buffer in trial.named_buffers() if not torch.equal(buffer, buffers[name])}
    return Probe(random, frozenset(moved), outputs)


def kept_generator(device: torch.device) -> AbstractContextManager[None]:
    """Leave torch's global generators as they were."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def have_moved(before: list[Tensor], device: torch.device) -> bool:
    """Whether torch's global generators were used since they had these states."""
    return any(not torch.equal(a, b) for a, b in zip(before, generator_states(device), strict=True))


def generator_states(device: torch.device) -> list[Tensor]:
    """Of torch's global generators, those that a model on this device may use."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


@contextmanager
def averaging_batch_norm(model: nn.Module) -> Iterator[None]:
    """Let every BatchNorm start afresh and take the plain average over the batches that it sees."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Exact values are those of the whole network."""
    layers = [module for module in model.modules() if isinstance(module, nn.modules.dropout._DropoutNd)]
    for layer in layers:
        layer.eval()
    try:
        yield
    finally:
        for layer in layers:
            layer.train()


def without_grad(task: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """Autograd's mode belongs to a thread: switch it off on the thread that runs the task."""

    def run(slot: int, i: int) -> None:
        with torch.no_grad():
            task(slot, i)

    return run
