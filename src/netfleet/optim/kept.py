"""What a loop keeps beside the method's state: a scheduler, its position in the data, the model's buffers, …"""

import json
import weakref
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from netfleet.engines.job import LoopState
from netfleet.errors import CheckpointError, ConfigError
from netfleet.optim.batches import Batches

if TYPE_CHECKING:
    from netfleet.optim.loop_problem import Rates


class Stateful(Protocol):
    """A scheduler, a scaler, a data loader with a position, …"""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Any, /) -> object: ...


class OwnSettings:
    """An optimizer's own: its parameter groups as a scheduler has set them, and the last rates."""

    def __init__(self, optimizer: Optimizer, rates: "Rates") -> None:
        self._optimizer, self._rates = weakref.ref(optimizer), rates

    @property
    def _groups(self) -> list[dict[str, Any]]:
        optimizer = self._optimizer()
        return [] if optimizer is None else optimizer.param_groups

    def state_dict(self) -> dict[str, Any]:
        groups = [{name: value for name, value in group.items() if name != "params"} for group in self._groups]
        return {"groups": groups, "rates": asdict(self._rates)}

    def load_state_dict(self, state: Any) -> None:
        for group, saved in zip(self._groups, state["groups"], strict=True):
            group.update(saved)
        for name, value in state["rates"].items():
            setattr(self._rates, name, value)


class Kept:
    """The objects whose state belongs to a checkpoint, by name."""

    def __init__(self, trained: Iterable[Tensor] = ()) -> None:
        self._trained = {id(p) for p in trained}
        self._objects: dict[str, Stateful] = {}
        self._loaded: LoopState | None = None
        self._whole = True

    @property
    def model(self) -> nn.Module | None:
        """The module among them that is trained, if there is one."""
        return next(
            (each for each in self._objects.values() if isinstance(each, nn.Module) and self._trains(each)), None
        )

    def _trains(self, module: nn.Module) -> bool:
        return any(id(p) in self._trained for p in module.parameters())

    def frozen(self) -> list[Tensor]:
        """The frozen parameters of the model."""
        return [] if self.model is None else [p for p in self.model.parameters() if not p.requires_grad]

    def add(self, name: str, thing: Stateful) -> None:
        """Keep a thing; it gets its state at once where a state was loaded before."""
        if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            raise ConfigError(
                f"keep: {name} is a {type(thing).__name__}, which has no state_dict and load_state_dict; give it both"
            )
        self._objects[name] = thing
        if self._loaded is not None:
            self._restore_one(name, thing)

    def state(self) -> LoopState:
        """What is to be saved."""
        tensors: dict[str, Tensor] = {}
        tree = {name: _pack(self._state_of(thing), name, tensors) for name, thing in self._objects.items()}
        return LoopState(tensors, json.dumps(tree))

    def restore(self, loaded: LoopState | None, whole: bool = True) -> None:
        """Give the things their saved states; those that are kept later get theirs then.

        If the state is not `whole`, it is another worker's: then only the count of batches is restored of the data.
        """
        self._loaded, self._whole = loaded, whole
        if loaded is not None:
            for name, thing in self._objects.items():
                self._restore_one(name, thing)

    def _restore_one(self, name: str, thing: Stateful) -> None:
        assert self._loaded is not None
        found = json.loads(self._loaded.text)
        if name not in found:
            known = ", ".join(sorted(found)) or "nothing"
            raise CheckpointError(f"the saved state has no {name!r}, only {known}; keep the same things as before")
        state = _unpack(found[name], self._loaded.tensors)
        if isinstance(thing, Batches) and not self._whole:
            thing.load_progress(state)
        elif isinstance(thing, nn.Module):
            thing.load_state_dict(state, strict=False)
        else:
            thing.load_state_dict(state)

    def _state_of(self, thing: Stateful) -> dict[str, Any]:
        """Of the model: its buffers, and parameters that others train; its own are in the method's state, or frozen.

        A module that is not trained, such as a moving average of the model, has all its own.
        """
        if not isinstance(thing, nn.Module) or not self._trains(thing):
            return thing.state_dict()
        left_out = {
            name
            for name, p in thing.named_parameters(remove_duplicate=False)
            if id(p) in self._trained or not p.requires_grad
        }
        return {name: value for name, value in thing.state_dict().items() if name not in left_out}


def _pack(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """A tree of dicts and lists as JSON, its tensors apart."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach().clone()
        return {"tensor": path}
    if isinstance(value, dict):
        pairs = [[_pack(k, path, tensors), _pack(v, f"{path}/{k}", tensors)] for k, v in value.items()]
        return {"dict": pairs}
    if isinstance(value, list | tuple):
        parts = [_pack(v, f"{path}/{i}", tensors) for i, v in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": parts}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(
        f"keep: {path} is a {type(value).__name__}; a saved state has numbers, texts, tensors, lists and dicts only"
    )


def _unpack(value: Any, tensors: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "tensor":
        return tensors[inner].clone()
    if kind == "dict":
        return {_unpack(k, tensors): _unpack(v, tensors) for k, v in inner}
    parts = [_unpack(v, tensors) for v in inner]
    return tuple(parts) if kind == "tuple" else parts
