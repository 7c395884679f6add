"""Which local optimizers there are: every class of `torch.optim`, by name or as it is, with checked options."""

import copy
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from netfleet.errors import ConfigError
from netfleet.problems.base import ParameterGroup
from netfleet.registry import Registry, Spec, parameters, path_of, shown, split

LocalSpec = Spec | type[Optimizer] | Callable[..., Optimizer]
#: By name; `netfleet.algorithms.local` also takes any class.
OPTIMIZERS: Registry[Optimizer] = Registry("local optimizer", returns=Optimizer)
OPTIMIZERS.register("momentum")(functools.partial(optim.SGD, momentum=0.9))
OPTIMIZERS.register("nesterov")(functools.partial(optim.SGD, momentum=0.9, nesterov=True))
#: Classes that treat every number by itself: one tensor then holds the models of many workers.
_ELEMENTWISE: tuple[type[Optimizer], ...] = (optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax)
_ELEMENTWISE += (optim.Adagrad, optim.Adadelta, optim.RMSprop, optim.ASGD, optim.Rprop)
for _class in (*_ELEMENTWISE, optim.Adafactor, optim.Muon):
    OPTIMIZERS.register(_class.__name__.lower())(_class)
#: Not options: what is moved, η, and how torch computes.
WITHHELD = ("params", "lr", "maximize", "foreach", "fused", "capturable", "differentiable")
_TRIAL_SHAPES = ((6,), (2, 3), (2, 1, 3, 1))


class Found(NamedTuple):
    """What a trial shows: the keys of torch's state, and whether a step writes into the gradient."""

    keys: tuple[str, ...]
    alters_gradient: bool


@dataclass(frozen=True)
class LocalOptimizer:
    """A class of `torch.optim` with all its options but the learning rate, which is η."""

    kind: str
    make: type[Optimizer]
    options: Mapping[str, object]
    found: Found = field(init=False, repr=False, compare=False)
    #: Slots by shapes, groups, type and device (`steps.py`).
    layouts: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "found", _trial(self))

    @property
    def name(self) -> str:
        """What it is called in titles."""
        return self.kind.rpartition(":")[2]

    @property
    def elementwise(self) -> bool:
        return self.make in _ELEMENTWISE

    @property
    def gain(self) -> float | None:
        """How far it moves in the long run along a constant direction, per unit of it and of η; None: not linear."""
        if self.make is not optim.SGD:
            return None
        momentum, dampening = (float(self.options[name]) for name in ("momentum", "dampening"))  # type: ignore[arg-type]
        return (1 - dampening) / (1 - momentum) if momentum else 1.0

    def torch(self, tensors: Sequence[nn.Parameter], groups: Iterable[ParameterGroup] = ()) -> Optimizer:
        """A torch optimizer of these tensors, each with the options and the rate of its group."""
        own = list(groups) or [ParameterGroup(())] * len(tensors)
        tables = [{"params": [p], "rate": g.rate, **g.options} for p, g in zip(tensors, own, strict=True)]
        plain = {"foreach": False} if "foreach" in parameters(self.make) else {}  # the least memory
        return self.make(tables, lr=1.0, **self.options, **plain)  # type: ignore[call-arg, arg-type]


def make_local(given: LocalSpec | LocalOptimizer) -> LocalOptimizer:
    """The local optimizer of a name, a table, a class, or a `functools.partial` of a class."""
    if isinstance(given, LocalOptimizer):
        return given
    kind, factory, params = _parts(given)
    if "lr" in params:
        raise ConfigError(f"local: lr = {params['lr']!r} is the method's step size; give it as eta, and leave lr out")
    known: Registry[Optimizer] = Registry("local optimizer")
    known.register(kind)(factory)
    table = known.resolve({"kind": kind, **params}, dict.fromkeys(WITHHELD))
    options = {name: tuple(v) if isinstance(v, list) else v for name, v in table.items() if name != "kind"}
    made = factory.func if isinstance(factory, functools.partial) else factory
    return LocalOptimizer(kind, made, options)  # type: ignore[arg-type]


def _parts(given: LocalSpec) -> tuple[str, Callable[..., Optimizer], dict[str, Any]]:
    """The kind, the factory and the given options."""
    params: dict[str, Any] = {}
    if isinstance(given, str | Mapping):
        kind, params = split(given, "local")
        factory = OPTIMIZERS[kind]
    elif isinstance(given, functools.partial) and not given.args:
        factory, params = given.func, dict(given.keywords)
    else:
        factory = given
    made = factory.func if isinstance(factory, functools.partial) else factory
    if not (isinstance(made, type) and issubclass(made, Optimizer)):
        raise ConfigError(
            f'local: expected a name such as "adamw", a table with a kind, or a class of torch.optim, got '
            f"{shown(given)}; a class with options is functools.partial(torch.optim.AdamW, betas=(0.9, 0.95))"
        )
    return OPTIMIZERS.name_of(factory) or path_of(factory), factory, params


def local_table(local: LocalOptimizer) -> dict[str, Any]:
    """The specification of a local optimizer, every option that a file can say written out."""
    written = {name: list(v) if isinstance(v, tuple) else v for name, v in local.options.items()}
    return {"kind": local.kind, **{name: v for name, v in written.items() if not _without_words(v)}}


def _without_words(value: object) -> bool:
    """Whether TOML has no way to say a value: torch's own default is taken then."""
    return value is None or (isinstance(value, list) and None in value)


def _trial(local: LocalOptimizer) -> Found:
    """One step of each of a few small tensors; raises if the class cannot be a local optimizer."""
    found, failed = [], []
    for shape in _TRIAL_SHAPES:
        try:
            found.append(_try(local, nn.Parameter(torch.ones(shape))))
        except ConfigError:
            raise
        except Exception as error:
            failed.append(" ".join(str(error).split()))
    if not found:
        raise ConfigError(f"local: {local.name} cannot make a step along a given direction: {failed[0]}; {_USABLE}")
    keys = sorted({key for one in found for key in one.keys})
    return Found(tuple(keys), any(one.alters_gradient for one in found))


_USABLE = 'check its options, or use another class, such as local = "adamw"'


def _try(local: LocalOptimizer, p: nn.Parameter) -> Found:
    optimizer = local.torch([p])
    before = _options(optimizer)
    p.grad = direction = torch.full_like(p, 0.5)
    with torch.no_grad():
        optimizer.step()
    if _options(optimizer) != before:
        raise ConfigError(f"local: {local.name} keeps state in its parameter groups, which is not saved; {_USABLE}")
    for key, value in optimizer.state[p].items():
        if not (value is None or isinstance(value, Tensor | int | float)):
            raise ConfigError(f"local: {local.name} keeps {key!r} as a {type(value).__name__}; {_USABLE}")
    if len(optimizer.state) > 1:
        raise ConfigError(f"local: {local.name} keeps state beside that of its parameters; {_USABLE}")
    changed = p.grad is not direction or not torch.equal(direction, torch.full_like(p, 0.5))
    return Found(tuple(key for key, value in optimizer.state[p].items() if value is not None), changed)


def _options(optimizer: Optimizer) -> list[dict[str, Any]]:
    return copy.deepcopy([{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups])


def field_name(key: str) -> str:
    """The State's name for a key of torch's state."""
    return "local_" + re.sub(r"\W", "_", key)
