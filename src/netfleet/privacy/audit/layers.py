"""Where the first and the last layer of a model are in a flat gradient."""

import math
from typing import NamedTuple

from torch import Tensor, nn

#: Modules before the first layer that change nothing about an input but its shape.
_SHAPES = (nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout)


class LinearLayer(NamedTuple):
    """A linear layer's place in a flat vector of parameters."""

    weight: slice
    bias: slice
    outputs: int
    inputs: int

    def weights(self, gradient: Tensor) -> Tensor:
        return gradient[self.weight].view(self.outputs, self.inputs)

    def biases(self, gradient: Tensor) -> Tensor:
        return gradient[self.bias]


def first_layer(model: nn.Module, inputs: tuple[int, ...]) -> LinearLayer | None:
    """The first layer, if it is linear with a bias and takes the inputs as they are; else None."""
    leaves = [m for m in model.modules() if not list(m.children()) and not isinstance(m, _SHAPES)]
    layer = leaves[0] if leaves else None
    if isinstance(layer, nn.Linear) and layer.in_features == math.prod(inputs):
        return _placed(model, layer)
    return None


def last_layer(model: nn.Module, outputs: int) -> LinearLayer | None:
    """The last layer, if it is linear with a bias and has so many outputs; else None."""
    layers = [m for m in model.modules() if not list(m.children()) and list(m.parameters(recurse=False))]
    if layers and isinstance(layers[-1], nn.Linear) and layers[-1].out_features == outputs:
        return _placed(model, layers[-1])
    return None


def _placed(model: nn.Module, layer: nn.Linear) -> LinearLayer | None:
    places, end = dict[int, slice](), 0
    for parameter in model.parameters():
        if parameter.requires_grad:
            places[id(parameter)] = slice(end, end + parameter.numel())
            end += parameter.numel()
    weight, bias = places.get(id(layer.weight)), places.get(id(layer.bias))
    if weight is None or bias is None:
        return None
    return LinearLayer(weight, bias, layer.out_features, layer.in_features)
