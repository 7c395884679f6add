"""Any method with a local optimizer: how a local step moves along the method's corrected direction.

    x ← x − η P(g + c)

where P is what a `torch.optim` class makes of the direction: momentum, Adam, … Its state stays with the worker, in
fields of the State that begin with `local_`.

A method stays exact on heterogeneous objectives if its corrections are learned from gradients: then g + c = 0 and
Σc = 0 at the fixed point, whatever P is. Corrections that are learned from how far the models moved (D², LED and their
kin) take the distance for η times a gradient. That holds for SGD, and in the long run for momentum β, which moves
1 / (1 − β) times as far (its gain). Other classes are rejected for these methods: the fixed point is the optimum too,
but Adam's distance says nothing about the size of the gradient, and where gradients are small the correction is far
too large to get there (on quadratics scaled by 0.1, LED with AMSGrad stays 4e-3 away, K-GT 1e-15).

On a graph these methods bound the momentum. Without gradients, a round that adds b (1 − β) (x − W x) / η to the
correction, where b is the method's `correction_step` (LED: 1/K), is stable for every eigenvalue of W up to 1 while

    1 − β ≥ b β (heavy ball),  1 − β ≥ b β² (Nesterov)                            (1)

as the eigenvalues of the matrix of a round show: LED with K = 10 takes β up to 10/11, D² up to 1/2. Beyond it models
that agree slowly are thrown apart, whatever the step size. On the exact average there is no such bound.
"""

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from netfleet.algorithms.base import Algorithm, AnyState, Mix, Problem
from netfleet.algorithms.local.optimizers import LocalOptimizer, LocalSpec, field_name, make_local
from netfleet.algorithms.local.steps import LocalSteps, layout_of
from netfleet.algorithms.wrapper import Wrapper
from netfleet.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Local(Wrapper):
    """A method whose local steps a `torch.optim` class makes."""

    local: LocalOptimizer

    def __post_init__(self) -> None:
        title = self.method.title
        if not self.method.uses_step:
            raise ConfigError(
                f"local: {title} makes its steps itself, so they cannot be left to {self.local.name}; use a method "
                f"without a momentum of its own, such as k-gt, net-fleet or ld-sgd"
            )
        if self.method.divides_by_eta and self.local.gain is None:
            raise ConfigError(
                f"local: {title} learns its correction from how far the models moved, which with {self.local.name} "
                f"says nothing about the gradients; use momentum or nesterov, or a method that learns from gradients "
                f"(k-gt, net-fleet, periodical-gt, gt-sgd)"
            )
        if self.method.divides_by_eta and not self.method.server:
            self._check_momentum()
        names = ["local_count", *map(field_name, self.local.found.keys)]
        self._describe(names, title=f"{title}, {self.local.name}", uses_step=False)

    def _check_momentum(self) -> None:
        """Eq. (1)."""
        beta, b = float(self.local.options["momentum"]), self.method.correction_step  # type: ignore[arg-type]
        nesterov = bool(self.local.options["nesterov"])
        if b and 1 - beta < b * beta ** (2 if nesterov else 1):
            most = (math.sqrt(1 + 4 * b) - 1) / (2 * b) if nesterov else 1 / (1 + b)
            raise ConfigError(
                f"local: {self.method.title} diverges with momentum {beta:g}, whatever the step size, because its "
                f"correction changes faster than such a momentum; use momentum = {math.floor(100 * most) / 100:g} or "
                f"less, a larger K, or a method that learns from gradients (k-gt, net-fleet)"
            )

    @property
    def gain(self) -> float:
        """By which its steps are longer than η times the direction; 1 where the method does not ask."""
        return (self.local.gain or 1.0) if self.method.divides_by_eta else 1.0

    def flow(self, t: int) -> float:
        return self.method.flow(t) / self.gain

    def init(self, f: Problem, mix: Mix, x: Tensor) -> AnyState:
        count = torch.zeros(len(x), 1, dtype=torch.int64, device=x.device)
        inner = self.method.init(_Stepping(f, None, self.gain), mix, x)  # type: ignore[arg-type]
        return self._whole(inner, [count, *layout_of(self.local, f).empty(len(self.local.found.keys), x)])

    def round(self, f: Problem, mix: Mix, t: int, s: Any) -> AnyState:
        parts = list(s)
        del s
        inner = [self._divided(parts)]
        steps = LocalSteps(self.local, f, parts[0], parts[1:])
        parts.clear()
        stepping: Any = _Stepping(f, steps, self.gain)
        state = self.method.round(stepping, mix, t, self.method.State._make(inner.pop()))
        return self._whole(state, steps.finish())

    def _whole(self, inner: AnyState, kept: list[Tensor]) -> AnyState:
        return cast(AnyState, self.State._make([*inner, *kept]))


class _Stepping:
    """f whose steps a local optimizer makes."""

    def __init__(self, f: Problem, steps: LocalSteps | None, gain: float) -> None:
        self._f, self._steps, self.gain = f, steps, gain

    def step(self, x: Tensor, direction: Tensor, eta: float) -> None:
        if self._steps is None:
            return self._f.step(x, direction, eta)
        if isinstance(takes := self._f.next_step(), Tensor):
            raise ConfigError("local: workers with different numbers of local steps make plain ones; leave local out")
        return self._steps.step(x, direction, eta) if takes else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._f, name)


def with_local(method: Algorithm, local: LocalSpec | LocalOptimizer) -> Local:
    """The method with a local optimizer: "adamw", a table with options, or a class of `torch.optim`."""
    return Local(method=method, local=make_local(local))
