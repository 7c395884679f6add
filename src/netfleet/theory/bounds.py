"""The paper's convergence theory (Section 4) as code: one function per result, in the paper's symbols.

Theorem 1 is implemented as Section 4 states it; where the proof's versions differ, docs/theory.md says so. λ is the
second-largest eigenvalue of W in magnitude, S the number of rounds, K the local steps of a round. Every function
refuses what no problem has (K < 1, η <= 0, λ = 1, a NaN) with a `ConfigError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from scipy.optimize import minimize_scalar
from torch import Tensor

from netfleet.errors import ConfigError
from netfleet.runs.metrics import consensus_error

MOST_ROUNDS = 10**18  # beyond this a promise is none


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
        _whole(m=self.m)
        _contracting(self.lam)
        _positive(L=self.L)
        for name in ("variance", "gap", "spread", "heterogeneity"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(
                    f"the theory needs a {name} that is a finite number from 0 on, got {getattr(self, name)!r}"
                )
        return self


def _whole(**counts: float) -> None:
    for name, value in counts.items():
        if not 1 <= value < math.inf:
            raise ConfigError(f"the theory needs {name} to be at least 1, got {name} = {value!r}")


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ConfigError(f"the theory needs {name} to be a finite number above 0, got {name} = {value!r}")


def _contracting(lam: float) -> None:
    if not 0 <= lam < 1:
        raise ConfigError(f"the theory needs 0 <= λ < 1, which a connected graph has, got λ = {lam!r}")


def growth(lam: float, K: int) -> float:
    """1 + λK − λ, by which consensus errors of one round accumulate (Lemma 2)."""
    _contracting(lam)
    _whole(K=K)
    return 1 + lam * (K - 1)


def C1(lam: float, K: int) -> float:
    """The weight of y in the potential function: 6(1 + λK − λ)K / (1 − λ)²."""
    return 6 * growth(lam, K) * K / (1 - lam) ** 2


def conditions(c: Constants, K: int) -> dict[str, float]:
    """The eight upper limits on η of Theorem 1, by their formulas and in its order."""
    m, lam, L = c.checked()[:3]
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
    m, lam, L = c.checked()[:3]
    _positive(η=eta)
    gap, a, C = 1 - lam, growth(lam, K), C1(lam, K)
    return Descent(
        1 - L * eta - 24 * C * L**2 * K * eta**3 / (gap * m) - 144 * L**2 * K**2 * eta**3 / (gap**2 * m),
        gap - 24 * C * L**2 * eta**2 / gap - a * m * K * L**2 * eta - 144 * L**2 * eta**2 * K**2 / gap**2,
        gap - 6 * a * K / (C * gap),
    )


def potential(value: float, x: Tensor, y: Tensor, *, eta: float, K: int, lam: float) -> float:
    """𝔓 = f(x̄) + (1/(m²K)) Σᵢ (‖xᵢ − x̄‖² + C₁η² ‖yᵢ − ȳ‖²), with f(x̄) given."""
    _positive(η=eta)
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
    c.checked()
    _whole(K=K, S=S)
    _positive(η=eta)
    gap, unit = 1 - c.lam, eta * c.variance / c.m
    return Bound(
        start=2 * (c.gap + C1(c.lam, K) * eta**2 * c.spread / (c.m**2 * K)) / (S * K * eta),
        noise=3 * c.L * unit,
        graph=72 * unit / gap**2,
        local=72 * growth(c.lam, K) * unit / (gap**3 * K),
    )


def corollary_steps(m: int, S: int) -> float:
    """Corollary 2: K = S^⅓ / m; below 1 where there are too few rounds for so many workers, S < m³."""
    _whole(m=m, S=S)
    return math.cbrt(S) / m


def corollary(m: int, S: int, scale: float = 1.0, K: int | None = None) -> tuple[int, float]:
    """Corollary 2: K = S^⅓ / m, rounded down and at least 1, unless given, and η = scale · √(m / (SK))."""
    K = K or max(1, math.floor(corollary_steps(m, S) + 1e-9))
    _whole(m=m, S=S, K=K)
    _positive(scale=scale)
    return K, scale * math.sqrt(m / (S * K))


def best_step(c: Constants, K: int, S: int) -> float:
    """The admissible η at which the bound after S rounds is least; it is convex in η.

    0 where x⁰ is a minimum already (gap = 0) and a step can only do harm: the bound then falls to 0 with η.
    """
    limit, _ = largest_step(c, K)
    _whole(S=S)
    start = 2 * c.gap / (S * K)  # bound(η) = start / η + slope · η
    slope = sum(bound(c, 1.0, K, S)) - start
    return min(limit, math.sqrt(start / slope)) if slope > 0 else limit


def best_bound(c: Constants, K: int, S: int) -> Bound:
    """The bound at the best admissible η."""
    eta = best_step(c, K, S)
    return bound(c, eta, K, S) if eta > 0 else Bound(0.0, 0.0, 0.0, 0.0)


def rounds_to(c: Constants, eps: float, K: int) -> int:
    """The fewest rounds S after which Theorem 1 promises ε, with the best admissible η for that S."""
    return _fewest(eps, lambda S: best_bound(c, K, S).total)


def bytes_to(c: Constants, eps: float, K: int, *, d: int, links: int, itemsize: int = 4) -> int:
    """What all workers send until Theorem 1 promises ε: x and y over every directed link, once a round."""
    _whole(d=d, itemsize=itemsize)
    if links < 0:
        raise ConfigError(f"the theory needs links, both directions counted, to be 0 or more, got links = {links!r}")
    return rounds_to(c, eps, K) * 2 * d * itemsize * links


class DSGDBound(NamedTuple):
    """The right-hand side of Lian et al.'s Theorem 1 over D₁, term by term, with n = m and γ = η."""

    start: float  # (f(x⁰) − f*) / (ηS)
    noise: float  # ηLσ²/(2m)
    graph: float  # η²L²mσ² / ((1−λ²)D₂)
    heterogeneity: float  # 9η²L²mζ² / ((1−λ)²D₂)

    @property
    def total(self) -> float:
        return sum(self)


