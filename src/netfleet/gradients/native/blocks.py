"""Recognises a residual network with batch or group normalisation, however its author wrote it.

The model is traced with `torch.fx`. It is a residual network if it is a 3×3 convolution, then blocks of two 3×3
convolutions around which the block's input is added (as it is, or through a 1×1 convolution), then the mean over all
pixels and a linear layer; every convolution is without bias and followed by a normalisation, with ReLU after the first
convolution, after each block's first and after each sum. Anything else is not, and runs in PyTorch.
"""

import copy
import operator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from netfleet.gradients.native.layers import NotRecognised, pair, traced

MOST_CHANNELS = 512  # ResNet-18 of the usual width; faster than PyTorch up to there, and not tried beyond
MOST_LAYERS = 64
CHANNELS_TOGETHER = 4  # the numbers of channels must be multiples (Q in lanes.h)
_EPSILON, _MOMENTUM = 1e-5, 0.1  # torch's defaults, and those of residual.cpp
_ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")
_Value = tuple[Any, ...]  # what a node computes: its kind, the number of its layer or block, a sum's other part


@dataclass(frozen=True)
class Layer:
    """One convolution with its normalisation, as `residual.cpp` reads it."""

    kernel: int
    stride: int
    cin: int
    cout: int
    height: int
    width: int
    weight: int  # offset in the flat vector of parameters
    groups: int = 0  # of a group normalisation; 0: batch normalisation
    scale: int = -1
    shift: int = -1
    statistics: int = -1  # offset in the flat vector of buffers

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one sample's output."""
        return self.cout, (self.height - 1) // self.stride + 1, (self.width - 1) // self.stride + 1


@dataclass(frozen=True)
class Block:
    """The numbers of a block's layers; skip = -1: its input is added as it is."""

    first: int
    second: int
    skip: int


@dataclass(frozen=True)
class Network:
    """A residual network as `residual.cpp` reads it."""

    layers: tuple[Layer, ...]
    blocks: tuple[Block, ...]
    outputs: int
    weight: int  # of the linear layer
    bias: int  # -1 without

    @property
    def couples_samples(self) -> bool:
        """Whether a sample's output depends on the others of its batch, in training."""
        return any(layer.groups == 0 for layer in self.layers)


def recognise_blocks(model: nn.Module, inputs: tuple[int, ...], moving: frozenset[str]) -> Network | None:
    """The network that a model is on inputs of this shape, or None; `moving` are its running statistics."""
    try:
        if len(inputs) != 3 or moving != {name for name, _ in model.named_buffers()}:
            raise NotRecognised
        training, evaluating = (_Reader(model, inputs, mode).network() for mode in (True, False))
    except NotRecognised:
        return None
    return training if training == evaluating else None


