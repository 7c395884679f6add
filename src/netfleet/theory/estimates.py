"""The constants that the theory asks of a `Problem`, estimated at its start x⁰: L, σ², ζ² and f(x⁰) − f*.

The theorem's L and σ² hold everywhere, and the estimates at x⁰ are at most those. So a step size that the estimates do
not admit is not admissible, and one that they admit may still not be.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from netfleet import randomness
from netfleet.problems.base import Problem
from netfleet.runs.metrics import consensus_error
from netfleet.theory.bounds import Constants

Apply = Callable[[Tensor], Tensor]
_ROUND = 1 << 40  # a round that no training reaches: its mini-batches serve for estimates


class Estimate(NamedTuple):
    """A value and its error, 0 where it is exact; each function says what its error means."""

    value: float
    error: float = 0.0
    how: str = ""


class Survey(NamedTuple):
    L: Estimate  # the worst worker's
    L_mean: Estimate  # of f
    variance: Estimate  # σ², the worst worker's
    heterogeneity: Estimate  # ζ²
    gap: Estimate  # f(x⁰) − f*
    slope: Estimate  # ‖∇f(x⁰)‖²

    def constants(self, m: int, lam: float) -> Constants:
        """For the theorems; the tracked gradients start as stochastic ones, so their spread has both parts."""
        noise, zeta2 = self.variance.value, self.heterogeneity.value
        return Constants(m, lam, self.L.value, noise, self.gap.value, m * zeta2 + (m - 1) * noise, zeta2).checked()


def smoothness(problem: Problem, iterations: int = 200, tolerance: float = 0.01) -> Estimate:
    """The largest |eigenvalue| of a worker's Hessian, over the hosted workers.

    Power iteration on Hessian-vector products, which are central differences of exact gradients. It ends when the error
    is below `tolerance` of the value, or after `iterations`.

    The error is not a confidence interval. It is the norm r of the residual, so some |eigenvalue| lies within r of the
    value. That this is the largest is likely, not certain: the value never exceeds the largest (except by rounding),
    and is below it if the iteration stays near another. The estimate says nothing about the curvature at other points.
    """
    point = problem.start().expand(len(problem.workers), -1)
    each = _power(lambda v: _curvature(problem, point, v), problem, len(point), iterations, tolerance)
    return max(each, key=lambda estimate: estimate.value)._replace(how="at x⁰, worst worker, power iteration")


def mean_smoothness(problem: Problem, iterations: int = 200, tolerance: float = 0.01) -> Estimate:
    """The largest |eigenvalue| of the Hessian of f, as `smoothness` finds it."""
    point = problem.start().expand(len(problem.workers), -1)

    def apply(v: Tensor) -> Tensor:
        return _curvature(problem, point, v.expand_as(point)).mean(dim=0, keepdim=True)

    (found,) = _power(apply, problem, 1, iterations, tolerance)
    return found._replace(how="at x⁰, power iteration")


def variance(problem: Problem, draws: int = 32) -> Estimate:
    """E‖∇fᵢ(x; ζ) − ∇fᵢ(x)‖² of the worker with the largest, from `draws` mini-batches each, and its standard error.

    The largest of m estimates would be biased upwards. So the worst worker is chosen on one half of the mini-batches
    and measured on the other, and vice versa. The remaining bias is downwards: a worker chosen by mistake has less.
    """
    point = problem.start().repeat(len(problem.workers), 1)
    exact = problem.full_grad(point)
    errors = (problem.grad(point, problem.sample(_ROUND, k)) - exact for k in range(draws))
    squares = torch.stack([error.double().square().sum(dim=1) for error in errors])
    one, other = squares[::2], squares[1::2]
    chosen = [judged[:, chosen.mean(dim=0).argmax()] for chosen, judged in ((one, other), (other, one))]
    error = sum((half.var() / len(half)).item() for half in chosen) ** 0.5 / 2
    least, most = (f"{value:.3g}" for value in squares.mean(dim=0).aminmax())
    how = f"at x⁰, worst worker, {draws} mini-batches (± standard error; the workers' own: {least} to {most})"
    return Estimate(sum(half.mean().item() for half in chosen) / 2, error, how)


def heterogeneity(problem: Problem) -> Estimate:
    """ζ² = (1/m) Σᵢ ‖∇fᵢ(x⁰) − ∇f(x⁰)‖², exactly."""
    point = problem.start().repeat(len(problem.workers), 1)
    return Estimate(consensus_error(problem.full_grad(point)).item(), how="at x⁰, exact")


def gap(problem: Problem, L: float, steps: int = 50) -> Estimate:
    """f(x⁰) − f*; where the optimum is unknown f(x⁰), which is an upper bound for a loss that is never negative.

    Gradient descent with step size 1/L then looks for a lower value: f(x⁰) − f* lies between value − error and value.
    """
    point = problem.start()
    value, slope = problem.objective(point)
    if problem.optimum is not None:
        return Estimate(value.item() - problem.objective(problem.optimum)[0].item(), how="exact")
    least, step = value, 1 / L
    for _ in range(steps):
        further, after = problem.objective(point - step * slope)
        if further < least:
            point, least, slope = point - step * slope, further, after
        else:
            step /= 2
    low = max(0.0, value.item() - least.item())
    how = f"at least {low:.3g}, by {steps} steps of gradient descent"
    return Estimate(value.item(), value.item() - low, f"at most: f(x⁰), for a loss that is never negative; {how}")


def survey(problem: Problem) -> Survey:
    mean = mean_smoothness(problem)
    each = smoothness(problem) if problem.smoothness is None else Estimate(problem.smoothness, how="known")
    noise = variance(problem) if problem.variance is None else Estimate(problem.variance, how="known")
    slope = problem.objective(problem.start())[1].double().square().sum().item()
    apart = gap(problem, L=max(mean.value, torch.finfo(problem.dtype).tiny))
    return Survey(each, mean, noise, heterogeneity(problem), apart, Estimate(slope, how="exact"))


def _power(apply: Apply, problem: Problem, rows: int, iterations: int, tolerance: float) -> list[Estimate]:
    """The largest |eigenvalue| for each of some random start vectors, from H² so that λ and −λ may both be there.

    ‖H²v − s²v‖ = s r with s = ‖Hv‖ puts some |eigenvalue| within r of s.
    """
    generator = randomness.torch_generator("curvature", problem.seed)
    v = torch.randn(rows, problem.d, generator=generator, dtype=problem.dtype).to(problem.device)
    v = torch.nn.functional.normalize(v)
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
