"""What carries the messages of a round: the topology itself, a failing one, or a server that averages exactly.

| symbol | here | meaning |
|---|---|---|
| m, n | `m`, `n` | number of workers, and of those that a round is done with |
| 𝒮_t | `chosen(t)` | who takes part in round t |

Engines see a network only through `Network`; a `Topology` is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from netfleet.algorithms.base import Algorithm, check_participation, participants
from netfleet.compression import Compressed
from netfleet.config import Faults
from netfleet.errors import ConfigError
from netfleet.faults import Unreliable
from netfleet.randomness import generator
from netfleet.topology import Topology

Mask = npt.NDArray[np.bool_]
Weights = npt.NDArray[np.float64]


class Network(Protocol):
    """Who hears whom in round t, with what weight, and how many messages that takes."""

    @property
    def m(self) -> int: ...
    @property
    def varying(self) -> bool: ...

    def W(self, t: int = 0) -> csr_array:
        """The weights of round t; row i is what worker i makes of the others."""

    def average(self, t: int = 0) -> Weights | None:
        """The one row of a W(t) whose rows are all equal, where that is how it is meant."""

    def sends(self, i: int, t: int = 0) -> int:
        """Messages of one exchange that are sent by worker i, or to it by a server."""

    def messages(self, t: int = 0) -> int:
        """Messages of one exchange, of all workers."""

    def active(self, t: int = 0) -> Mask | None:
        """Who computes in round t, `[m]`; None: all do."""

    @property
    def freezes(self) -> bool:
        """Whether those who do not compute keep all that they have; else the method says what they keep."""


@dataclass(frozen=True)
class Server:
    """The exact average over those who take part, given to everyone: one message up and one down for each of them."""

    m: int
    participation: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_participation(self.participation)

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
        """Who takes part in round t: n workers drawn for (seed, t)."""
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


def network_for(algorithm: Algorithm, topology: Topology, seed: int, faults: Faults | None = None) -> Network:
    """What an algorithm's messages travel over: the topology, failing if told so, or the server that it is for."""
    if algorithm.server:
        if faults is not None:
            raise ConfigError(
                f"network: {algorithm.title} has a server and no links that could fail; use participation for workers "
                f"that are away, or leave [network] out"
            )
        return Server(topology.m, getattr(algorithm, "participation", 1.0), seed)
    network = topology if faults is None else Unreliable(topology, faults, seed)
    if isinstance(algorithm, Compressed) and algorithm.memory and network.varying:
        raise ConfigError(
            "compress: differences need weights that stay as they are, but these change from round to round; add "
            "memory = false to send the vectors themselves, or use a fixed graph without failures"
        )
    _check_eigenvalues(algorithm, topology)
    return network


def _check_eigenvalues(method: Algorithm, topology: Topology) -> None:
    if method.least_eigenvalue <= -1:
        return
    if not topology.schedule.symmetric:
        raise ConfigError(
            f"{method.title} needs symmetric weights, but {topology.name!r} has rounds in which workers are not heard "
            f"by those whom they hear; use another graph, or a method that tracks gradients"
        )
    least = topology.least_eigenvalue
    if least < method.least_eigenvalue - 1e-9:
        raise ConfigError(
            f"{method.title} diverges if W has an eigenvalue below {method.least_eigenvalue:.3g}, and the least is "
            f"{least:.3g} here; {method.remedy(least)}"
        )
