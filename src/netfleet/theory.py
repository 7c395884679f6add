"""The paper's convergence theory (Section 4) as code: one function per result, in the paper's symbols.

Theorem 1 is implemented as Section 4 states it; where the proof's versions differ, docs/theory.md says so. λ is the
second-largest eigenvalue of W in magnitude, S the number of rounds, K the local steps of a round.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from netfleet.errors import ConfigError
from netfleet.metrics import consensus_error


class Constants(NamedTuple):
    """What Assumption 1 and the bounds ask of a problem and a graph."""

    m: int
    lam: float
    L: float  # of every ∇fᵢ
    variance: float = 0.0  # σ² of a stochastic gradient
    gap: float = 0.0  # f(x⁰) − f*
    spread: float = 0.0  # E Σᵢ ‖yᵢ − ȳ‖² at the start, where y is a stochastic gradient
    heterogeneity: float = 0.0  # ζ², a bound on (1/m) Σᵢ ‖∇fᵢ − ∇f‖²; NET-FLEET's bound does not have it

    def checked(self) -> Constants:
        """The constants, if they can be those of a problem."""
        if self.m < 1 or not 0 <= self.lam < 1:
            raise ConfigError(
                f"the theory needs m >= 1 and 0 <= λ < 1 (a connected graph), got {self.m}, λ = {self.lam}"
            )
        if not self.L > 0 or min(self.variance, self.gap, self.spread, self.heterogeneity) < 0:
            raise ConfigError(f"the theory needs L > 0 and no negative constants, got {self}")
        return self


def growth(lam: float, K: int) -> float:
    """1 + λK − λ, by which consensus errors of one round accumulate (Lemma 2)."""
    return 1 + lam * K - lam


def C1(lam: float, K: int) -> float:
    """The weight of y in the potential function: 6(1 + λK − λ)K / (1 − λ)²."""
    return 6 * growth(lam, K) * K / (1 - lam) ** 2


def conditions(c: Constants, K: int) -> dict[str, float]:
    """The eight upper limits on η of Theorem 1, by their formulas and in its order."""
    m, lam, L = c.m, c.lam, c.L
    gap, a = 1 - lam, growth(lam, K)
    return {
        "1/(3L)": 1 / (3 * L),
        "1/(mL²K²)": 1 / (m * L**2 * K**2),
        "(1−λ)/√(12(1+λK−λ)KL²)": gap / math.sqrt(12 * a * K * L**2),
        "√((1−λ)/(24L²K²))": math.sqrt(gap / (24 * L**2 * K**2)),
        "(1−λ)³mK/144": gap**3 * m * K / 144,
        "√(m(1−λ)²/(144LK²))": math.sqrt(m * gap**2 / (144 * L * K**2)),
        "(1−λ)/(3(1+λK−λ)mKL²)": gap / (3 * a * m * K * L**2),
        "(1−λ)²(1+λK−λ)m/(144K)": gap**2 * a * m / (144 * K),
    }


def largest_step(c: Constants, K: int) -> tuple[float, str]:
    """The largest η that Theorem 1 admits, and the condition that binds."""
    limits = conditions(c, K)
    binding = min(limits, key=limits.__getitem__)
    return limits[binding], binding


class Descent(NamedTuple):
    """The factors of the terms that the proof of Theorem 1 drops, which it may if none is negative."""

    gradient: float  # C_∇f
    x: float  # C_x
    y: float  # C_y


def descent(c: Constants, eta: float, K: int) -> Descent:
    """C_∇f, C_x and C_y as the proof of Theorem 1 defines them."""
    m, lam, L = c.m, c.lam, c.L
    gap, a, C = 1 - lam, growth(lam, K), C1(lam, K)
    return Descent(
        1 - L * eta - 24 * C * L**2 * K * eta**3 / (gap * m) - 144 * L**2 * K**2 * eta**3 / (gap**2 * m),
        gap - 24 * C * L**2 * eta**2 / gap - a * m * K * L**2 * eta - 144 * L**2 * eta**2 * K**2 / gap**2,
        gap - 6 * a * K / (C * gap),
    )


def potential(value: float, x: Tensor, y: Tensor, *, eta: float, K: int, lam: float) -> float:
    """𝔓 = f(x̄) + (1/(m²K)) Σᵢ (‖xᵢ − x̄‖² + C₁η² ‖yᵢ − ȳ‖²), with f(x̄) given."""
    scatter = consensus_error(x) + C1(lam, K) * eta**2 * consensus_error(y)
    return value + scatter.item() / (len(x) * K)


def metric(slope: Tensor, x: Tensor, L: float) -> float:
    """‖∇f(x̄)‖² + (L²/m) Σᵢ ‖xᵢ − x̄‖², what Theorem 1 bounds the mean of, with ∇f(x̄) given."""
    return (slope.double().square().sum() + L**2 * consensus_error(x)).item()


class Bound(NamedTuple):
    """The right-hand side of Theorem 1, term by term."""

    start: float  # 2 (𝔓₀ − f*) / (SKη)
    noise: float  # 3Lσ²η/m
    graph: float  # 72ησ² / ((1−λ)²m)
    local: float  # 72(1+λK−λ)ησ² / ((1−λ)³Km)

    @property
    def total(self) -> float:
        return sum(self)


def bound(c: Constants, eta: float, K: int, S: int) -> Bound:
    """Theorem 1: what (1/(SK)) Σ E[‖∇f(x̄)‖² + (L²/m) Σᵢ‖xᵢ − x̄‖²] cannot exceed, for an admissible η."""
    gap, unit = 1 - c.lam, eta * c.variance / c.m
    return Bound(
        start=2 * (c.gap + C1(c.lam, K) * eta**2 * c.spread / (c.m**2 * K)) / (S * K * eta),
        noise=3 * c.L * unit,
        graph=72 * unit / gap**2,
        local=72 * growth(c.lam, K) * unit / (gap**3 * K),
    )


def corollary_steps(m: int, S: int) -> float:
    """Corollary 2: K = S^⅓ / m; below 1 where there are too few rounds for so many workers, S < m³."""
    return math.cbrt(S) / m


def corollary(m: int, S: int, scale: float = 1.0, K: int | None = None) -> tuple[int, float]:
    """Corollary 2: K = S^⅓ / m, rounded down and at least 1, unless given, and η = scale · √(m / (SK))."""
    K = K or max(1, math.floor(corollary_steps(m, S) + 1e-9))
    return K, scale * math.sqrt(m / (S * K))


def best_step(c: Constants, K: int, S: int) -> float:
    """The admissible η at which the bound after S rounds is least; it is convex in η."""
    limit, _ = largest_step(c, K)
    start = 2 * c.gap / (S * K)  # bound(η) = start / η + slope · η
    slope = sum(bound(c, 1.0, K, S)) - start
    return min(limit, math.sqrt(start / slope)) if slope > 0 else limit


def rounds_to(c: Constants, eps: float, K: int) -> int:
    """The fewest rounds S after which Theorem 1 promises ε, with the best admissible η for that S."""
    if not eps > 0:
        raise ConfigError(f"the target must be above 0, got ε = {eps}")

    def reached(S: int) -> bool:
        return bound(c, best_step(c, K, S), K, S).total <= eps

    high = 1
    while not reached(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def bytes_to(c: Constants, eps: float, K: int, *, d: int, links: int, itemsize: int = 4) -> int:
    """What all workers send until Theorem 1 promises ε: x and y over every directed link, once a round."""
    return rounds_to(c, eps, K) * 2 * d * itemsize * links


def dsgd_bound(c: Constants, eta: float, S: int) -> float | None:
    """DSGD (Lian et al. 2017, Theorem 1): what (1/S) Σ E‖∇f(x̄)‖² cannot exceed; None where η is not admissible.

    Their ρ is λ², and they assume that ζ² bounds the heterogeneity everywhere.
    """
    m, L, root = c.m, c.L, c.lam  # √ρ
    d2 = 1 - 18 * eta**2 * m * L**2 / (1 - root) ** 2
    d1 = 0.5 - 9 * eta**2 * L**2 * m / ((1 - root) ** 2 * d2) if d2 > 0 else -1.0
    if d1 <= 0 or eta * L >= 1:
        return None
    drift = c.variance / (1 - root**2) + 9 * c.heterogeneity / (1 - root) ** 2
    right = c.gap / (eta * S) + eta * L * c.variance / (2 * m) + eta**2 * L**2 * m * drift / d2
    return right / d1


def fedavg_bound(c: Constants, eta: float, K: int, S: int, eta_g: float = 1.0) -> float | None:
    """Generalized FedAvg (Yang, Fang, Liu 2021, Theorem 1, everyone takes part); None where η is not admissible.

    min over rounds of E‖∇f(x̄)‖², with σ_L² = σ² and σ_G² = ζ². FedAvg has server step η_g = 1.
    """
    share = 0.5 - 15 * K**2 * eta**2 * c.L**2
    if eta > 1 / (8 * c.L * K) or eta * eta_g > 1 / (K * c.L) or share <= 0:
        return None
    drift = 5 * K * eta**2 * c.L**2 / 2 * (c.variance + 6 * K * c.heterogeneity)
    return (c.gap / (eta_g * eta * K * S) + c.L * eta_g * eta * c.variance / (2 * c.m) + drift) / share
