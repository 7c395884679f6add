"""Gradients of an `nn.Module` at many flat parameter vectors: one copy of the module per thread, or one `vmap`.

A replica's parameters are made views into a row of x, so nothing is copied in; its gradient is written into a row of
the result. Every row is computed alone on one intra-op thread, so results do not depend on the number of threads.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from netfleet.errors import ConfigError
from netfleet.models import ResidualBlock

Loss = Callable[[Tensor, Tensor], Tensor]  # scores [B, …], targets [B] -> losses [B]


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
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
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

    def gradient(self, inputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        """Loss and gradients at the loaded point: the mean over the batch, or the sum with the given weights."""
        losses = self.loss(self.model(inputs), targets)
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


def probe(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> Probe:
    """Run a copy of the model forward once; a model or loss that does not fit the data is an error here."""
    trial = copy.deepcopy(model).train()
    buffers = {name: buffer.clone() for name, buffer in trial.named_buffers()}
    with kept_generator(inputs.device), torch.no_grad():
        before = _generator_states(inputs.device)
        try:
            losses = loss(trial(inputs), targets)
        except Exception as error:
            raise ConfigError(
                f"the model and its loss fail on a batch of {tuple(inputs.shape)} with targets {tuple(targets.shape)}: "
                f"{error}"
            ) from error
        random = any(not torch.equal(a, b) for a, b in zip(before, _generator_states(inputs.device), strict=True))
    if losses.shape != targets.shape[:1]:
        raise ConfigError(
            f"the loss must return one value per sample, shape {tuple(targets.shape[:1])}, but returned "
            f'{tuple(losses.shape)}; use reduction="none"'
        )
    moved = {name for name, buffer in trial.named_buffers() if not torch.equal(buffer, buffers[name])}
    return Probe(random, frozenset(moved))


def kept_generator(device: torch.device) -> AbstractContextManager[None]:
    """Leave torch's global generators as they were."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def _generator_states(device: torch.device) -> list[Tensor]:
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def can_stack(model: nn.Module, device: torch.device) -> bool:
    """The written rule of which models are differentiated for all workers at once by `vmap`, and not one by one.

    On a CPU those made of linear layers; elsewhere convolutions too, whose grouped form is slow on a CPU only. A
    module of another kind may do anything in its forward pass, so it is run as it is, worker by worker.
    """
    allowed = _STACKED if device.type == "cpu" else _STACKED | _CONVOLVING | {ResidualBlock}
    return all(type(module) in allowed for module in model.modules())


def wants_channels_last(model: nn.Module, device: torch.device) -> bool:
    """Which models are fed images with the channels last in memory, faster on a CPU (benchmarks/layout.py).

    Those made of known layers: a forward pass of another kind may `view` its features, which only the usual order
    allows. Not those with a strided 1×1 convolution, whose backward pass in that order crashes in torch 2.13.
    """
    if device.type != "cpu" or any(type(module) not in _STACKED | _CONVOLVING for module in model.modules()):
        return False
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    return all(max(layer.kernel_size) > 1 or max(layer.stride) == 1 for layer in convolutions)


_STACKED = {nn.Sequential, nn.Flatten, nn.Linear, nn.Identity, nn.LayerNorm, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU}
_STACKED |= {nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Softplus}
_CONVOLVING = {nn.Conv1d, nn.Conv2d, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.GroupNorm}
_CONVOLVING |= {nn.BatchNorm2d, nn.Dropout, nn.Dropout2d}


def vmap_gradient(model: nn.Module, loss: Loss) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """A function (x `[rows, d]`, inputs `[rows, B, …]`, targets `[rows, B]`) -> gradients `[rows, d]`."""
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    layout = Layout([p for p in model.parameters() if p.requires_grad])

    def objective(x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        parameters = dict(zip(names, layout.views(x), strict=True))
        return loss(torch.func.functional_call(model, parameters, (inputs,)), targets).mean()

    return torch.func.vmap(torch.func.grad(objective))


class Pool:
    """Some threads, each with a slot number, that share out numbered tasks; with one thread it runs in place."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._executor = (
            ThreadPoolExecutor(threads, "netfleet", initializer=lambda: torch.set_num_threads(1))
            if threads > 1
            else None
        )

    def each(self, task: Callable[[int, int], None], count: int) -> None:
        """Run `task(slot, i)` for every i below `count`; an exception in a task is raised here."""
        if self._executor is None or count == 1:
            for i in range(count):
                task(0, i)
            return
        tasks = iter(range(count))

        def drain(slot: int) -> None:
            for i in tasks:  # taking the next number is atomic under the interpreter lock
                task(slot, i)

        for _ in self._executor.map(drain, range(self.threads)):
            pass


def available_threads() -> int:
    """The number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def one_intra_op_thread() -> Iterator[None]:
    """Let every torch operator run on its calling thread: parallelism is over workers, and sums have one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
