"""Ways to compute the same gradients, and the written rule of which one a model takes.

| path | for | how |
|---|---|---|
| native | on a CPU, a chain of convolutions and linear layers under cross-entropy, where there is a compiler | C++ |
| stacked | known layers without random numbers or running statistics; on a CPU only small linear ones | `vmap` |
| looped | every `nn.Module` | one copy of the module per thread |
| processes | as looped, with more than 8 threads, a model that another process can import | one copy per process |

The first that fits is taken (processes before looped). The rule looks at the model, the loss and the device, never at a
clock, so a run takes the same path every time; `engine.gradients` in an experiment file names another. The paths agree
up to rounding, looped and processes bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

Gradients = Literal["auto", "native", "stacked", "looped", "processes"]
LARGEST_STACKED = 1 << 19  # numbers in a parameter that is stacked on a CPU (netfleet bench paths)
Chunk = tuple[Tensor, Tensor]  # rows of the training data and their weights in a sum


class GradientPath(Protocol):
    """What a `ModuleProblem` needs computed."""

    name: str

    def gradients(self, x: Tensor, sample: Sample, buffers: Tensor | None) -> Tensor:
        """∇fᵢ(xᵢ; ζᵢ) for each hosted worker `[rows, d]`; running statistics in `buffers` are updated."""

    def sums(self, x: Tensor, lanes: Sequence[Sequence[Chunk]]) -> tuple[Tensor, Tensor]:
        """Of each lane the weighted sum of losses `[lanes]` and of gradients `[lanes, d]` at one model `[d]`."""

    def scores(self, x: Tensor, chunks: Sequence[Tensor], buffers: Tensor | None) -> tuple[Tensor, Tensor]:
        """Of each model and chunk of test rows the summed loss and the right answers, both `[models, chunks]`."""


def can_stack(model: nn.Module) -> bool:
    """Whether `vmap` can differentiate the model for all workers at once.

    A module of another kind may do anything in its forward pass, so it is run as it is, worker by worker.
    """
    return all(
        type(module) in _STACKED | _CONVOLVING or getattr(module, "stackable", False) for module in model.modules()
    )


def should_stack(model: nn.Module, device: torch.device) -> bool:
    """Whether it is worth while: on a CPU, convolutions in their grouped form and large matrices are slower."""
    if device.type != "cpu":
        return can_stack(model)
    small = all(parameter.numel() <= LARGEST_STACKED for parameter in model.parameters())
    return small and all(type(module) in _STACKED for module in model.modules())


def wants_channels_last(model: nn.Module, device: torch.device) -> bool:
    """Which models PyTorch is fed images with the channels last in memory, faster on a CPU (netfleet bench layout).

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


class Sample(NamedTuple):
    """The name of one mini-batch per hosted worker: a pure function of (seed, worker, round, step)."""

    t: int
    k: int
    size: int  # training samples that a gradient on it uses, over the hosted workers
    rows: Tensor | None = None  # [rows, batch] indices into the training data, where there is data
