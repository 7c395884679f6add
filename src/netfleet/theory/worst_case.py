"""How close NET-FLEET comes to Theorem 1's right-hand side, exactly: the worst case over quadratics of one variable.

On fᵢ(x) = Aᵢx²/2 + cᵢx a round is linear in state, offsets c and noise, so its matrices come from one round of the
method itself on a basis. The theorem's left-hand side is then a quadratic form in c plus a multiple of σ², and so is
its right-hand side with f* in place of E𝔓_S: the largest ratio over all c, from x⁰ = 0, is a generalized eigenvalue,
and the noise has a ratio of its own. That inequality holds for all c and σ at these W, A, K, η and S if and only if
neither exceeds 1. The printed one, with E𝔓_S, is stronger: it also needs 𝔓 to fall in every round. Each Aᵢ may have
either sign; only f needs to be bounded from below.
"""

from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from netfleet.algorithms import ALGORITHMS
from netfleet.theory import bounds as theory
from netfleet.theory.bounds import Constants

Array = npt.NDArray[np.float64]
Side = Literal["start", "noise"]  # of what a case is the worst


class Worst(NamedTuple):
    """Left-hand over right-hand side, after the number of rounds at which that is largest."""

    start: float  # without noise, over all offsets
    noise: float  # without offsets

    @property
    def ratio(self) -> float:
        return max(self.start, self.noise)


def constants(W: Array, A: Array) -> Constants:
    """m, λ and L of a mixing matrix and curvatures."""
    magnitudes = np.sort(np.abs(np.linalg.eigvalsh(W)))
    lam = float(magnitudes[-2]) if len(W) > 1 else 0.0
    return Constants(len(W), lam if lam > 1e-12 else 0.0, float(np.abs(A).max())).checked()


@np.errstate(over="ignore", invalid="ignore")
def worst(W: Array, A: Array, K: int, eta: float, doublings: int = 16) -> Worst:
    """The largest ratios after 1, 2, 4, … rounds; infinite where NET-FLEET diverges."""
    c, m, slope, ones = constants(W, A), len(W), float(A.mean()), np.ones(W.shape) / len(W)
    system = LinearRound(W, A, K, eta)
    step, noise = system.after  # of the state with the offsets beside it
    begin = np.concatenate([np.zeros((m, m)), np.eye(m), np.eye(m), np.eye(m)])  # x⁰ = 0, y⁰ = g⁰ = c
    shaken = begin * (np.arange(4 * m) < 3 * m)[:, None]  # y⁰ = g⁰ = noise, c = 0
    once = sum(metric_form(x.state, slope, c.L) for x in system.models)
    within = sum(float(np.trace(metric_form(x.noise, slope, c.L, offsets=False))) for x in system.models)
    sums, sums_of_sums, power = once, np.zeros_like(once), step  # over s < S: T^sᵀ H T^s, and of these sums; T^S
    found = Worst(0.0, 0.0)
    for S in (2**j for j in range(doublings + 1)):
        # R^(−½) of the right-hand side cᵀRc without noise: f(0) − f* = c̄²/(2Ā), and y⁰ has the spread of c.
        gap = theory.bound(c._replace(gap=1.0), eta, K, S).total / (2 * slope)
        spread = theory.bound(c._replace(spread=1.0), eta, K, S).total
        root = ones / np.sqrt(gap / m) + (np.eye(m) - ones) / np.sqrt(spread)
        form = root @ begin.T @ sums @ begin @ root / (S * K)
        if not np.isfinite([form.max(), form.min(), sums_of_sums.max(), sums_of_sums.min()]).all():
            return Worst(np.inf, np.inf)
        start = float(np.linalg.eigvalsh(form)[-1])
        left_noise = np.trace(shaken.T @ sums @ shaken) + np.trace(noise.T @ sums_of_sums @ noise) + S * within
        allowed = theory.bound(c._replace(variance=1.0, spread=m - 1.0), eta, K, S).total
        found = Worst(max(found.start, start), max(found.noise, float(left_noise) / (S * K) / allowed))
        sums_of_sums = sums_of_sums + S * sums + power.T @ sums_of_sums @ power
        sums, power = sums + power.T @ sums @ power, power @ power
    return found


