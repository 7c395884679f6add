"""What the theory asks of a problem, estimated at a point of any `Problem`: L, σ², ζ² and f(x) − f*.

The theorem's L and σ² hold everywhere; what is seen at a point is at most that, so a step size that the estimates do
not admit is not admissible, and one that they admit may still not be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from netfleet import randomness
from netfleet.metrics import consensus_error
from netfleet.problems.base import Problem
from netfleet.theory import Constants
from netfleet.topology import Topology

_APART = 1 << 40  # rounds from here on are no training's: their mini-batches are drawn for estimates


class Estimate(NamedTuple):
    """A value and how far it may be off: a standard error, or the residual of an iteration; 0 where it is exact."""

    value: float
    error: float = 0.0


def smoothness(problem: Problem, x: Tensor | None = None, iterations: int = 30) -> tuple[Estimate, Estimate]:
    """The largest |eigenvalue| of a worker's Hessian, over the hosted workers, and that of the average's.

    Power iteration on Hessian-vector products, which are central differences of exact gradients. The error is the norm
    of what an eigenvector would not have: some eigenvalue lies within it.
    """
    point = (problem.start() if x is None else x).expand(len(problem.workers), -1)
    each = _power(lambda v: _curvature(problem, point, v), _directions(problem, len(point)), iterations)
    both = _power(
        lambda v: _curvature(problem, point, v.expand_as(point)).mean(dim=0, keepdim=True),
        _directions(problem, 1),
        iterations,
    )
    return max(each, key=lambda estimate: estimate.value), both[0]


def variance(problem: Problem, x: Tensor | None = None, draws: int = 32) -> Estimate:
    """E‖∇fᵢ(x; ζ) − ∇fᵢ(x)‖² of the worker with the largest, from `draws` mini-batches each."""
    point = (problem.start() if x is None else x).repeat(len(problem.workers), 1)
    exact = problem.full_grad(point)
    squares = torch.stack(
        [(problem.grad(point, problem.sample(_APART, k)) - exact).double().square().sum(dim=1) for k in range(draws)]
    )
    worst = int(squares.mean(dim=0).argmax())
    return Estimate(squares[:, worst].mean().item(), squares[:, worst].std().item() / draws**0.5)


def heterogeneity(problem: Problem, x: Tensor | None = None) -> Estimate:
    """ζ² = (1/m) Σᵢ ‖∇fᵢ(x) − ∇f(x)‖² at a point."""
    point = (problem.start() if x is None else x).repeat(len(problem.workers), 1)
    return Estimate(consensus_error(problem.full_grad(point).double()).item())


def gap(problem: Problem, x: Tensor | None = None) -> Estimate:
    """f(x) − f*; where the optimum is not known f(x) itself, the most it can be for a loss that is never negative."""
    value = problem.objective(problem.start() if x is None else x)[0].item()
    return Estimate(value if problem.optimum is None else value - problem.objective(problem.optimum)[0].item())


def constants(problem: Problem, topology: Topology) -> Constants:
    """All that the theory needs at the start: what the problem knows of itself, and estimates of the rest."""
    L = problem.smoothness if problem.smoothness is not None else smoothness(problem)[0].value
    noise = problem.variance if problem.variance is not None else variance(problem).value
    zeta2 = heterogeneity(problem).value
    spread = problem.m * zeta2 + (problem.m - 1) * noise
    return Constants(problem.m, topology.lam, L, noise, gap(problem).value, spread, zeta2).checked()


def _power(apply: Callable[[Tensor], Tensor], v: Tensor, iterations: int) -> list[Estimate]:
    """The dominant eigenvalue for each row of start vectors, in magnitude."""
    for _ in range(iterations):
        image = apply(v)
        values = (v * image).sum(dim=1, keepdim=True)
        residual = (image - values * v).norm(dim=1)
        v = image / image.norm(dim=1, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
    return [Estimate(abs(a), r) for a, r in zip(values.flatten().tolist(), residual.tolist(), strict=True)]


def _curvature(problem: Problem, x: Tensor, v: Tensor) -> Tensor:
    """∇²fᵢ(xᵢ) vᵢ for unit vectors, by central differences."""
    h = torch.finfo(x.dtype).eps ** (1 / 3) * (1 + x.norm(dim=1, keepdim=True))
    difference: Tensor = problem.full_grad(x + h * v) - problem.full_grad(x - h * v)
    return difference.div_(2 * h)


def _directions(problem: Problem, rows: int) -> Tensor:
    """Unit vectors to begin with."""
    generator = randomness.torch_generator("curvature", problem.seed)
    v = torch.randn(rows, problem.d, generator=generator, dtype=problem.dtype).to(problem.device)
    return torch.nn.functional.normalize(v)
