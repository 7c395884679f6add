"""Convergence theorems with constants filled in; DSGD's and FedAvg's are written from memory (docs/theory.md)."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from scipy.optimize import minimize_scalar

from netfleet.errors import ConfigError
from netfleet.theory import bounds
from netfleet.theory.bounds import Bound, Constants, positive, whole

MOST_ROUNDS = 10**18  # a promise beyond it is useless


class Quantity(NamedTuple):
    words: str
    consensus: bool = False  # whether (L²/m) Σᵢ‖xᵢ − x̄‖² is added to ‖∇f(x̄)‖²
    least: bool = False  # the least over rounds rather than the mean


METRIC = Quantity("mean of ‖∇f(x̄)‖² + (L²/m) Σᵢ‖xᵢ − x̄‖²", consensus=True)
GRADIENT = Quantity("mean of ‖∇f(x̄)‖²")
LEAST_GRADIENT = Quantity("least ‖∇f(x̄)‖² of all rounds", least=True)


@dataclass(frozen=True)
class Theorem:
    """A theorem for one method, with its K and the constants of a problem."""

    name: str
    quantity: Quantity
    conditions: Mapping[str, float]  # upper limits on η by their formulas
    bound: Callable[[float, int], Bound | None]  # by η and S; None where η is not admissible
    gap: float  # f(x⁰) − f*
    closed_form: Callable[[int], float] | None = None  # of `best_step`
    vectors: int = 1  # in a message

    @property
    def binds(self) -> str:
        return min(self.conditions, key=self.conditions.__getitem__)

    @property
    def largest(self) -> float:
        return self.conditions[self.binds]

    def best_step(self, S: int) -> float:
        """The admissible η at which the bound after S rounds is least, 0 where no step is needed."""
        if self.closed_form or self.gap == 0:
            return self.closed_form(S) if self.closed_form else 0.0

        def at(eta: float) -> float:
            found = self.bound(eta, S)
            return math.inf if found is None else found.total

        top = math.log(self.largest)  # convex over concave in η, a bound falls and then rises
        found = minimize_scalar(
            lambda log: at(math.exp(log)), bounds=(top - 60, top), method="bounded", options={"xatol": 1e-9}
        )
        return min(math.exp(float(found.x)), self.largest, key=at)

    def promise(self, S: int, eta: float | None = None) -> Bound | None:
        """The bound after S rounds, at the best admissible η unless one is given; None if no step is needed."""
        eta = self.best_step(S) if eta is None else eta
        return self.bound(eta, S) if eta > 0 else None

    def rounds_to(self, eps: float) -> int:
        """The fewest rounds after which the theorem promises ε, with the best admissible η for that many rounds."""
        if not eps > 0:
            raise ConfigError(f"the target must be above 0, got ε = {eps!r}")

        def reached(S: int) -> bool:
            promised = self.promise(S)
            return promised is None or promised.total <= eps

        high = 1
        while not reached(high):
            high *= 2
            if high > MOST_ROUNDS:
                raise ConfigError(f"ε = {eps!r} would take more than 10^18 rounds by the theorem; ask for a larger ε")
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if reached(middle) else (middle, high)
        return high


def theorem_1(c: Constants, K: int) -> Theorem:
    """NET-FLEET's Theorem 1; GT-SGD is its case K = 1."""
    limits = bounds.conditions(c, K)
    largest = min(limits.values())

    def best_step(S: int) -> float:
        whole(S=S)
        start = 2 * c.gap / (S * K)  # bound(η) = start / η + slope · η
        slope = bounds.bound(c, 1.0, K, S).total - start
        return min(largest, math.sqrt(start / slope)) if slope > 0 else largest

    def bound(eta: float, S: int) -> Bound | None:
        return bounds.bound(c, eta, K, S) if eta <= largest else None

    return Theorem(f"Theorem 1 (K = {K})", METRIC, limits, bound, c.gap, best_step, vectors=2)


def dsgd(c: Constants) -> Theorem:
    """DSGD (Lian et al. 2017, Theorem 1), with n = m, γ = η and ρ = λ²; they assume ζ² everywhere.

    With q = η²mL²/(1−λ)² they have D₂ = 1 − 18q and D₁ = ½ − 9q/D₂ = (1 − 36q)/(2D₂), so D₁ > 0 if and only if
    q < 1/36, that is η < (1−λ)/(6L√m). They also need ηL <= 1, which is then less than 1/6.
    """
    m, lam, L = c.checked()[:3]

    def bound(eta: float, S: int) -> Bound | None:
        whole(S=S)
        positive(η=eta)
        q = eta**2 * m * L**2 / (1 - lam) ** 2
        if 36 * q >= 1:
            return None
        d2 = 1 - 18 * q
        d1 = (1 - 36 * q) / (2 * d2)
        return Bound(
            start=c.gap / (eta * S) / d1,
            noise=eta * L * c.variance / (2 * m) / d1,
            graph=eta**2 * L**2 * m * c.variance / ((1 - lam**2) * d2) / d1,
            heterogeneity=9 * q * c.heterogeneity / d2 / d1,
        )

    limits = {"(1−λ)/(6L√m)": (1 - lam) / (6 * L * math.sqrt(m))}
    return Theorem("Lian et al. 2017, Theorem 1,", GRADIENT, limits, bound, c.gap)


def fedavg(c: Constants, K: int, eta_g: float = 1.0) -> Theorem:
    """Generalized FedAvg (Yang, Fang, Liu 2021, Theorem 1) with all workers; FedAvg has the server step η_g = 1.

    It bounds the least E‖∇f(x̄)‖² of all rounds, with σ_L² = σ² and σ_G² = ζ². Its third condition,
    c = ½ − 15K²η²L² > 0, asks for η < 1/(√30 LK) only, and never binds.
    """
    c.checked()
    whole(K=K)
    positive(η_g=eta_g)
    limits = {"1/(8LK)": 1 / (8 * c.L * K), "1/(η_g K L)": 1 / (eta_g * K * c.L)}

    def bound(eta: float, S: int) -> Bound | None:
        whole(S=S)
        positive(η=eta)
        if eta > min(limits.values()):
            return None
        share, drift = 0.5 - 15 * K**2 * eta**2 * c.L**2, 5 * K * eta**2 * c.L**2 / 2
        return Bound(
            start=c.gap / (eta_g * eta * K * S) / share,
            noise=c.L * eta_g * eta * c.variance / (2 * c.m) / share,
            local=drift * c.variance / share,
            heterogeneity=6 * K * drift * c.heterogeneity / share,
        )

    return Theorem("Yang, Fang, Liu 2021, Theorem 1,", LEAST_GRADIENT, limits, bound, c.gap)