def metric_form(x: Array, slope: float, L: float, *, offsets: bool = True) -> Array:
    """Theorem 1's metric as a form in what the models x `[m, n]` are linear in, the last m of it being the offsets."""
    m = len(x)
    gradient = slope * x.mean(0)
    if offsets:
        gradient[-m:] += 1 / m
    return np.asarray(np.outer(gradient, gradient) + L**2 / m * x.T @ (x - x.mean(0)))


class Case(NamedTuple):
    """A graph, curvatures and local steps, to be tried at the largest admissible η."""

    weights: Array  # of all pairs of workers, as logarithms
    pull: float  # W = I − pull · L / λmax(L) with the weights' Laplacian L
    A: Array
    K: int

    @property
    def W(self) -> Array:
        m = len(self.A)
        weights = np.zeros((m, m))
        weights[np.triu_indices(m, 1)] = np.exp(self.weights)
        laplacian = np.diag((weights + weights.T).sum(1)) - weights - weights.T
        return np.asarray(np.eye(m) - self.pull * laplacian / np.linalg.eigvalsh(laplacian)[-1])

    @property
    def eta(self) -> float:
        return theory.largest_step(constants(self.W, self.A), self.K)[0]

    def ratios(self) -> Worst:
        """Left over right-hand side; 0 where f has no minimum to speak of."""
        if self.A.mean() <= 1e-4 * np.abs(self.A).max():
            return Worst(0.0, 0.0)
        return worst(self.W, self.A, self.K, self.eta)


def drawn(rng: np.random.Generator) -> Case:
    """A case at random: 2 to 5 workers, any connected graph, curvatures over four decades, up to 20 local steps."""
    m = int(rng.integers(2, 6))
    size, curvature = rng.normal(0, 2, m * (m - 1) // 2), 10 ** rng.uniform(-2, 2)
    return Case(size, rng.uniform(0.1, 1.99), curvature * rng.uniform(-1, 1, m), int(rng.integers(1, 21)))


def climb(rng: np.random.Generator, side: Side, starts: int = 30, steps: int = 300) -> Case:
    """From the worst of some random cases on, whatever change makes that side of it worse."""

    def height(case: Case) -> float:
        return float(getattr(case.ratios(), side))

    case = max((drawn(rng) for _ in range(starts)), key=height)
    highest = height(case)
    for _ in range(steps):
        size = 10 ** rng.uniform(-3, 0)
        other = Case(
            case.weights + size * rng.normal(size=case.weights.shape),
            float(np.clip(case.pull + size * rng.normal(), 0.01, 1.999)),
            case.A * np.exp(size * rng.normal()) + size * np.abs(case.A).max() * rng.normal(size=case.A.shape),
            max(1, case.K + int(rng.integers(-2, 3))),
        )
        if (found := height(other)) > highest:
            case, highest = other, found
    return case


class _Map(NamedTuple):
    """A linear function of the state before a round with the offsets beside it, and of the round's noise."""

    state: Array
    noise: Array


class LinearRound:
    """A round's matrices: what it makes of the state, and the models x_{s,0}, …, x_{s,K−1} within it."""

    def __init__(self, W: Array, A: Array, K: int, eta: float) -> None:
        m = len(W)
        self.size, self.A, self.calls = 4 * m, torch.from_numpy(A)[:, None], list[Tensor]()
        basis = torch.eye(self.size + K * m, dtype=torch.float64)
        self.offset, noise = basis[3 * m : 4 * m], basis[4 * m :]
        self.noise = noise.reshape(K, m, -1)
        method: Any = ALGORITHMS.build({"kind": "net-fleet", "K": K, "eta": eta})
        matrix = torch.from_numpy(W)
        state = method.State(*basis[: 3 * m].reshape(3, m, -1))
        after = method.round(self, lambda *vectors: tuple(matrix @ v for v in vectors), 0, state)
        self.after = self._map(torch.cat([*after, self.offset]))
        self.models = [self._map(x) for x in (state.x, *self.calls[:-1])]

    def sample(self, t: int, k: int) -> int:
        return k

    def grad(self, x: Tensor, k: int) -> Tensor:
        self.calls.append(x.clone())
        return self.A * x + self.offset + self.noise[len(self.calls) - 1]

    def step(self, x: Tensor, direction: Tensor, eta: float) -> None:
        x.sub_(direction, alpha=eta)

    def _map(self, columns: Tensor) -> _Map:
        return _Map(*np.split(columns.numpy(), [self.size], axis=1))
