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

_APART = 1 << 40  # rounds from here on are no training's: their mini-batches are drawn for estimates


class Estimate(NamedTuple):
    """A value and how far it may be off: a standard error, or the residual of an iteration; 0 where it is exact."""

    value: float
    error: float = 0.0
    how: str = ""


class Survey(NamedTuple):
    """All that the theory asks of a problem, at its start."""

    L: Estimate  # the worst worker's
    L_mean: Estimate  # of f
    variance: Estimate  # σ², the worst worker's
    heterogeneity: Estimate  # ζ²
    gap: Estimate  # f(x⁰) − f*

    def constants(self, m: int, lam: float) -> Constants:
        """As the theorem takes them; the tracked gradients begin as stochastic ones, so their spread has both parts."""
        noise, zeta2 = self.variance.value, self.heterogeneity.value
        return Constants(m, lam, self.L.value, noise, self.gap.value, m * zeta2 + (m - 1) * noise, zeta2).checked()


def smoothness(
    problem: Problem, x: Tensor | None = None, iterations: int = 200, tolerance: float = 0.01
) -> tuple[Estimate, Estimate]:
    """The largest |eigenvalue| of a worker's Hessian, over the hosted workers, and that of the average's.

    Power iteration on Hessian-vector products, which are central differences of exact gradients. The error is the norm
    of what an eigenvector would not have: some eigenvalue lies within it. It ends when that is below `tolerance` of the
    value, or after so many iterations.
    """
    point = (problem.start() if x is None else x).expand(len(problem.workers), -1)
    each = _power(lambda v: _curvature(problem, point, v), _directions(problem, len(point)), iterations, tolerance)
    both = _power(
        lambda v: _curvature(problem, point, v.expand_as(point)).mean(dim=0, keepdim=True),
        _directions(problem, 1),
        iterations,
        tolerance,
    )
    worst = max(each, key=lambda estimate: estimate.value)
    return worst._replace(how="at x⁰, worst worker, power iteration"), both[0]._replace(how="at x⁰, power iteration")


def variance(problem: Problem, x: Tensor | None = None, draws: int = 32) -> Estimate:
    """E‖∇fᵢ(x; ζ) − ∇fᵢ(x)‖² of the worker with the largest, from `draws` mini-batches each."""
    point = (problem.start() if x is None else x).repeat(len(problem.workers), 1)
    exact = problem.full_grad(point)
    squares = torch.stack(
        [(problem.grad(point, problem.sample(_APART, k)) - exact).double().square().sum(dim=1) for k in range(draws)]
    )
    worst = int(squares.mean(dim=0).argmax())
    how = f"at x⁰, worst worker, {draws} mini-batches"
    return Estimate(squares[:, worst].mean().item(), squares[:, worst].std().item() / draws**0.5, how)


def heterogeneity(problem: Problem, x: Tensor | None = None) -> Estimate:
    """ζ² = (1/m) Σᵢ ‖∇fᵢ(x) − ∇f(x)‖² at a point."""
    point = (problem.start() if x is None else x).repeat(len(problem.workers), 1)
    return Estimate(consensus_error(problem.full_grad(point)).item(), how="at x⁰, exact")


def gap(problem: Problem, x: Tensor | None = None) -> Estimate:
    """f(x) − f*; where the optimum is not known f(x) itself, the most it can be for a loss that is never negative."""
    value = problem.objective(problem.start() if x is None else x)[0].item()
    if problem.optimum is None:
        return Estimate(value, how="at most: f(x⁰), for a loss that is never negative")
    return Estimate(value - problem.objective(problem.optimum)[0].item(), how="exact")


def survey(problem: Problem) -> Survey:
    """What the problem knows of itself, and estimates of the rest."""
    each, mean = smoothness(problem)
    if problem.smoothness is not None:
        each = Estimate(problem.smoothness, how="known")
    noise = variance(problem) if problem.variance is None else Estimate(problem.variance, how="known")
    return Survey(each, mean, noise, heterogeneity(problem), gap(problem))


def _power(apply: Callable[[Tensor], Tensor], v: Tensor, iterations: int, tolerance: float) -> list[Estimate]:
    """The largest |eigenvalue| for each row of start vectors, from H² so that λ and −λ may both be there.

    ‖H²v − s²v‖ = s r with s = ‖Hv‖ puts some |eigenvalue| within r of s.
    """
    image = apply(v)
    for _ in range(iterations):
        size = image.norm(dim=1, keepdim=True)
        further = apply(image / size.clamp_min(torch.finfo(v.dtype).tiny))
        residual = (further - size * v).norm(dim=1)
        if (residual <= tolerance * size.flatten()).all():
            break
        v, image = image / size.clamp_min(torch.finfo(v.dtype).tiny), further
    return [Estimate(s, r) for s, r in zip(size.flatten().tolist(), residual.tolist(), strict=True)]


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