class _Reader:
    """Walks a traced model and writes down its layers and blocks."""

    def __init__(self, model: nn.Module, inputs: tuple[int, ...], training: bool) -> None:
        model = copy.deepcopy(model).train(training)
        self.training, self.inputs, self.model = training, inputs, traced(model)
        self.layers: list[Layer] = []
        self.sources: list[_Value] = []  # what each layer's convolution is applied to
        self.blocks: list[Block] = []
        self.linear: nn.Linear | None = None
        self.parameters = _offsets(list(model.parameters()))  # that no layer has taken yet
        self.buffers = _offsets(list(model.buffers()))

    def network(self) -> Network:
        values: dict[fx.Node, _Value] = {}
        for node in self.model.graph.nodes:
            if node.op == "placeholder":
                _require(not values)
                values[node] = ("input",)
            elif node.op == "output":
                _require(values.get(node.args[0]) == ("scores",))
            else:
                _require(not set(node.kwargs) - {"inplace"} and bool(node.args) and node.args[0] in values)
                values[node] = self._value(node, values)
                _require(len(node.users) == 1 or values[node][0] == "output")  # in-place operations are safe then
        layers = [0, *(n for block in self.blocks for n in (block.first, block.second, block.skip) if n >= 0)]
        _require(sorted(layers) == list(range(len(self.layers))) and len(layers) <= MOST_LAYERS)
        assert self.linear is not None
        weight, bias = self._take(self.linear.weight), -1 if self.linear.bias is None else self._take(self.linear.bias)
        _require(not self.parameters and not self.buffers)
        return Network(tuple(self.layers), tuple(self.blocks), self.linear.out_features, weight, bias)

    def _value(self, node: fx.Node, values: dict[fx.Node, _Value]) -> _Value:
        before, rest = values[node.args[0]], node.args[1:]  # type: ignore[index]
        if node.op != "call_module":
            if node.target in (F.relu, torch.relu, "relu", "relu_") and not rest:
                return self._relu(before)
            if node.target in _ADDITIONS and len(rest) == 1 and rest[0] in values:
                return self._sum(before, values[rest[0]])  # type: ignore[index]
            if node.target is F.adaptive_avg_pool2d and rest in ((1,), ((1, 1),)):
                return self._mean(before)
            _require(node.target in (torch.flatten, "flatten") and rest == (1,) and before == ("mean",))
            return ("flat",)
        module = self.model.get_submodule(str(node.target))
        _require(not rest and module.training == self.training)
        if type(module) is nn.ReLU:
            return self._relu(before)
        if type(module) is nn.Conv2d:
            return self._convolution(module, before)
        if isinstance(module, nn.BatchNorm2d | nn.GroupNorm):
            return self._normalisation(module, before)
        if type(module) is nn.AdaptiveAvgPool2d:
            _require(pair(module.output_size) == (1, 1))
            return self._mean(before)
        if type(module) is nn.Flatten:
            _require(before == ("mean",) and (module.start_dim, module.end_dim) == (1, -1))
            return ("flat",)
        if type(module) is nn.Linear and before == ("flat",):
            self.linear = module
            _require(module.in_features == self._shape(("output", len(self.blocks)))[0])
            return ("scores",)
        _require(type(module) is nn.Identity)
        return before

    def _shape(self, value: _Value) -> tuple[int, ...]:
        """Of one sample."""
        if value[0] == "input":
            return self.inputs
        if value[0] == "output":
            return self.layers[self.blocks[value[1] - 1].second if value[1] else 0].shape
        _require(value[0] in ("hidden", "normalised"))
        return self.layers[value[1]].shape

    def _convolution(self, module: nn.Conv2d, before: _Value) -> _Value:
        _require(before[0] in ("input", "hidden", "output") and (before[0] == "input") == (not self.layers))
        kernel, stride = module.kernel_size[0], module.stride[0]
        _require(module.kernel_size == (kernel, kernel) and kernel in (1, 3) and module.padding_mode == "zeros")
        _require(module.stride == (stride, stride) and stride in (1, 2) and module.padding == (kernel // 2,) * 2)
        _require(module.dilation == (1, 1) and module.groups == 1 and module.bias is None)
        shape = self._shape(before)
        _require(shape[0] == module.in_channels and module.out_channels % CHANNELS_TOGETHER == 0)
        _require(module.out_channels <= MOST_CHANNELS)
        weight = self._take(module.weight)
        self.layers.append(Layer(kernel, stride, shape[0], module.out_channels, shape[1], shape[2], weight))
        self.sources.append(before)
        return "convolved", len(self.layers) - 1

    def _normalisation(self, module: nn.BatchNorm2d | nn.GroupNorm, before: _Value) -> _Value:
        _require(before[0] == "convolved" and type(module) in (nn.BatchNorm2d, nn.GroupNorm))
        _require(module.eps == _EPSILON and module.affine)
        layer, groups, statistics = self.layers[before[1]], 0, -1
        if isinstance(module, nn.GroupNorm):
            groups = module.num_groups
        else:
            mean, variance, count = module.running_mean, module.running_var, module.num_batches_tracked
            _require(module.momentum == _MOMENTUM and module.track_running_stats)
            _require(layer.shape[1:] != (1, 1))  # PyTorch refuses one sample of one pixel
            statistics, *others = (self._take_buffer(buffer) for buffer in (mean, variance, count))
            _require(others == [statistics + layer.cout, statistics + 2 * layer.cout])
        places = groups, self._take(module.weight), self._take(module.bias), statistics
        sizes = layer.kernel, layer.stride, layer.cin, layer.cout, layer.height, layer.width, layer.weight
        self.layers[before[1]] = Layer(*sizes, *places)
        return "normalised", before[1]

    def _relu(self, before: _Value) -> _Value:
        if before[0] == "sum":
            _require(before[1] == len(self.blocks) - 1)
            return "output", len(self.blocks)
        _require(before[0] == "normalised")
        if self.sources[before[1]] == ("input",):
            _require(self.layers[before[1]].kernel == 3)
            return "output", 0
        return "hidden", before[1]

    def _sum(self, left: _Value, right: _Value) -> _Value:
        """The end of a block; either part may be the one that skips it."""
        if not self._is_main(left):
            left, right = right, left
        skips = right == ("output", len(self.blocks)) or self._is_side(right)
        _require(self._is_main(left) and skips and self._shape(left) == self._shape(right))
        second = left[1]
        first, skip = self.sources[second][1], -1 if right[0] == "output" else right[1]
        self.blocks.append(Block(first, second, skip))
        return "sum", len(self.blocks) - 1

    def _is_main(self, value: _Value) -> bool:
        if value[0] != "normalised" or self.sources[value[1]][0] != "hidden":
            return False
        second, first = value[1], self.sources[value[1]][1]
        sizes = self.layers[first].kernel, self.layers[second].kernel, self.layers[second].stride
        return self.sources[first] == ("output", len(self.blocks)) and sizes == (3, 3, 1)

    def _is_side(self, value: _Value) -> bool:
        if value[0] != "normalised" or self.sources[value[1]] != ("output", len(self.blocks)):
            return False
        return self.layers[value[1]].kernel == 1

    def _mean(self, before: _Value) -> _Value:
        _require(before == ("output", len(self.blocks)))
        return ("mean",)

    def _take(self, parameter: torch.Tensor) -> int:
        """Where a parameter lies; one that is used twice is not for this path."""
        _require(id(parameter) in self.parameters)
        return self.parameters.pop(id(parameter))

    def _take_buffer(self, buffer: torch.Tensor | None) -> int:
        _require(id(buffer) in self.buffers)
        return self.buffers.pop(id(buffer))


def _offsets(tensors: list[Any]) -> dict[int, int]:
    """Where each lies in the flat vector of all, by its identity."""
    ends = [0]
    for tensor in tensors:
        ends.append(ends[-1] + tensor.numel())
    return {id(tensor): at for tensor, at in zip(tensors, ends, strict=False)}


def _require(condition: bool) -> None:
    if not condition:
        raise NotRecognised
