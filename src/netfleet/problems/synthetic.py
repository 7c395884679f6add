"""Problems whose smoothness L and gradient variance σ² are known, and mostly the optimum x*, to hold theory against."""

import copy
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from netfleet import randomness
from netfleet.data import load_dataset, make_partition
from netfleet.data.tensors import only
from netfleet.errors import ConfigError
from netfleet.gradients.paths import Sample
from netfleet.problems.base import PROBLEMS, Problem, Scores
from netfleet.problems.site_weights import Shares
from netfleet.registry import Spec

Array = npt.NDArray[np.float64]
_DRAWN = 1 << 13  # numbers of noise that are drawn ahead


class _Synthetic(Problem):
    """What they share: models start at 0, the loss of an evaluation is the global f itself."""

    _whole: "_Synthetic | None" = None  # the problem with all workers, where this one hosts some of them
    per_worker: tuple[str, ...]  # the attributes with a row for each hosted worker
    scale: Tensor | None = None  # [rows, 1]: m pᵢ of each hosted worker

    def __init__(self, workers: int, d: int, seed: int, dtype: torch.dtype, device: str) -> None:
        if workers < 1 or d < 1:
            raise ConfigError(f"workers and d must be at least 1, got workers = {workers}, d = {d}")
        self.m, self.d, self.seed = workers, d, seed
        self.dtype, self.device = dtype, torch.device(device)
        self.workers, self.size = tuple(range(workers)), workers
        self._drawn: dict[int, tuple[int, Tensor]] = {}  # noise by step: its first round, and `[rounds, rows, d]`

    def start(self) -> Tensor:
        return torch.zeros(self.d, dtype=self.dtype, device=self.device)

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self.device, self.dtype)

    def at(self, workers: Sequence[int]) -> Problem:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        index = [self.workers.index(i) for i in workers]
        other.workers, other._whole, other._drawn = tuple(workers), self._whole or self, {}
        other.size = self.size // len(self.workers) * len(workers)
        for name in self.per_worker + (("scale",) if self.scale is not None else ()):
            setattr(other, name, getattr(self, name)[index])
        return other

    @property
    def sizes(self) -> Sequence[int]:
        return [self.size // len(self.workers)] * self.m

    def with_shares(self, shares: Shares) -> Problem:
        other = copy.copy(self)
        other.shares, other._drawn, other._whole = torch.from_numpy(shares), {}, None
        other.scale = self._tensor(self.m * shares)[list(self.workers), None]
        largest = float(self.m * shares.max())
        other.smoothness = None if self.smoothness is None else largest * self.smoothness
        other.variance = None if self.variance is None else largest**2 * self.variance
        other.optimum = other.minimiser()
        return other

    def minimiser(self) -> Tensor | None:
        """The minimiser of the weighted objective, where it is known."""
        return None

    def scaled(self, values: Tensor) -> Tensor:
        """What workers compute `[rows, …]` as it counts."""
        return values if self.scale is None else values * (self.scale if values.dim() > 1 else self.scale[:, 0])

    def objective(self, x: Tensor) -> tuple[Tensor, Tensor]:
        everywhere = x.expand(len(self.workers), -1)
        return self.values(everywhere).mean(), self.full_grad(everywhere).mean(dim=0)

    @abstractmethod
    def values(self, x: Tensor) -> Tensor:
        """fᵢ(xᵢ) for each hosted worker, `[rows]`."""

    def evaluate(self, x: Tensor, **options: object) -> Scores:
        f = self._whole or self
        return Scores(torch.stack([f.values(row.expand(f.m, -1)).mean() for row in x]), None)


@PROBLEMS.register("quadratics")
class Quadratics(_Synthetic):
    r"""fᵢ(x) = ½ (x − bᵢ)ᵀ Aᵢ (x − bᵢ) with eigenvalues of Aᵢ in [mu, L] and ‖bᵢ‖ growing with `heterogeneity`.

    A stochastic gradient is exact plus Gaussian noise with E‖noise‖² = `sigma`². x* = (Σ Aᵢ)⁻¹ Σ Aᵢ bᵢ. With `parts`,
    that many functions are dealt out evenly, and each worker has the mean of its own (up to a constant): f is then the
    same for any number of workers. With `centred`, the bᵢ are shifted so that x* does not depend on the heterogeneity.
    """

    per_worker = ("A", "b")

    def __init__(
        self,
        workers: int,
        d: int = 10,
        mu: float = 0.5,
        L: float = 2.0,
        heterogeneity: float = 1.0,
        sigma: float = 0.0,
        parts: int = 0,
        centred: bool = False,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        super().__init__(workers, d, seed, dtype, device)
        parts = parts or workers
        if parts < 1 or parts % workers:
            raise ConfigError(f"parts must be a multiple of the {workers} workers, or 0 for one each; got {parts}")
        if not 0 < mu <= L or heterogeneity < 0 or sigma < 0:
            raise ConfigError(
                f"quadratics need 0 < mu <= L, heterogeneity >= 0 and sigma >= 0, got mu = {mu}, L = {L}, "
                f"heterogeneity = {heterogeneity}, sigma = {sigma}"
            )
        rng = randomness.generator("quadratics", seed)
        bases = np.linalg.qr(rng.standard_normal((parts, d, d)))[0]
        spectra = mu + (L - mu) * rng.random((parts, d))
        spectra[:, 0] = L
        A = np.einsum("mij,mj,mkj->mik", bases, spectra, bases)
        apart, middle = heterogeneity * rng.standard_normal((parts, d)), rng.standard_normal(d)
        if centred:
            apart -= np.linalg.solve(A.sum(0), np.einsum("mij,mj->i", A, apart))
        b = apart + middle
        if parts > workers:
            Ab = np.einsum("mij,mj->mi", A, b).reshape(workers, -1, d).mean(1)
            A = A.reshape(workers, -1, d, d).mean(1)
            b = np.linalg.solve(A, Ab[..., None])[..., 0]
        self.optimum = self._tensor(np.linalg.solve(A.sum(0), np.einsum("mij,mj->i", A, b)))
        self.smoothness, self.sigma, self.variance = L, sigma, sigma**2
        self.A, self.b = self._tensor(A), self._tensor(b)

    def minimiser(self) -> Tensor:
        scale = torch.ones(self.m, 1) if self.scale is None else self.scale
        A, b = self.A.double() * scale[..., None].to(self.A.device), self.b.double()
        return torch.linalg.solve(A.sum(0), torch.einsum("mij,mj->i", A, b)).to(self.dtype)  # type: ignore[no-any-return]

    def sample(self, t: int, k: int) -> Sample:
        return Sample(t, k, len(self.workers))

    def grad(self, x: Tensor, sample: Sample) -> Tensor:
        exact = self.full_grad(x)
        return exact + self.scaled(self._noise(sample.t, sample.k)) if self.sigma else exact

    def _noise(self, t: int, k: int) -> Tensor:
        """The noise of step k, drawn for some rounds at a time: what a draw costs is mostly its call."""
        first, drawn = self._drawn.get(k, (t, None))
        if drawn is None or not 0 <= t - first < len(drawn):
            rounds = t + np.arange(max(1, _DRAWN // (len(self.workers) * self.d)))[:, None, None]
            ids, place = np.asarray(self.workers)[:, None], np.arange(self.d)[None, :]
            noise = randomness.normal("noise", self.seed, ids, rounds, k, place)
            first, drawn = t, self._tensor(noise * self.sigma / np.sqrt(self.d))
            self._drawn[k] = first, drawn
        return drawn[t - first]

    def full_grad(self, x: Tensor) -> Tensor:
        return self.scaled(torch.einsum("mij,mj->mi", self.A, x - self.b))

    def values(self, x: Tensor) -> Tensor:
        return self.scaled(torch.einsum("mi,mij,mj->m", x - self.b, self.A, x - self.b) / 2)


class _LogisticLoss(_Synthetic):
    """The mean of log(1 + exp(−bⱼ aⱼᵀx)) over each worker's n samples, and a penalty that a subclass defines.

    L and σ² are bounds that hold at every x: λmax(AᵢᵀAᵢ)/(4n) of the worst worker plus the penalty's, and
    meanⱼ‖aᵢⱼ‖²/batch of the worst worker.
    """

    signed: Tensor  # [rows, n, d]: only the products bᵢⱼ aᵢⱼ enter
    per_worker = ("signed",)

    def _hold(self, signed: Array, batch: int, curvature: float) -> None:
        """Keep the data, and what is known of it; `curvature` is the penalty's largest."""
        self.samples, self.batch = signed.shape[1], batch
        self.size = signed.shape[0] * self.samples
        self.smoothness = float(np.linalg.norm(signed, 2, axis=(1, 2)).max() ** 2 / (4 * self.samples) + curvature)
        self.variance = float((signed**2).sum(2).mean(1).max() / batch) if batch else 0.0
        self.signed = self._tensor(signed)

    @abstractmethod
    def penalty(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Its value `[rows]` and its gradient `[rows, d]`."""

    def sample(self, t: int, k: int) -> Sample:
        if self.batch == 0:
            return Sample(t, k, self.size)
        ids, place = np.asarray(self.workers)[:, None], np.arange(self.batch)[None, :]
        rows = randomness.integers(self.samples, "batch", self.seed, ids, t, k, place)
        return Sample(t, k, rows.size, torch.from_numpy(rows))

    def grad(self, x: Tensor, sample: Sample) -> Tensor:
        if sample.rows is None:
            return self.full_grad(x)
        return self._grad(x, self.signed[torch.arange(len(self.workers))[:, None], sample.rows])

    def full_grad(self, x: Tensor) -> Tensor:
        return self._grad(x, self.signed)

    def _grad(self, x: Tensor, signed: Tensor) -> Tensor:
        wrong = torch.sigmoid(-torch.einsum("mnd,md->mn", signed, x))
        return self.scaled(self.penalty(x)[1] - torch.einsum("mn,mnd->md", wrong, signed) / signed.shape[1])

    def values(self, x: Tensor) -> Tensor:
        margins = torch.einsum("mnd,md->mn", self.signed, x)
        return self.scaled(torch.nn.functional.softplus(-margins).mean(1) + self.penalty(x)[0])


@PROBLEMS.register("logistic")
class Logistic(_LogisticLoss):
    r"""Logistic regression with the penalty (l2/2)‖x‖² on data whose law differs between workers.

    Worker i draws aᵢⱼ ~ N(ζ uᵢ, I/d) and labels from a logistic model around w + ζ vᵢ, with ζ = `heterogeneity`.
    """

    def __init__(
        self,
        workers: int,
        d: int = 10,
        samples: int = 100,
        batch: int = 10,
        l2: float = 0.1,
        heterogeneity: float = 1.0,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        super().__init__(workers, d, seed, dtype, device)
        if samples < 1 or batch < 0 or l2 <= 0 or heterogeneity < 0:
            raise ConfigError(
                f"logistic needs samples >= 1, batch >= 0 (0: exact gradients), l2 > 0 and heterogeneity >= 0, got "
                f"samples = {samples}, batch = {batch}, l2 = {l2}, heterogeneity = {heterogeneity}"
            )
        rng = randomness.generator("logistic", seed)
        shift = heterogeneity * rng.standard_normal((workers, 1, d)) / np.sqrt(d)
        a = rng.standard_normal((workers, samples, d)) / np.sqrt(d) + shift
        truth = rng.standard_normal(d) + heterogeneity * rng.standard_normal((workers, d))
        chance = 1 / (1 + np.exp(-np.einsum("mnd,md->mn", a, 4 * truth)))
        b = np.where(rng.random((workers, samples)) < chance, 1.0, -1.0)
        self.l2 = l2
        self._hold(a * b[:, :, None], batch, l2)
        self.optimum = self._tensor(_newton(a * b[:, :, None], np.ones(workers), l2))

    def minimiser(self) -> Tensor:
        scale = np.ones(self.m) if self.scale is None else self.scale[:, 0].double().cpu().numpy()
        return self._tensor(_newton(self.signed.double().cpu().numpy(), scale, self.l2))

    def penalty(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.l2 / 2 * (x * x).sum(1), self.l2 * x


@PROBLEMS.register("nonconvex-logistic")
class NonconvexLogistic(_LogisticLoss):
    r"""Logistic regression on data of two classes with the non-convex penalty α Σⱼ xⱼ² / (1 + xⱼ²).

    Every worker has as many samples as the one with the fewest, so that f is the mean of the fᵢ with equal weights.
    """

    def __init__(
        self,
        workers: int,
        data: Spec = "a9a",
        partition: Spec = "iid",
        batch: int = 10,
        alpha: float = 0.1,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        dataset = load_dataset(data)
        super().__init__(workers, int(np.prod(dataset.inputs)), seed, dtype, device)
        if dataset.classes != 2 or batch < 0 or alpha < 0:
            raise ConfigError(
                f"nonconvex-logistic needs data of two classes, batch >= 0 (0: exact gradients) and alpha >= 0, got "
                f"{dataset.name} with {dataset.classes} classes, batch = {batch}, alpha = {alpha}"
            )
        parts = make_partition(partition, dataset, workers, seed)
        rows = np.stack([part[: min(map(len, parts))] for part in parts])
        x = only(dataset.train_x).flatten(1).numpy().astype(np.float64)[rows]
        signs = 2.0 * only(dataset.train_y).numpy()[rows] - 1
        self.alpha = alpha
        self._hold(x * signs[:, :, None], batch, 2 * alpha)

    def penalty(self, x: Tensor) -> tuple[Tensor, Tensor]:
        squares = x * x
        return self.alpha * (squares / (1 + squares)).sum(1), 2 * self.alpha * x / (1 + squares) ** 2


def _newton(signed: Array, scale: Array, l2: float) -> Array:
    """The minimiser of the average logistic objective: damped Newton steps until the gradient vanishes."""
    weight = np.repeat(scale, signed.shape[1]) / (signed.shape[0] * signed.shape[1])
    signed = signed.reshape(-1, signed.shape[2])
    x = np.zeros(signed.shape[1])
    for _ in range(100):
        wrong = 1 / (1 + np.exp(signed @ x))
        gradient = l2 * x - signed.T @ (weight * wrong)
        hessian = l2 * np.eye(len(x)) + (signed.T * (weight * wrong * (1 - wrong))) @ signed
        step = np.linalg.solve(hessian, gradient)
        x = x - step / max(1.0, float(np.linalg.norm(step)))
        if np.linalg.norm(gradient) < 1e-14:
            break
    return np.asarray(x)