def dsgd_largest_step(c: Constants) -> float:
    """The η from which on Lian et al.'s Theorem 1 says nothing: (1−λ)/(6L√m).

    With q = η²mL²/(1−λ)² it has D₂ = 1 − 18q and D₁ = ½ − 9q/D₂ = (1 − 36q)/(2D₂), so D₁ > 0 if and only if q < 1/36.
    It also needs ηL <= 1, which is then less than 1/6.
    """
    c.checked()
    return (1 - c.lam) / (6 * c.L * math.sqrt(c.m))


def dsgd_bound(c: Constants, eta: float, S: int) -> DSGDBound | None:
    """DSGD (Lian et al. 2017, Theorem 1): what (1/S) Σ E‖∇f(x̄)‖² cannot exceed; None where η is not admissible.

    Their ρ is λ², and they assume that ζ² bounds the heterogeneity everywhere.
    """
    m, lam, L = c.checked()[:3]
    _whole(S=S)
    _positive(η=eta)
    q = eta**2 * m * L**2 / (1 - lam) ** 2
    if 36 * q >= 1:
        return None
    d2 = 1 - 18 * q
    d1 = (1 - 36 * q) / (2 * d2)
    return DSGDBound(
        start=c.gap / (eta * S) / d1,
        noise=eta * L * c.variance / (2 * m) / d1,
        graph=eta**2 * L**2 * m * c.variance / ((1 - lam**2) * d2) / d1,
        heterogeneity=9 * q * c.heterogeneity / d2 / d1,
    )


def dsgd_best_step(c: Constants, S: int) -> float:
    """The admissible η at which DSGD's bound after S rounds is least; 0 where x⁰ is a minimum already."""
    return _best(c, dsgd_largest_step(c), lambda eta: dsgd_bound(c, eta, S))


def dsgd_rounds_to(c: Constants, eps: float) -> int:
    """The fewest rounds after which DSGD's theorem promises ε, with the best admissible η; there always are some."""
    return _fewest(eps, lambda S: _at(dsgd_best_step(c, S), lambda eta: dsgd_bound(c, eta, S)))


