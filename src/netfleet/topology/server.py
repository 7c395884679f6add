"""A server that averages exactly over the workers that take part in a round: n of m, the set 𝒮_t = `chosen(t)`."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from scipy.sparse import csr_array

from netfleet.errors import ConfigError
from netfleet.randomness import generator
from netfleet.topology.network import Mask, Weights


def _check_participation(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ConfigError(f"{name}, the share of workers that take part in a round, must lie in (0, 1], got {value!r}")


Participation = Annotated[float, _check_participation]


@dataclass(frozen=True)
class CentralServer:
    """The exact average over those that take part, sent to all: a message up and one down for each that takes part."""

    m: int
    participation: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _check_participation("participation", self.participation)

    @property
    def n(self) -> int:
        """How many take part in a round."""
        return participants(self.m, self.participation)

    @property
    def varying(self) -> bool:
        return self.n < self.m

    @property
    def freezes(self) -> bool:
        return False

    def chosen(self, t: int) -> list[int]:
        """The workers that take part in round t: n of them, drawn for (seed, t)."""
        if not self.varying:
            return list(range(self.m))
        return sorted(generator("participation", self.seed, t).permutation(self.m)[: self.n].tolist())

    def W(self, t: int = 0) -> csr_array:
        return csr_array(np.broadcast_to(self.average(t), (self.m, self.m)))

    def average(self, t: int = 0) -> Weights:
        weights = np.zeros(self.m)
        weights[self.chosen(t)] = 1 / self.n
        return weights

    def sends(self, i: int, t: int = 0) -> int:
        return 2 if self.m > 1 and i in self.chosen(t) else 0

    def messages(self, t: int = 0) -> int:
        return 2 * self.n if self.m > 1 else 0

    def active(self, t: int = 0) -> Mask | None:
        return self.average(t) > 0 if self.varying else None


def participants(m: int, participation: float) -> int:
    """How many of m workers take part; at least one."""
    return max(1, round(participation * m))
