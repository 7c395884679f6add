"""How many gradients a method computes, counted by a trial with one number in place of a model."""

from collections.abc import Sequence

import torch
from torch import Tensor

from netfleet.algorithms.base import Algorithm
from netfleet.errors import ConfigError
from netfleet.gradients.paths import Sample
from netfleet.problems.base import Problem, Scores


class QueryCounter(Problem):
    """A problem that counts gradients, and raises if they are not of the kind that the accounting is for."""

    m, d, workers, dtype, device = 1, 1, (0,), torch.float64, torch.device("cpu")

    def __init__(self, title: str, seed: int) -> None:
        self.title, self.seed, self.count = title, seed, 0
        self._used: set[tuple[int, int]] = set()

    def sample(self, t: int, k: int) -> Sample:
        return Sample(t, k, 0)

    def grad(self, x: Tensor, sample: Sample) -> Tensor:
        if sample[:2] in self._used:
            raise ConfigError(
                f"privacy: {self.title} uses a mini-batch twice, which the accounting does not cover; use another "
                f"method, such as net-fleet or k-gt"
            )
        self._used.add(sample[:2])
        self.count += 1
        return torch.zeros_like(x)

    def full_grad(self, x: Tensor) -> Tensor:
        raise ConfigError(
            f"privacy: {self.title} computes gradients over all of a worker's rows; use another method, such as "
            f"net-fleet or k-gt"
        )

    def start(self) -> Tensor:
        return torch.zeros(1, dtype=self.dtype)

    def at(self, workers: Sequence[int]) -> Problem:
        return self

    def objective(self, x: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def evaluate(self, x: Tensor, **_: object) -> Scores:
        raise NotImplementedError


def _alone(*vectors: Tensor) -> Tensor | tuple[Tensor, ...]:
    """An exchange with nobody."""
    copies = tuple(v.clone() for v in vectors)
    return copies[0] if len(copies) == 1 else copies


def queries_after(algorithm: Algorithm, rounds: int, seed: int = 0) -> tuple[int, ...]:
    """The number of a worker's gradients after 0, 1, … rounds, those before the first round included."""
    f = QueryCounter(algorithm.title, seed)
    state = algorithm.init(f, _alone, torch.zeros(1, 1, dtype=f.dtype))  # type: ignore[arg-type]
    counts = [f.count]
    for t in range(rounds):
        state = algorithm.round(f, _alone, t, state)  # type: ignore[arg-type]
        counts.append(f.count)
    return tuple(counts)
