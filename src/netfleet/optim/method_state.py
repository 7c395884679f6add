"""The method's state between two rounds, as an optimizer's `state_dict` has it."""

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor

from netfleet.algorithms import Algorithm
from netfleet.algorithms.base import AnyState
from netfleet.errors import ConfigError
from netfleet.optim.parameters import FlatParameters

_KEY = "netfleet"  # of all that is not a parameter's own
_ABOUT = {"t", "eta", "of"}


class MethodState:
    """The entry of the method in an optimizer's `state`: its fields, the round, the last rate, what it belongs to."""

    def __init__(self, entries: dict[Any, Any]) -> None:
        self._entries = entries

    def keep(self, t: int, eta: float, of: Mapping[str, str], fields: Mapping[str, Tensor]) -> None:
        self._entries[_KEY] = {"t": t, "eta": eta, "of": dict(of), **fields}

    def put(self, saved: Mapping[str, Any]) -> None:
        """Keep what `loaded` returned."""
        self._entries[_KEY] = dict(saved)

    def take(self) -> dict[str, Any]:
        """The entry, which is gone then, so that the method can release its memory."""
        found: dict[str, Any] = self._entries.pop(_KEY, {})
        return found

    def of(self) -> Mapping[str, str]:
        """What it belongs to."""
        found: Mapping[str, str] = self._entries.get(_KEY, {}).get("of", {})
        return found

    def state(self, method: Algorithm) -> AnyState:
        """The method's state, to be saved."""
        if (found := self._entries.get(_KEY)) is None:
            raise ConfigError("nothing was trained yet, so there is nothing to save; save after a round")
        return cast(AnyState, method.State._make(found[name] for name in method.State._fields))


def loaded(state_dict: Mapping[str, Any], method: Algorithm, flat: FlatParameters) -> dict[str, Any]:
    """A copy of the entry in a `state_dict`, where the parameters are; it must be of this method and model."""
    saved: dict[str, Any] = state_dict["state"].get(_KEY, {})
    names, d = method.State._fields, flat.d
    if saved and (saved.keys() - _ABOUT != set(names) or saved["x"].shape != (1, d)):
        found = {name: tuple(v.shape) for name, v in saved.items() if isinstance(v, Tensor)}
        raise ConfigError(
            f"the loaded state has {found}, but {method.title} with {d} parameters keeps {', '.join(names)}; load the "
            f"state of the same method and model"
        )
    return {name: v.to(flat.device, copy=True) if isinstance(v, Tensor) else v for name, v in saved.items()}