class FedAvgBound(NamedTuple):
    """The right-hand side of Yang, Fang, Liu's Theorem 1, term by term; each is divided by c = ½ − 15K²η²L²."""

    start: float  # (f(x⁰) − f*) / (η_g η K S)
    noise: float  # L η_g η σ²/(2m)
    local: float  # 5Kη²L²σ²/2
    heterogeneity: float  # 15K²η²L²ζ²

    @property
    def total(self) -> float:
        return sum(self)


def fedavg_conditions(c: Constants, K: int, eta_g: float = 1.0) -> dict[str, float]:
    """The upper limits on η of Yang, Fang, Liu's Theorem 1.

    Their third condition, c = ½ − 15K²η²L² > 0, asks for η < 1/(√30 LK) only, and never binds.
    """
    c.checked()
    _whole(K=K)
    _positive(η_g=eta_g)
    return {"1/(8LK)": 1 / (8 * c.L * K), "1/(η_g K L)": 1 / (eta_g * K * c.L)}


def fedavg_largest_step(c: Constants, K: int, eta_g: float = 1.0) -> float:
    """The largest η of Yang, Fang, Liu's Theorem 1: 1/(8LK), or 1/(η_g K L) if that is less."""
    return min(fedavg_conditions(c, K, eta_g).values())


def fedavg_bound(c: Constants, eta: float, K: int, S: int, eta_g: float = 1.0) -> FedAvgBound | None:
    """Generalized FedAvg (Yang, Fang, Liu 2021, Theorem 1, everyone takes part); None where η is not admissible.

    min over rounds of E‖∇f(x̄)‖², with σ_L² = σ² and σ_G² = ζ². FedAvg has server step η_g = 1.
    """
    limit = fedavg_largest_step(c, K, eta_g)
    _whole(S=S)
    _positive(η=eta)
    if eta > limit:
        return None
    share, drift = 0.5 - 15 * K**2 * eta**2 * c.L**2, 5 * K * eta**2 * c.L**2 / 2
    return FedAvgBound(
        start=c.gap / (eta_g * eta * K * S) / share,
        noise=c.L * eta_g * eta * c.variance / (2 * c.m) / share,
        local=drift * c.variance / share,
        heterogeneity=6 * K * drift * c.heterogeneity / share,
    )


def fedavg_best_step(c: Constants, K: int, S: int, eta_g: float = 1.0) -> float:
    """The admissible η at which FedAvg's bound after S rounds is least; 0 where x⁰ is a minimum already."""
    return _best(c, fedavg_largest_step(c, K, eta_g), lambda eta: fedavg_bound(c, eta, K, S, eta_g))


def fedavg_rounds_to(c: Constants, eps: float, K: int, eta_g: float = 1.0) -> int:
    """The fewest rounds after which FedAvg's theorem promises ε, with the best admissible η; there always are some."""
    return _fewest(
        eps,
        lambda S: _at(fedavg_best_step(c, K, S, eta_g), lambda eta: fedavg_bound(c, eta, K, S, eta_g)),
    )


_Promise = Callable[[float], DSGDBound | FedAvgBound | None]


def _at(eta: float, promise: _Promise) -> float:
    """A bound's value; 0 at no step at all, and infinite where η is not admissible."""
    found = promise(eta) if eta > 0 else DSGDBound(0.0, 0.0, 0.0, 0.0)
    return math.inf if found is None else found.total


def _best(c: Constants, limit: float, promise: _Promise) -> float:
    """Where a bound is least in (0, limit]: convex over concave in η, it falls and then rises."""
    if c.gap == 0:
        return 0.0
    top = math.log(limit)
    found = minimize_scalar(
        lambda log: _at(math.exp(log), promise), bounds=(top - 60, top), method="bounded", options={"xatol": 1e-9}
    )
    return min(math.exp(float(found.x)), limit, key=lambda eta: _at(eta, promise))


def _fewest(eps: float, promised: Callable[[int], float]) -> int:
    """The least S with promised(S) <= ε, for a promise that falls with S."""
    if not eps > 0:
        raise ConfigError(f"the target must be above 0, got ε = {eps!r}")
    high = 1
    while promised(high) > eps:
        high *= 2
        if high > MOST_ROUNDS:
            raise ConfigError(f"ε = {eps!r} would take more than 10^18 rounds by the theorem; ask for a larger ε")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if promised(middle) > eps else (low, middle)
    return high
