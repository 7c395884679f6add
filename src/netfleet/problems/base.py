"""The m local objectives fᵢ, as an algorithm sees them: `f.sample`, `f.grad` and, for metrics, exact values.

A `Problem` hosts the rows of some of the m workers; `f.at([3])` is the same problem hosting worker 3 only, with the
same mini-batches. Vectors are flat: `[rows, d]`.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from netfleet.errors import ConfigError
from netfleet.gradients.paths import Sample
from netfleet.privacy.spending import Spending
from netfleet.problems.scoring import MetricSpec
from netfleet.problems.site_weights import Shares, WeightSpec, resolve_weights, site_weights
from netfleet.registry import Registry


class Scores(NamedTuple):
    """How good each of some models is on held-out data; a problem without labels has no accuracy.

    The errors are the standard errors of scores that are estimated from a part of the data.
    """

    loss: Tensor  # [rows]
    accuracy: Tensor | None  # [rows], between 0 and 1
    loss_error: Tensor | None = None  # [rows]
    accuracy_error: Tensor | None = None  # [rows]
    metrics: Mapping[str, Sequence[float | None]] = {}  # further ones by name, a value for each model


class Objective(NamedTuple):
    """f and ∇f at one model, over the hosted workers: exact, or estimated with deviations from the estimate.

    The sum of deviation · deviationᵀ over their rows estimates the covariance of (value, gradient).
    """

    value: Tensor
    gradient: Tensor  # [d]
    deviations: tuple[Tensor, Tensor] | None = None  # [groups] and [groups, d]


class ParameterGroup(NamedTuple):
    """Parameters that a local step moves in a way of their own."""

    parameters: tuple[int, ...]  # places in `Problem.shapes`
    rate: float = 1.0  # factor of η
    options: Mapping[str, object] = {}  # for the local optimizer


class Problem(ABC):
    """Base of all problems. A problem of your own defines the abstract methods.

    Where they are known, `optimum` is the minimiser x* of f, `smoothness` the L and `variance` the σ² of Assumption 1.
    """

    m: int
    d: int
    workers: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    optimum: Tensor | None = None
    smoothness: float | None = None
    variance: float | None = None
    #: The seed of the mini-batches.
    seed: int = 0
    #: Parameters with rates and options of their own; none: all are moved alike.
    groups: tuple[ParameterGroup, ...] = ()
    #: How far `step` moves in the long run along a constant direction, per unit of it and of η.
    gain: float = 1.0
    #: Whether the tensors of a state may be overwritten by the round that follows it.
    owns_state: bool = False
    #: Which of the hosted workers take part in this round, `[rows, 1]` or one for all; set by the engine.
    active: Tensor = torch.tensor([[True]])
    #: Training samples of the hosted workers: what `full_grad` uses.
    size: int = 0
    #: The `buffers` before training.
    initial_buffers: Tensor | None = None
    #: Module buffers (BatchNorm statistics) `[rows, b]` that `grad` updates, where the model has any.
    buffers: Tensor | None = None
    #: Whether the engine averages `buffers` with the neighbours whenever the algorithm mixes.
    mixes_buffers: bool = False

    #: What private gradients cost. None: they are not private.
    spending: Spending | None = None
    #: How much each of the m workers counts, `[m]`; they sum to 1. None: all alike.
    shares: Tensor | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.m} workers, {self.d} parameters>"

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        """The shapes of the parameters, which lie one after the other in a row of x."""
        return (torch.Size((self.d,)),)

    def step(self, x: Tensor, direction: Tensor, eta: float) -> None:
        """Move the models x `[rows, d]` in place along a direction: how every local step is made."""
        if not self.groups:
            x.sub_(direction, alpha=eta)
            return
        for columns, group, _ in pieces(self.shapes, self.groups, merged=True):
            x[:, columns].sub_(direction[:, columns], alpha=eta * group.rate)

    def next_step(self) -> Tensor | bool:
        """Who makes the next local step: all, nobody, or some of the rows; for what makes steps in place of `step`."""
        return True

    @property
    def sizes(self) -> Sequence[int]:
        """Training rows of each of the m workers."""
        raise ConfigError(
            f"{type(self).__name__} does not know how many rows its workers have; give weights as numbers"
        )

    def weighted(self, weights: WeightSpec) -> "Problem":
        """The problem whose objective is Σᵢ pᵢ fᵢ: "rows", {"kind": "rows", "cap": 0.5} or a number per worker.

        Each worker then computes m pᵢ fᵢ in place of fᵢ.
        """
        resolved = resolve_weights(weights)
        if resolved == {"kind": "equal"} and self.shares is None:
            return self
        return self.with_shares(site_weights(resolved, self.sizes if isinstance(resolved, dict) else [1] * self.m))

    def with_shares(self, shares: Shares) -> "Problem":
        """The problem with these p, `[m]`; a problem of your own that can be weighted overrides this."""
        advice = "multiply its gradients and values by m pᵢ, and override with_shares() to return such a problem"
        raise ConfigError(f"{type(self).__name__} has no weights of workers; {advice}")

    @abstractmethod
    def start(self) -> Tensor:
        """The common initial model x⁰, `[d]`."""

    @abstractmethod
    def at(self, workers: Sequence[int]) -> "Problem":
        """The same problem hosting only these workers."""

    def among(self, rows: Sequence[int]) -> "Problem":
        """The same problem hosting only some of its rows, for a round in which the others do not take part."""
        return self.at([self.workers[i] for i in rows])

    @abstractmethod
    def sample(self, t: int, k: int) -> Sample:
        """The mini-batch of round t, step k for each hosted worker."""

    @abstractmethod
    def grad(self, x: Tensor, sample: Sample) -> Tensor:
        """∇fᵢ(xᵢ; ζᵢ) for each hosted worker, `[rows, d]`."""

    @abstractmethod
    def full_grad(self, x: Tensor) -> Tensor:
        """∇fᵢ(xᵢ) for each hosted worker, `[rows, d]`."""

    @abstractmethod
    def objective(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """f(x) and ∇f(x) at one model `[d]`, over the hosted workers."""

    def estimated_objective(self, x: Tensor, per_worker: int) -> Objective:
        """The same from about that many samples of each worker (0: all), without bias; here from all."""
        return Objective(*self.objective(x))

    @abstractmethod
    def evaluate(
        self,
        x: Tensor,
        *,
        workers: Sequence[int] | None = None,
        buffers: Tensor | None = None,
        limit: int = 0,
        metrics: Sequence[MetricSpec] = (),
        own: bool = False,
    ) -> Scores:
        """Scores of the models `[rows, d]` on held-out data, from about `limit` of its samples for each (0: all).

        `workers` are those whose models the rows are, `buffers` their module buffers; without them a row is an average.
        With `own`, each worker's model is scored on all of that worker's own test samples.
        """

    #: Whether each worker has test samples of its own.
    has_own_tests: bool = False

    def check_metrics(self, metrics: Sequence[MetricSpec]) -> None:
        """Raise if one of the metrics does not exist here."""
        if metrics:
            raise ConfigError(f"{type(self).__name__} has no metrics but its loss; leave evaluation.metrics out")

    def label_counts(self) -> npt.NDArray[np.int64] | None:
        """How many samples of each label each worker holds, `[m, classes]`, or None without labels."""
        return None


_WIDEST = 1 << 18  # numbers in a merged piece


class Piece(NamedTuple):
    """Neighbouring columns of x that belong to one group."""

    columns: slice
    group: ParameterGroup
    shape: torch.Size


def pieces(shapes: Sequence[torch.Size], groups: Sequence[ParameterGroup], *, merged: bool) -> list[Piece]:
    """The parameters in their order; `merged`: neighbours of one group are one piece."""
    ends = list(itertools.accumulate(shape.numel() for shape in shapes))
    if not groups:
        groups = [ParameterGroup(tuple(range(len(shapes))))]
    owner = {place: group for group in groups for place in group.parameters}
    found: list[Piece] = []
    for place, group in sorted(owner.items(), key=lambda item: item[0]):
        first, end = ends[place] - shapes[place].numel(), ends[place]
        if merged and found and found[-1].group is group and found[-1].columns.stop == first:
            first = found.pop().columns.start
        found.append(Piece(slice(first, end), group, torch.Size((end - first,)) if merged else shapes[place]))
    return [part for piece in found for part in _cut(piece)] if merged else found


def _cut(piece: Piece) -> Iterator[Piece]:
    """A piece in parts, so that what is computed for one of them needs little memory."""
    for first in range(piece.columns.start, piece.columns.stop, _WIDEST):
        end = min(first + _WIDEST, piece.columns.stop)
        yield Piece(slice(first, end), piece.group, torch.Size((end - first,)))


PROBLEMS: Registry[Problem] = Registry("problem", returns=Problem)
