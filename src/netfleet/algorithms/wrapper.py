"""A method around another one: what it changes of a round, and what it takes over as it is."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Self

from torch import Tensor

from netfleet.algorithms.base import Algorithm
from netfleet.algorithms.schedules import Schedule, StepSize

_TAKEN_OVER: tuple[str, ...] = ("eta", "title", "server", "divides_by_eta", "sums_differences", "conserves")
_TAKEN_OVER += ("least_eigenvalue", "correction_step", "uses_step", "exact_with", "exchanges_models", "assumes")
#: Parameters that engines and theory ask a method for, where it has them.
_PARAMETERS = ("K", "participation")


@dataclass(frozen=True, kw_only=True)
class Wrapper(Algorithm):
    """A method that runs another one, its `method`, with another f or mix; its State has the method's fields first."""

    method: Algorithm
    eta: StepSize = field(init=False, repr=False)  # the method's
    State: type[NamedTuple] = field(init=False, repr=False, compare=False)  # type: ignore[misc]

    def _describe(self, more: list[str], **own: object) -> None:
        """Set what describes the whole: fields of the State beside the method's, and what differs from it."""
        kept = [*self.method.State.__annotations__.items(), *((name, Tensor) for name in more)]
        values = {name: getattr(self.method, name) for name in _TAKEN_OVER}
        values |= {name: getattr(self.method, name) for name in _PARAMETERS if hasattr(self.method, name)}
        for name, value in (values | own | {"State": NamedTuple("State", kept)}).items():
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[Callable[[], "Wrapper"], tuple[()]]:
        """Pickled as what it is made of: its State is a class of its own, which no module has."""
        given: Mapping[str, Any] = {part.name: getattr(self, part.name) for part in fields(self) if part.init}
        return functools.partial(type(self), **given), ()

    def remedy(self, least: float) -> str:
        return self.method.remedy(least)

    def flow(self, t: int) -> float:
        return self.method.flow(t)

    def with_eta(self, eta: float | Schedule) -> Self:
        return replace(self, method=self.method.with_eta(eta))

    def _divided(self, parts: list[Tensor]) -> tuple[Tensor, ...]:
        """The method's part of the tensors of a State, taken out of the list: nobody else then keeps them."""
        own = len(self.method.State._fields)
        inner = tuple(parts[:own])
        del parts[:own]
        return inner
