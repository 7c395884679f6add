"""What an algorithm is: hyper-parameters, `init` and `round`, written once for every engine.

An algorithm knows two things only: `f`, its gradient, and `mix`, its neighbours. Tensors are `[..., d]`, one row per
worker that the engine hosts here: all m in the simulator, one at a site. It may use elementwise maths, `f` and
`mix`; it may not reduce or index over the worker axis (`tests/algorithms/test_conformance.py` catches that).
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeVar, cast, overload

import torch
from torch import Tensor

from netfleet.algorithms.schedules import Schedule, StepSize, as_schedule
from netfleet.errors import ConfigError
from netfleet.problems.base import Problem as Problem  # methods import it from here
from netfleet.registry import Registry

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Mix(Protocol):
    """The only communication: replaces each argument by its W-weighted average over the neighbourhood.

    All arguments of one call travel in one message. The results are new tensors, which may be changed in place; a
    state's tensors and what `f.grad` returns may not. A method lets go of the old state (`del s`) once it needs it no
    more: an engine that keeps no reference of its own then has that memory for the local steps.
    """

    @overload
    def __call__(self, x: Tensor, /) -> Tensor: ...
    @overload
    def __call__(self, x: Tensor, y: Tensor, /, *more: Tensor) -> tuple[Tensor, ...]: ...


class State(Protocol):
    """A NamedTuple of `[..., d]` tensors, the models first and called `x`.

    Some names mean the same everywhere, and are watched in every History: `y` follows the gradient `g` (or the
    momentum `u`), Σ(yᵢ − gᵢ) = 0; `c` is added to every gradient as a correction, Σcᵢ = 0;
    `v` is the server's mean of the `v_i`.
    """

    @property
    def x(self) -> Tensor: ...
    @property
    def _fields(self) -> tuple[str, ...]: ...
    def __iter__(self) -> Iterator[Tensor]: ...


AnyState = State  # within an Algorithm, `State` is its own
S = TypeVar("S", bound=State)


def with_values(state: S, values: Iterable[Tensor]) -> S:
    """A State of the same type with other tensors, one for each field."""
    return type(state)(*values)


class Conserved(NamedTuple):
    """A field of the State whose sum over the workers exchanges do not change, and which argument of `mix` feeds it.

    An exchange adds to it factor · Σⱼ wᵢⱼ (vⱼ − vᵢ), where v is that argument and the factor is `Algorithm.flow(t)`.
    """

    field: str
    argument: int


def _check_momentum(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ConfigError(f"{name}, the momentum, must lie in [0, 1), got {value!r}; 0.9 is usual")


def _check_positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ConfigError(f"{name} must be a finite number above 0, got {value!r}; 1 is usual")


def _check_period(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name}, in rounds, must be at least 1, got {value!r}")


# Types of hyper-parameters with their checks, which `Algorithm` makes.
Momentum = Annotated[float, _check_momentum]
ExchangeStep = Annotated[float, _check_positive]
Period = Annotated[int, _check_period]


def check_ranges(made: "DataclassInstance", where: str = "") -> None:
    """Make the checks of the types above for the fields of a dataclass."""
    for field in fields(made):
        for check in getattr(field.type, "__metadata__", ()):
            check(f"{where}{field.name}", getattr(made, field.name))


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC):
    """Base of all methods: a frozen dataclass whose fields are the hyper-parameters, with a `State` and a `round`.

    The base has the step size `eta`; a field `K` is the number of local steps per round. `examples/my_algorithm.py` is
    a whole method. Rounds are t = 0, 1, … The first step of a round is k = 1: its mini-batch is `f.sample(t, 1)`, that
    of the next step `f.sample(t, 2)`, up to K. A gradient that `init` computes takes `f.sample(0, 0)`. The same (t, k)
    gives the same mini-batch in every engine and after a resume.

    What a method of your own sets, besides `title`, its name in tables and figures:

    - `uses_step = True` if its local moves are `f.step(x, direction, eta)`, which is x ← x − η direction unless a local
      optimizer takes its place. A method that moves x itself cannot have one.
    - `exact_with` if it reaches the optimum of heterogeneous objectives with a fixed step size: "any" if its correction
      is learned from gradients, which holds whatever the local optimizer makes of them; "linear" if only where the
      local optimizer is linear, as momentum is.
    - `correction_step` if a correction is learned from x − W x: which part of it, per local step. On a graph it limits
      the momentum of a local optimizer.
    - `exchanges_models = True` if a round has one exchange, its first argument is the models, and nothing is learned
      from x − W x. Then an outer step can take the place of averaging.
    - `server = True` if a server averages the models. `mix` is then the exact average over the workers that take part
      in the round (a field `participation` is their share), whatever the topology. Otherwise `mix` is W.
    - `divides_by_eta = True` if a formula divides by the step size. A schedule that reaches 0 is then refused.
    - `sums_differences = True` if a correction adds up x − W x over the rounds, as in D² and LED. A network or codec
      on which such a sum grows without bound is then refused.
    - `least_eigenvalue` if it diverges for weights W with an eigenvalue below this number. Such weights are refused.
    - `conserves` if Σᵢ over the workers of a field of the State must stay what it is, as with gradient tracking. Only
      sites that lose a neighbour need it: they take back what came from it, and must know which argument of `mix`
      feeds the field. `Conserved("y", 1)` says that `y` is fed by the second argument, as in `x, y = mix(x, y)`.
      `flow(t)` is the factor: override it if the field receives W y − y times something else than 1. Without
      `conserves`, a method that has `y` or `c` runs at sites whose neighbours always come back (patience = 0).
    - `assumes` and `citation` are texts for the tables of methods.
    """

    eta: StepSize = 0.01

    State: ClassVar[type[NamedTuple]]
    server: ClassVar[bool] = False
    divides_by_eta: ClassVar[bool] = False
    sums_differences: ClassVar[bool] = False
    least_eigenvalue: ClassVar[float] = -1.0
    conserves: ClassVar[Conserved | None] = None
    uses_step: ClassVar[bool] = False
    exact_with: ClassVar[Literal["any", "linear", "none"]] = "none"
    exchanges_models: ClassVar[bool] = False
    correction_step: ClassVar[float] = 0.0
    title: ClassVar[str] = ""
    #: What its paper's convergence theorem asks of the difference between the workers' data.
    assumes: ClassVar[str] = "none stated"
    citation: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.title = cls.__dict__.get("title", cls.__name__)

    def __post_init__(self) -> None:
        check_ranges(self)
        object.__setattr__(self, "eta", as_schedule(self.eta))
        K = getattr(self, "K", 1)
        if not isinstance(K, int) or K < 1:
            raise ConfigError(f"K, the number of local steps per round, must be a whole number from 1 on, got {K!r}")
        if not hasattr(type(self), "State"):
            raise ConfigError(f"{type(self).__name__} must have a class State(NamedTuple) whose first field is x")

    def step_size(self, t: int) -> float:
        """η of round t."""
        return self.eta(t)  # type: ignore[operator]

    def with_eta(self, eta: float | Schedule) -> Self:
        """The same method with another step size."""
        return replace(self, eta=eta)

    def flow(self, t: int) -> float:
        """The factor with which round t's differences enter what it conserves."""
        return 1.0

    def remedy(self, least: float) -> str:
        """What to do about weights whose least eigenvalue is too low."""
        return 'use weights = "laplacian", whose least is 1/3'

    @property
    def remedy_if_diverged(self) -> str:
        """What to do about a run that diverged."""
        if not self.sums_differences:
            return "Use a smaller step size (eta)"
        return (
            "Use a smaller step size (eta) only on a fixed graph without failures; where links fail or change, use a "
            "method that tracks gradients (net-fleet, k-gt, …), since smaller steps make it worse there"
        )

    def init(self, f: Problem, mix: Mix, x: Tensor) -> AnyState:
        """The state before round 0, from the common initial model in every row of x; all else begins at 0."""
        return cast(AnyState, self.State._make([x, *(torch.zeros_like(x) for _ in self.State._fields[1:])]))

    @abstractmethod
    def round(self, f: Problem, mix: Mix, t: int, s: Any) -> AnyState:
        """The state after round t from the state `s` before it; the first of its steps is k = 1."""


def short_citation(bibtex: str) -> str:
    """`Zhang et al. 2022; …` from BibTeX."""
    entries = re.findall(r"author\s*=\s*\{(.*?)\},\n.*?year\s*=\s*\{(\d+)\}", bibtex, re.DOTALL)
    return "; ".join(f"{a.split(',')[0]}{' et al.' if ' and ' in a else ''} {year}" for a, year in entries)


ALGORITHMS: Registry[Algorithm] = Registry("algorithm", returns=Algorithm)
