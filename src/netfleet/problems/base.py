"""The m local objectives fᵢ, as an algorithm sees them: `f.sample`, `f.grad` and, for metrics, exact values.

A `Problem` hosts the rows of some of the m workers; `f.at([3])` is the same problem hosting worker 3 only, with the
same mini-batches. Vectors are flat: `[rows, d]`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from netfleet.gradients.paths import Sample
from netfleet.registry import Registry


class Scores(NamedTuple):
    """How good each of some models is on held-out data; a problem without labels has no accuracy."""

    loss: Tensor  # [rows]
    accuracy: Tensor | None  # [rows], between 0 and 1


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
    def objective(self, x: Tensor, limit: int = 0) -> tuple[Tensor, Tensor]:
        """f(x) and ∇f(x) at one model `[d]`, over the hosted workers, from at most `limit` samples (0: all)."""

    @abstractmethod
    def evaluate(
        self, x: Tensor, *, workers: Sequence[int] | None = None, buffers: Tensor | None = None, limit: int = 0
    ) -> Scores:
        """Scores of the models `[rows, d]` on held-out data, from at most `limit` of its samples (0: all).

        `workers` are those whose models the rows are, `buffers` their module buffers; without them a row is an average.
        """

    def label_counts(self) -> npt.NDArray[np.int64] | None:
        """How many samples of each label each worker holds, `[m, classes]`, or None without labels."""
        return None


PROBLEMS: Registry[Problem] = Registry("problem", returns=Problem)
