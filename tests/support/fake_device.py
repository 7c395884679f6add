"""A stand-in for an accelerator on a machine without one: tensors that say they are on "lazy" and refuse the host.

Their numbers are in the host's memory. But, as with a real one, an operation takes tensors of one device only, and
`numpy()` is refused; only copies cross. So a test sees every place that forgets where a tensor is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("lazy:0")
_CROSSING = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class OnDevice(Tensor):
    """A tensor that is elsewhere; `inner` has its numbers."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnDevice:
        strided = inner.layout == torch.strided
        kept = {"strides": inner.stride(), "storage_offset": inner.storage_offset()} if strided else {}
        made: OnDevice = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=DEVICE, **kept)
        made.inner = inner
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"OnDevice({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(function, args, kwargs or {})


class FakeDevice(TorchDispatchMode):
    """Within the context there is such a device; `crossed` counts the bytes that were copied from and to it."""

    def __init__(self) -> None:
        super().__init__()
        self.crossed = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = _dispatch(function, args, kwargs)
        if function in _CROSSING:
            other = args[1] if function is torch.ops.aten.copy_.default else args[0]
            self.crossed += (_elsewhere(found) != _elsewhere(other)) * found.numel() * found.element_size()
        return found


def _elsewhere(value: Any) -> bool:
    return isinstance(value, OnDevice)


def _dispatch(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    flat = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, Tensor)]
    there = any(map(_elsewhere, flat))
    if there and function not in _CROSSING and not all(_elsewhere(each) or each.dim() == 0 for each in flat):
        raise RuntimeError(f"{function}: expected all tensors to be on the same device")
    wanted = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
    stays = there if wanted is None else wanted.type == DEVICE.type
    if function is torch.ops.aten.copy_.default:
        stays = _elsewhere(args[0])
    inner = tree_map(lambda each: each.inner if _elsewhere(each) else each, (args, kwargs))
    if wanted is not None:
        inner[1]["device"] = torch.device("cpu")
    found = function(*inner[0], **inner[1])
    if function is torch.ops.aten._to_copy.default and found is inner[0][0]:
        found = found.clone()
    if function._schema.is_mutable and args and found is (args[0].inner if _elsewhere(args[0]) else args[0]):
        return args[0]
    return tree_map(lambda each: OnDevice(each) if stays and isinstance(each, Tensor) else each, found)
