"""The written rule of which way to compute gradients a model takes.

| path | for | how |
|---|---|---|
| native | on a CPU with a compiler, a loss in `Head`: a chain of convolutions and linear layers, or a ResNet | C++ |
| stacked | known layers without random numbers or running statistics; on a CPU only small linear ones | `vmap` |
| looped | every `nn.Module` | one copy of the module per thread |
| processes | as looped, with more than 8 threads, a model that another process can import | one copy per process |

The losses in `Head` (`paths.py`) are the cross-entropy of classes, and the binary cross-entropy of logits and the mean
squared error with one target per output.

The first that fits is taken (processes before looped). The rule looks at the model, the loss and the device, never at a
clock, so a run takes the same path every time; `engine.gradients` in an experiment file names another. The paths agree
up to rounding, looped and processes bit for bit.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import nn

from netfleet.compute.threads import ThreadPool
from netfleet.data.tensors import Tensors
from netfleet.errors import ConfigError
from netfleet.gradients.looped import Looped
from netfleet.gradients.native.blocks import Network, recognise_blocks
from netfleet.gradients.native.build import library
from netfleet.gradients.native.chain import Chain
from netfleet.gradients.native.heads import fits
from netfleet.gradients.native.layers import Layer, recognise
from netfleet.gradients.native.residual import Residual
from netfleet.gradients.paths import GradientPath, Gradients, Head, PathInputs
from netfleet.gradients.processes import MOST_THREADS, Processes, can_travel
from netfleet.gradients.stacked import Stacked

Native = list[Layer] | Network | None
LARGEST_STACKED = 1 << 19  # numbers in a parameter that is stacked on a CPU (netfleet bench gradients)


def native_model(
    model: nn.Module,
    shape: torch.Size,
    dtype: torch.dtype,
    moving: frozenset[str],
    head: Head | None,
    targets: Sequence[Tensors],
    wanted: Gradients,
) -> Native:
    """The model as the native path reads it, if it takes that path.

    `moving` are the names of its running statistics; `head` is None if device or loss do not allow that path. All
    `targets`, of training and of test rows, must fit the model's outputs.
    """
    if head is not None and wanted in ("auto", "native"):
        found = recognise(model, shape) or recognise_blocks(model, shape, moving)
        if found and _fit(found, head, targets) and _library(found, dtype) is not None:
            return found
    if wanted == "native":
        raise ConfigError(
            'gradients = "native" needs the CPU, a C++ compiler, a loss that is the cross-entropy of classes, the '
            "binary cross-entropy of logits or the mean squared error, with a target for each of the model's outputs, "
            "and a model that is a chain of convolutions (with ReLU and max-pooling) and linear layers, or a residual "
            'network with batch or group normalisation; use gradients = "auto"'
        )
    return None


def _fit(model: list[Layer] | Network, head: Head, targets: Sequence[Tensors]) -> bool:
    outputs = model.outputs if isinstance(model, Network) else model[-1].cout
    return all(fits(head, part, outputs) for part in targets)


def _library(model: list[Layer] | Network, dtype: torch.dtype) -> ctypes.CDLL | None:
    return library("residual" if isinstance(model, Network) else "chain", str(dtype).removeprefix("torch."))


def choose_path(inputs: PathInputs, model: Native, pool: ThreadPool, threads: int, wanted: Gradients) -> GradientPath:
    """The path that these inputs take, or the wanted one."""
    device, several = inputs.train.device, len(inputs.workers) > 1
    if model is not None:
        native = _library(model, inputs.train.dtype)
        assert native is not None
        assert inputs.head is not None
        if isinstance(model, Network):
            return Residual(native, model, inputs, pool, inputs.head)
        return Chain(native, model, inputs, pool, inputs.head)
    pure = not inputs.probed.random and not inputs.probed.moving
    if wanted == "stacked" and not (pure and can_stack(inputs.model)):
        raise ConfigError(
            'gradients = "stacked" needs a model of known layers without dropout or running statistics; use '
            'gradients = "auto"'
        )
    if wanted == "stacked" or (wanted == "auto" and pure and several and should_stack(inputs.model, device)):
        return Stacked(inputs, pool)
    many = wanted == "auto" and threads > MOST_THREADS and len(inputs.workers) > MOST_THREADS
    if device.type == "cpu" and several and (wanted == "processes" or many):
        if can_travel(inputs.model, inputs.loss):
            return Processes(inputs, pool, threads)
        if wanted == "processes":
            raise ConfigError(
                'gradients = "processes" needs a model and a loss from a module that other processes can import, not '
                'from the script that is run; move them to a file of their own, or use gradients = "auto"'
            )
    return Looped(inputs, pool)


def can_stack(model: nn.Module) -> bool:
    """Whether `vmap` can differentiate the model for all workers at once.

    A module of another kind may do anything in its forward pass, so it is run as it is, worker by worker.
    """
    known = _STACKED | _CONVOLVING
    return all(type(module) in known or getattr(module, "stackable", False) for module in model.modules())


def should_stack(model: nn.Module, device: torch.device) -> bool:
    """Whether that is faster: on a CPU, grouped convolutions and large matrices are slower."""
    if device.type != "cpu":
        return can_stack(model)
    small = all(parameter.numel() <= LARGEST_STACKED for parameter in model.parameters())
    return small and all(type(module) in _STACKED for module in model.modules())


def wants_channels_last(model: nn.Module, device: torch.device) -> bool:
    """Whether the model gets images with the channels last in memory, which is faster on a CPU.

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
