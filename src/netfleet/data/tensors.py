"""Rows of one or several tensors: a model's inputs may be one tensor, a tuple of them, or a dict by name."""

from collections.abc import Callable

import torch
from torch import Tensor

from netfleet.errors import DataError

#: The first axis of each tensor is the rows. A model is called with one, `*tuple` or `**dict`.
Tensors = Tensor | tuple[Tensor, ...] | dict[str, Tensor]


def leaves(tensors: Tensors) -> list[Tensor]:
    if isinstance(tensors, Tensor):
        return [tensors]
    return list(tensors.values() if isinstance(tensors, dict) else tensors)


def only(tensors: Tensors) -> Tensor:
    """The tensor, where there is just one."""
    if not isinstance(tensors, Tensor):
        raise DataError(f"expected one tensor, got {describe(tensors)}; this works on data of one tensor only")
    return tensors


def mapped(function: Callable[[Tensor], Tensor], tensors: Tensors) -> Tensors:
    """The same structure with the function applied to each tensor."""
    if isinstance(tensors, Tensor):
        return function(tensors)
    if isinstance(tensors, dict):
        return {name: function(tensor) for name, tensor in tensors.items()}
    return tuple(function(tensor) for tensor in tensors)


def take(tensors: Tensors, rows: Tensor) -> Tensors:
    """Some rows of each tensor."""
    return mapped(lambda tensor: tensor[rows], tensors)


def count_rows(tensors: Tensors) -> int:
    return len(leaves(tensors)[0])


def describe(tensors: Tensors) -> str:
    """Types and shapes of a row, for errors: "float32 [1, 28, 28]"."""
    words = [f"{str(t.dtype).removeprefix('torch.')} {list(t.shape[1:])}" for t in leaves(tensors)]
    if isinstance(tensors, dict):
        words = [f"{name}: {word}" for name, word in zip(tensors, words, strict=True)]
    return ", ".join(words)


def same_rows(one: Tensors, other: Tensors) -> bool:
    """Whether the rows of both have the same structure, types and shapes."""
    names = [list(t) if isinstance(t, dict) else None for t in (one, other)]
    return names[0] == names[1] and type(one) is type(other) and describe(one) == describe(other)


def to_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers with a fraction in the run's type; whole numbers (tokens, categories) stay as they are."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
