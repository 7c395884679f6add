"""Recognises a model that is a chain of layers, however its author wrote it (`nn.Sequential` or a `forward`).

The model is traced with `torch.fx`. It is a chain if it is convolutions, each with ReLU and max-pooling in either order
or without, then a flattening, then linear layers with ReLU or nothing between them. Anything else is not, and runs
in PyTorch.
"""

import copy
import math
import operator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

#: Larger matrices after the first layer are left to the BLAS library behind PyTorch (netfleet bench gradients).
LARGEST_MATRIX = 1 << 19
#: Numbers that all layers' inputs may have per sample: a thread keeps those of 32 samples, and their gradients.
MOST_ACTIVATIONS = 1 << 18
MOST_LAYERS = 32
_POOL_ARGUMENTS = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")


@dataclass(frozen=True)
class Layer:
    """One layer with what follows it, as `chain.cpp` reads it; a linear layer has kernel 0."""

    kernel_h: int
    kernel_w: int
    cin: int
    height: int
    width: int
    cout: int
    stride: int
    pad_h: int
    pad_w: int
    pool: int
    relu: int
    weight: int  # offsets in the flat vector of parameters
    bias: int  # -1 without

    @property
    def inputs(self) -> int:
        """Numbers that one sample brings to this layer, the border included."""
        return self.cin * (self.height + 2 * self.pad_h) * (self.width + 2 * self.pad_w)

    @property
    def rows(self) -> int:
        """Height of a convolution's output before pooling."""
        return (self.height + 2 * self.pad_h - self.kernel_h) // self.stride + 1

    @property
    def columns(self) -> int:
        """Width of a convolution's output before pooling."""
        return (self.width + 2 * self.pad_w - self.kernel_w) // self.stride + 1


class NotRecognised(Exception):
    """The model is not of the kind that is looked for."""


def recognise(model: nn.Module, inputs: tuple[int, ...]) -> list[Layer] | None:
    """The layers of a model that is a chain on inputs of this shape, or None."""
    try:
        training, evaluating = (_Reader(model, inputs, mode).layers() for mode in (True, False))
    except NotRecognised:
        return None
    return training if training == evaluating else None


def traced(model: nn.Module) -> fx.GraphModule:
    """The model as a graph of operations, if nothing is hidden beside it."""
    if any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules()):
        raise NotRecognised
    if any(not p.requires_grad for p in model.parameters()):
        raise NotRecognised
    try:
        return fx.symbolic_trace(model)
    except Exception as error:  # whatever a forward pass does that cannot be traced
        raise NotRecognised from error


