"""Lets a round begin when a module that holds an optimizer's parameters is called in training."""

import warnings
import weakref
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle


class ForwardHook:
    """A hook before the forward passes of all modules, which is there only while a round is to begin.

    It does not keep the optimizer alive.
    """

    def __init__(self, begin_round: Callable[[], None], parameters: Iterable[Tensor]) -> None:
        """`begin_round` is a method of the optimizer."""
        self._begin_round, self._own = weakref.WeakMethod(begin_round), {id(p) for p in parameters}
        self._handle: RemovableHandle | None = None
        # The hook fires once only, also for a compiled module.
        warnings.filterwarnings("ignore", message=r"Using `torch.compile\(module\)` when there are global hooks")

    @property
    def watches(self) -> bool:
        return self._handle is not None

    def watch(self, forward: bool) -> None:
        """Whether the next forward pass in training begins a round."""
        if self._handle is not None:
            self._handle.remove()
        self._handle = _registered(self._begin_round, self._own) if forward else None


def _registered(reference: "weakref.WeakMethod[Callable[[], None]]", own: set[int]) -> RemovableHandle:
    def trained(p: Tensor) -> bool:
        return p.requires_grad and id(p) in own  # a GAN's loop freezes one network while it trains the other

    def begin(module: nn.Module, inputs: object) -> None:
        begin_round = reference()
        if begin_round is None or not module.training or not torch.is_grad_enabled():
            return
        if any(map(trained, module.parameters())):
            begin_round()

    begin._torchdynamo_disable = True  # type: ignore[attr-defined]  # torch.compiler.disable takes seconds to import
    return register_module_forward_pre_hook(begin)
