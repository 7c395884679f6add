"""The paper's convergence theory (Section 4) as code: one function per result, in the paper's symbols.

Theorem 1 is implemented as Section 4 states it; where the proof's versions differ, docs/theory.md says so. λ is the
second-largest eigenvalue of W in magnitude, S the number of rounds, K the local steps of a round. Every function
raises a `ConfigError` for values that no problem has (K < 1, η <= 0, λ = 1, NaN).
"""

import math
from typing import NamedTuple

from torch import Tensor

from netfleet.errors import ConfigError
from netfleet.runs.metrics import consensus_error


class Constants(NamedTuple):
    """What Assumption 1 and the bounds ask of a problem and a graph."""

    m: int
    lam: float
    L: float  # of every ∇fᵢ
    variance: float = 0.0  # σ² of a stochastic gradient
    gap: float = 0.0  # f(x⁰) − f*
    spread: float = 0.0  # E Σᵢ ‖yᵢ − ȳ‖² at the start, where y is a stochastic gradient
    heterogeneity: float = 0.0  # ζ², a bound on (1/m) Σᵢ ‖∇fᵢ − ∇f‖²; NET-FLEET's bound does not have it

    def checked(self) -> "Constants":
        """The constants, if they can be those of a problem."""
        whole(m=self.m)
        _contracting(self.lam)
        positive(L=self.L)
        for name, value in zip(self._fields[3:], self[3:], strict=True):
            if not 0 <= value < math.inf:
                raise ConfigError(f"the theory needs a {name} that is a finite number from 0 on, got {value!r}")
        return self


def whole(**counts: float) -> None:
    for name, value in counts.items():
        if not 1 <= value < math.inf:
            raise ConfigError(f"the theory needs {name} to be at least 1, got {name} = {value!r}")


def positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ConfigError(f"the theory needs {name} to be a finite number above 0, got {name} = {value!r}")


def _contracting(lam: float) -> None:
    if not 0 <= lam < 1:
        raise ConfigError(f"the theory needs 0 <= λ < 1, which a connected graph has, got λ = {lam!r}")


def growth(lam: float, K: int) -> float:
    """1 + λK − λ, by which consensus errors of one round accumulate (Lemma 2)."""
    _contracting(lam)
    whole(K=K)
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
    positive(η=eta)
    gap, a, C = 1 - lam, growth(lam, K), C1(lam, K)
    return Descent(
        1 - L * eta - 24 * C * L**2 * K * eta**3 / (gap * m) - 144 * L**2 * K**2 * eta**3 / (gap**2 * m),
        gap - 24 * C * L**2 * eta**2 / gap - a * m * K * L**2 * eta - 144 * L**2 * eta**2 * K**2 / gap**2,
        gap - 6 * a * K / (C * gap),
    )


def potential(value: float, x: Tensor, y: Tensor, *, eta: float, K: int, lam: float) -> float:
    """𝔓 = f(x̄) + (1/(m²K)) Σᵢ (‖xᵢ − x̄‖² + C₁η² ‖yᵢ − ȳ‖²), with f(x̄) given."""
    positive(η=eta)
    scatter = consensus_error(x) + C1(lam, K) * eta**2 * consensus_error(y)
    return value + scatter.item() / (len(x) * K)


def metric(grad_norm2: float, x: Tensor, L: float) -> float:
    """‖∇f(x̄)‖² + (L²/m) Σᵢ ‖xᵢ − x̄‖², what Theorem 1 bounds the mean of, with the first term given."""
    return grad_norm2 + L**2 * consensus_error(x).item()


class Bound(NamedTuple):
    """A theorem's right-hand side, term by term; None for a term that the theorem does not have."""

    start: float
    noise: float
    graph: float | None = None
    local: float | None = None
    heterogeneity: float | None = None

    @property
    def total(self) -> float:
        return sum(term for term in self if term is not None)


def bound(c: Constants, eta: float, K: int, S: int) -> Bound:
    """Theorem 1: what (1/(SK)) Σ E[‖∇f(x̄)‖² + (L²/m) Σᵢ‖xᵢ − x̄‖²] cannot exceed, for an admissible η."""
    c.checked()
    whole(K=K, S=S)
    positive(η=eta)
    gap, unit = 1 - c.lam, eta * c.variance / c.m
    return Bound(
        start=2 * (c.gap + C1(c.lam, K) * eta**2 * c.spread / (c.m**2 * K)) / (S * K * eta),  # 2(𝔓₀ − f*)/(SKη)
        noise=3 * c.L * unit,
        graph=72 * unit / gap**2,
        local=72 * growth(c.lam, K) * unit / (gap**3 * K),
    )


def corollary(m: int, S: int, scale: float = 1.0, K: int | None = None) -> tuple[int, float]:
    """Corollary 2: η = scale · √(m / (SK)) and, unless given, K = S^⅓ / m, rounded down and at least 1."""
    whole(m=m, S=S)
    K = K or max(1, math.floor(math.cbrt(S) / m + 1e-9))
    whole(K=K)
    positive(scale=scale)
    return K, scale * math.sqrt(m / (S * K))