class _Reader:
    """Walks a traced model and writes down its layers."""

    def __init__(self, model: nn.Module, inputs: tuple[int, ...], training: bool) -> None:
        model = copy.deepcopy(model).train(training)
        self._require(not any(True for _ in model.buffers()))
        self.model, self.shape = traced(model), inputs
        self.done: list[Layer] = []
        self.offsets: dict[int, int] = {}  # of the parameters that no layer has taken yet
        at = 0
        for parameter in model.parameters():
            self.offsets[id(parameter)] = at
            at += parameter.numel()

    def layers(self) -> list[Layer]:
        value: fx.Node | None = None  # the node whose output the next layer must take
        for node in self.model.graph.nodes:
            if node.op == "placeholder" and value is None:
                value = node
            elif node.op == "output":
                self._require(node.args[0] is value)
            elif not self._only_a_size(node):
                self._require(bool(node.args) and node.args[0] is value)
                self._read(node)
                value = node
        self._require(bool(self.done) and len(self.done) <= MOST_LAYERS and len(self.shape) == 1)
        self._require(sum(layer.inputs for layer in self.done) <= MOST_ACTIVATIONS)
        self._require(self.done[-1].kernel_h == 0 and not self.done[-1].relu and not self.offsets)
        return self.done

    def _only_a_size(self, node: fx.Node) -> bool:
        """`x.size(0)` and `x.shape[0]`, as they are used in `x.view(x.size(0), -1)`."""
        if node.op == "call_method" and node.target == "size":
            return node.args[1:] == (0,)
        if node.target is getattr:
            return node.args[1] == "shape"
        return node.target is operator.getitem and node.args[0].target is getattr and node.args[1:] == (0,)  # type: ignore[union-attr]

    def _read(self, node: fx.Node) -> None:
        kind, options = self._operation(node)
        if kind == "relu":
            self._require(bool(self.done))
            self.done[-1] = replace(self.done[-1], relu=1)
        elif kind == "max_pool2d":
            self._pool(options)
        elif kind == "flatten":
            self.shape = (math.prod(self.shape),)
        elif isinstance(kind, nn.Conv2d):
            self._conv(kind)
        elif isinstance(kind, nn.Linear):
            self._linear(kind)
        else:
            self._require(kind == "identity")

    def _operation(self, node: fx.Node) -> tuple[Any, dict[str, Any]]:
        """What a node does, whether it was written as a module, a function or a method."""
        rest = node.args[1:]
        if node.op == "call_module":
            module = self.model.get_submodule(str(node.target))
            self._require(len(node.args) == 1 and not node.kwargs)
            if type(module) in (nn.Conv2d, nn.Linear):
                return module, {}
            if type(module) is nn.MaxPool2d:
                return "max_pool2d", {name: getattr(module, name) for name in module.__constants__}
            if type(module) is nn.Flatten:
                self._require((module.start_dim, module.end_dim) == (1, -1))
            return {nn.ReLU: "relu", nn.Flatten: "flatten", nn.Identity: "identity"}.get(type(module)), {}
        if node.target in (F.relu, torch.relu, "relu", "relu_"):
            return "relu", {}
        if node.target is F.max_pool2d:
            return "max_pool2d", dict(zip(_POOL_ARGUMENTS, rest, strict=False)) | node.kwargs
        if node.target in (torch.flatten, "flatten"):
            self._require((rest, node.kwargs) in (((1,), {}), ((), {"start_dim": 1})))
            return "flatten", {}
        if node.target in ("view", "reshape"):
            size = math.prod(self.shape)
            by_size = len(rest) == 2 and isinstance(rest[0], fx.Node) and rest[1] in (-1, size)
            self._require(by_size or rest == (-1, size))
            return "flatten", {}
        return None, {}

    def _pool(self, options: dict[str, Any]) -> None:
        self._require(bool(self.done) and self.done[-1].pool == 1 and len(self.shape) == 3)
        size, stride = pair(options["kernel_size"]), pair(options.get("stride") or options["kernel_size"])
        plain = pair(options.get("padding", 0)) == (0, 0) and pair(options.get("dilation", 1)) == (1, 1)
        plain = plain and not options.get("ceil_mode") and not options.get("return_indices")
        self._require(plain and size == stride and size[0] == size[1] and size[0] <= 15)
        channels, height, width = self.shape
        self.shape = (channels, height // size[0], width // size[0])
        self._require(min(self.shape) > 0)
        self.done[-1] = replace(self.done[-1], pool=size[0])

    def _conv(self, module: nn.Conv2d) -> None:
        self._require(len(self.shape) == 3 and module.groups == 1 and module.dilation == (1, 1))
        self._require(module.padding_mode == "zeros" and not isinstance(module.padding, str))
        self._require(module.stride[0] == module.stride[1] and self.shape[0] == module.in_channels)
        kernel, padding = pair(module.kernel_size), pair(module.padding)
        self._add(module, *kernel, *self.shape, module.out_channels, module.stride[0], *padding)
        self.shape = (module.out_channels, self.done[-1].rows, self.done[-1].columns)
        self._require(min(self.shape) > 0)

    def _linear(self, module: nn.Linear) -> None:
        self._require(self.shape == (module.in_features,))
        self._add(module, 0, 0, module.in_features, 1, 1, module.out_features, 1, 0, 0)
        self.shape = (module.out_features,)

    def _add(self, module: nn.Conv2d | nn.Linear, *sizes: int) -> None:
        """A layer of these sizes; one whose parameters are used twice is not for a chain."""
        self._require(not self.done or module.weight.numel() <= LARGEST_MATRIX)
        self._require(id(module.weight) in self.offsets)
        weight = self.offsets.pop(id(module.weight))
        self._require(module.bias is None or id(module.bias) in self.offsets)
        bias = -1 if module.bias is None else self.offsets.pop(id(module.bias))
        self.done.append(Layer(*(*sizes, 1, 0, weight, bias)))

    def _require(self, condition: bool) -> None:
        if not condition:
            raise NotRecognised


def pair(value: Any) -> tuple[int, int]:
    """An option that may be one number for both directions."""
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))
