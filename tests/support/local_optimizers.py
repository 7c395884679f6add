"""Where methods with local optimizers come to rest on heterogeneous quadratics; docs/make_methods.py shows it too."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from netfleet import Algorithm, make_topology
from netfleet.algorithms import with_local
from netfleet.algorithms.build import make_algorithm
from netfleet.problems.synthetic import Quadratics
from support.problems import matrix_mix, rollout

WORKERS, ROUNDS = 4, 160
#: Below the first a method is exact, above the second it is not; nothing lies between.
EXACT, BIASED = 1e-6, 1e-3


class Diagonal(torch.optim.Optimizer):
    """A fixed positive factor for each number, drawn from the first direction, so that it differs between workers."""

    def __init__(self, params: Any, lr: float = 1.0, least: float = 0.3) -> None:
        super().__init__(params, {"lr": lr, "least": least})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state, least = self.state[p], group["least"]
                if not state:
                    state["factor"] = least + (1 - least) * torch.sigmoid(3 * p.grad)
                    state["steps"] = 0
                state["steps"] += 1
                p.sub_(state["factor"] * p.grad, alpha=group["lr"])


#: Local optimizers by name, and a step size for each.
LOCALS: dict[str, tuple[Any, float]] = {
    "none": (None, 0.1),
    "momentum": ({"kind": "momentum", "momentum": 0.5}, 0.05),
    "nesterov": ({"kind": "nesterov", "momentum": 0.5}, 0.05),
    # AMSGrad's factors become constant, so there is a fixed point
    "adamw": ({"kind": "adamw", "weight_decay": 0, "amsgrad": True, "betas": [0.5, 0.9]}, 0.1),
    "a diagonal per worker": (Diagonal, 0.2),
}


def quadratics() -> Quadratics:
    return Quadratics(WORKERS, d=2, dtype=torch.float64)


def build(kind: str, name: str, **options: Any) -> Algorithm:
    """A method with one of the local optimizers; K = 3 where there are local steps."""
    local, eta = LOCALS[name]
    spec = {"kind": kind, "eta": eta, "K": 3, "beta": 0.5, "period": 5}
    known = make_algorithm(kind)
    method = make_algorithm({key: v for key, v in spec.items() if key == "kind" or _takes(known, key)} | options)
    return method if local is None else with_local(method, local)


def _takes(method: Algorithm, key: str) -> bool:
    return hasattr(method, key) and not (key == "beta" and method.divides_by_eta)


def rest(method: Algorithm, rounds: int = ROUNDS) -> torch.Tensor:
    """The models after many rounds with exact gradients."""
    W = np.full((WORKERS, WORKERS), 1 / WORKERS) if method.server else make_topology("ring", workers=WORKERS).W()
    matrix = W if isinstance(W, np.ndarray) else W.toarray()
    models: torch.Tensor = rollout(method, quadratics(), matrix_mix(matrix), rounds)[-1].x
    return models


def distance(method: Algorithm) -> float:
    """How far the worst model ends from the optimum."""
    return float((rest(method) - quadratics().optimum).abs().max())


def decayed(decay: float = 0.2) -> dict[str, float]:
    """How far K-GT with Adam's and with AdamW's weight decay ends from the optimum with that penalty."""
    problem, W = quadratics(), matrix_mix(make_topology("ring", workers=WORKERS).W().toarray())
    right = (problem.A @ problem.b[..., None]).mean(0)
    optimum = torch.linalg.solve(problem.A.mean(0) + decay * torch.eye(problem.d), right)[:, 0]
    ends = {"decay": decay}
    for kind in ("adam", "adamw"):
        table = {"kind": kind, "weight_decay": decay, "amsgrad": True, "betas": [0.5, 0.9]}
        method = with_local(make_algorithm({"kind": "k-gt", "K": 3, "eta": 0.1}), table)
        ends[kind] = float((rollout(method, problem, W, 3 * ROUNDS)[-1].x - optimum).abs().max())
    return ends


def declared_exact(method: Algorithm, name: str) -> bool:
    """What a method says about itself."""
    linear = name in ("none", "momentum", "nesterov")
    return method.exact_with == "any" or (method.exact_with == "linear" and linear)
