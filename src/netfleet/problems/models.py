"""The models of the experiments; "package.module:factory" names any other `nn.Module`.

A factory is given the shape of one input and the number of outputs, and returns a module that maps a batch of
inputs to that many numbers each. None of them applies softmax: that is part of the loss.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from netfleet.errors import ConfigError
from netfleet.registry import Registry

MODELS: Registry[nn.Module] = Registry("model", returns=nn.Module)
Shape = tuple[int, ...]
Init = Literal["torch", "glorot", "he", "small"]


def initialise(model: nn.Module, init: Init) -> nn.Module:
    """Draw a model's weights: as torch does by default, or with biases 0 and weights uniform after Glorot (2010) or
    He (2015), or normal with the small standard deviation 0.02.
    """
    draws: dict[str, Callable[[Tensor], Tensor]] = {
        "glorot": nn.init.xavier_uniform_,
        "he": nn.init.kaiming_uniform_,
        "small": partial(nn.init.normal_, std=0.02),
    }
    draw = draws.get(init)
    for module in model.modules():
        if draw and isinstance(module, nn.Conv2d | nn.Linear):
            draw(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


@MODELS.register("cnn")
def cnn(inputs: Shape, outputs: int, channels: int = 16, padding: int = 1, init: Init = "glorot") -> nn.Module:
    """The paper's CNN: twice a 3×3 convolution, ReLU and 2×2 max-pooling, then one linear layer.

    Pooling stands before ReLU because the two commute (both are monotone) and ReLU then has a quarter of the work.
    """
    c, h, w = _image(inputs, "cnn")

    def pooled(side: int) -> int:
        return (side + 2 * padding - 2) // 2

    h, w = pooled(pooled(h)), pooled(pooled(w))
    if min(h, w) < 1:
        raise ConfigError(f"model 'cnn' needs larger images than {inputs}; use padding = 1 or model = \"mlp\"")
    layers: list[nn.Module] = []
    for before in (c, channels):
        layers += [nn.Conv2d(before, channels, 3, padding=padding), nn.MaxPool2d(2), nn.ReLU()]
    return initialise(nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * h * w, outputs)), init)


@MODELS.register("mlp")
def mlp(inputs: Shape, outputs: int, hidden: list[int] | tuple[int, ...] = (64,)) -> nn.Module:
    """Fully connected layers of the given widths with ReLU between them."""
    if any(width < 1 for width in hidden):
        raise ConfigError(f"model 'mlp': hidden widths must be at least 1, got {list(hidden)}")
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(inputs)
    for next_width in hidden:
        layers += [nn.Linear(width, next_width), nn.ReLU()]
        width = next_width
    return nn.Sequential(*layers, nn.Linear(width, outputs))


@MODELS.register("linear")
def linear(inputs: Shape, outputs: int) -> nn.Module:
    """One linear layer: linear or, by the loss, logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(inputs), outputs))


@MODELS.register("softmax")
def softmax(inputs: Shape, outputs: int) -> nn.Module:
    """Softmax (multinomial logistic) regression: one linear layer."""
    return linear(inputs, outputs)


@MODELS.register("resnet18")
def resnet18(inputs: Shape, outputs: int, width: int = 64, norm: Literal["batch", "group"] = "batch") -> nn.Module:
    """ResNet-18 (He et al. 2016) in its CIFAR form: a 3×3 stem without pooling, four stages of two blocks.

    `width` is the channel count of the first stage (64 in the paper); `norm = "group"` replaces BatchNorm by
    GroupNorm with 32 groups at most (Wu, He 2018), which has no statistics to share.
    """
    c, _, _ = _image(inputs, "resnet18")
    stages: list[nn.Module] = []
    before = width
    for stage, stride in enumerate((1, 2, 2, 2)):
        after = width * 2**stage
        stages += [ResidualBlock(before, after, stride, norm), ResidualBlock(after, after, 1, norm)]
        before = after
    stem = nn.Conv2d(c, width, 3, padding=1, bias=False), _norm(width, norm), nn.ReLU()
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs))


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions around which the input is added (the basic block)."""

    stackable = True  # `vmap` can differentiate it (gradients/choice.py)

    def __init__(self, before: int, after: int, stride: int, norm: str) -> None:
        super().__init__()
        first = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False), _norm(after, norm), nn.ReLU()
        second = nn.Conv2d(after, after, 3, padding=1, bias=False), _norm(after, norm)
        self.body, self.skip = nn.Sequential(*first, *second), nn.Sequential()  # which does nothing
        if before != after or stride != 1:
            self.skip = nn.Sequential(nn.Conv2d(before, after, 1, stride=stride, bias=False), _norm(after, norm))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.skip(x))


def _norm(channels: int, norm: str) -> nn.Module:
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(math.gcd(32, channels), channels)


def _image(inputs: Shape, model: str) -> tuple[int, int, int]:
    if len(inputs) != 3:
        raise ConfigError(f"model {model!r} needs images (channels, height, width), but the data is {inputs}")
    return inputs[0], inputs[1], inputs[2]
