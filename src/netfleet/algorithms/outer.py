"""Any method with an outer step: what averaging does at an exchange, Nesterov's momentum does on the exchanged change.

| paper (DiLoCo) | here | |
|---|---|---|
| θ⁽ᵗ⁻¹⁾ | `outer_start` | a worker's model where its steps since the last exchange began |
| Δ | | the change since then, with the sign of a gradient |
| | `outer_u` | the outer momentum |
| outer learning rate, μ | `rate`, `momentum` | 0.7 and 0.9 |

    Δᵢ = startᵢ − xᵢ                                                             (1)
    u ← μ u + W Δ                                                               (2)
    x ← W start − rate (W Δ + μ u)                                              (3)

On the exact average this is DiLoCo, where W start = start. On a graph both start and Δ are sent, so a message has one
vector more. NoLoCo is its kin: it averages with one random other worker, and has a term in the momentum that pulls the
models together, which W does here. With rate = 1 and μ = 0, (3) is W x. At the fixed point ΣΔ = 0, as with averaging,
so a method that tracks gradients stays exact. Methods that learn from x − W x or send differences themselves are
rejected.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from netfleet.algorithms.base import Algorithm, AnyState, Conserved, ExchangeStep, Mix, Momentum, Problem, check_ranges
from netfleet.algorithms.wrapper import Wrapper
from netfleet.errors import ConfigError
from netfleet.registry import Registry, Spec


@dataclass(frozen=True, kw_only=True)
class Nesterov:
    """Nesterov's momentum on the exchanged change, as in DiLoCo."""

    momentum: Momentum = 0.9
    rate: ExchangeStep = 0.7

    def __post_init__(self) -> None:
        check_ranges(self, "outer: ")


OUTER: Registry[Nesterov] = Registry("outer step", returns=Nesterov)
OUTER.register("nesterov")(Nesterov)
_FIELDS = ["outer_start", "outer_u"]


@dataclass(frozen=True, kw_only=True)
class Outer(Wrapper):
    """A method whose exchanges make an outer step."""

    outer: Nesterov
    citation = r"""@article{douillard2023diloco,
  title   = {{DiLoCo}: Distributed Low-Communication Training of Language Models},
  author  = {Douillard, Arthur and Feng, Qixuan and Rusu, Andrei A. and Chhaparia, Rachita and Donchev, Yani and
             Kuncoro, Adhiguna and Ranzato, Marc'Aurelio and Szlam, Arthur and Shen, Jiajun},
  journal = {arXiv preprint arXiv:2311.08105},
  year    = {2023}
}
@article{kolehmainen2025noloco,
  title   = {{NoLoCo}: No-all-reduce Low Communication Training Method for Large Models},
  author  = {Kolehmainen, Jari and Blagoev, Nikolay and Donaghy, John and Ersoy, O{\u g}uzhan and Nies, Christopher},
  journal = {arXiv preprint arXiv:2506.10911},
  year    = {2025}
}"""

    def __post_init__(self) -> None:
        method = self.method
        if not method.exchanges_models or getattr(method, "gossip", 1) > 1:
            raise ConfigError(
                f"outer: {method.title} does more with an exchange than to average the models once, so no outer step "
                f"can take its place; use a method such as k-gt, net-fleet, ld-sgd or fedavg"
            )
        fed = method.conserves
        moved = None if fed is None else Conserved(fed.field, fed.argument + 1)  # the models are two arguments now
        self._describe(_FIELDS, title=f"{method.title}, outer nesterov", conserves=moved, exchanges_models=False)

    def init(self, f: Problem, mix: Mix, x: Tensor) -> AnyState:
        return self._whole(self.method.init(f, mix, x), x, torch.zeros_like(x))

    def round(self, f: Problem, mix: Mix, t: int, s: Any) -> AnyState:
        parts = list(s)
        del s
        inner = [self._divided(parts)]
        exchange = _OuterExchange(self.outer, mix, *parts)
        parts.clear()
        state = self.method.round(f, exchange, t, self.method.State._make(inner.pop()))
        return self._whole(state, exchange.start, exchange.u)

    def _whole(self, inner: AnyState, *kept: Tensor) -> AnyState:
        return cast(AnyState, self.State._make([*inner, *kept]))


class _OuterExchange:
    """A `mix` that makes an outer step with its first argument."""

    def __init__(self, outer: Nesterov, mix: Mix, start: Tensor, u: Tensor) -> None:
        self._outer, self._mix, self.start, self.u = outer, mix, start, u

    def __call__(self, x: Tensor, *others: Tensor) -> Any:
        momentum, rate = self._outer.momentum, self._outer.rate
        x, change, *mixed = self._mix(self.start, self.start - x, *others)  # eq. (1)
        self.u = change.add(self.u, alpha=momentum)  # eq. (2)
        x.sub_(change.add_(self.u, alpha=momentum), alpha=rate)  # eq. (3)
        self.start = x.clone()  # the method goes on to change x
        return (x, *mixed) if mixed else x


def with_outer(method: Algorithm, outer: Spec | Nesterov = "nesterov") -> Outer:
    """The method with an outer step: "nesterov", a table with its momentum and rate, or `Nesterov(…)`."""
    return Outer(method=method, outer=outer if isinstance(outer, Nesterov) else OUTER.build(outer))
