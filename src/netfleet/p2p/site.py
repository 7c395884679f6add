"""One site's part of the network: whom it hears with what weight, and what it took from whom.

Mixing is a sum over links, wᵢⱼ (vⱼ − vᵢ), which the two ends see with opposite signs. What a method keeps in sum over
all workers (y − g, or a correction c) is therefore a sum of such flows. The ledger has, for every neighbour, what came
from it; when it is gone for good, that is taken back and the link's weight moves to oneself. What is left is a sum over
the links among the others, opposite at their ends: the invariant holds among those who remain, whatever rounds the two
ends did or did not share.

| symbol | here | meaning |
|---|---|---|
| wᵢⱼ | `weights[j]` | this site's weight for neighbour j |
| Σ wᵢⱼ (vⱼ − vᵢ) | `ledger[j]` | what came over the link so far, times the method's factor |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from netfleet.algorithms import Algorithm
from netfleet.census import Alone
from netfleet.engines.block import Block, Exchange, Tag
from netfleet.p2p.outbox import Outbox
from netfleet.problems.base import Problem

_LOST, _LEDGER = "lost", "ledger/"


@dataclass
class Neighbourhood:
    """The network as one site knows it: row i of W, without those who are gone or not there yet."""

    m: int
    i: int
    weights: Mapping[int, float]  # of the neighbours
    lost: dict[int, int] = field(default_factory=dict)  # who is gone, and since which round
    varying: bool = True
    freezes: bool = False

    def neighbours(self) -> list[int]:
        """Who is there."""
        return sorted(j for j in self.weights if j not in self.lost)

    def W(self, t: int = 0) -> csr_array:
        """Row i; those of the others are not known here."""
        there = self.neighbours()
        own = 1 - sum(self.weights[j] for j in there)
        columns = np.array([self.i, *there])
        data = np.array([own, *(self.weights[j] for j in there)])
        return csr_array((data, (np.full(len(columns), self.i), columns)), shape=(self.m, self.m))

    def average(self, t: int = 0) -> None:
        """There is no server."""

    def sends(self, i: int, t: int = 0) -> int:
        return len(self.neighbours())

    def messages(self, t: int = 0) -> int:
        return self.sends(self.i, t)

    def active(self, t: int = 0) -> None:
        """A site that is away does not run."""


class SiteHost(Block):
    """The host of one site's worker: a block that keeps a ledger, and remembers what it sent."""

    alone = True  # nobody else is asked about this site's values

    def __init__(
        self,
        problem: Problem,
        hood: Neighbourhood,
        algorithm: Algorithm,
        exchange: Exchange,
        outbox: Outbox | None = None,
    ) -> None:
        super().__init__(problem, hood, exchange, Alone())
        self.hood, self.algorithm, self.outbox = hood, algorithm, outbox or Outbox()
        self._t = -1  # the last round that was done
        self.ledger: dict[int, Tensor] = {}
        self._gone: set[int] = set()  # in the round under way

    def drop(self, j: int, t: int) -> None:
        """Neighbour j is gone from round t on; what came from it is taken back at the end of the round."""
        if j not in self.hood.lost:
            self.hood.lost[j] = t
            self._gone.add(j)

    def took(self, tag: Tag, argument: int, need: Sequence[int], vectors: Tensor) -> None:
        carried = self.algorithm.conserves
        if carried is None or carried.argument != argument or tag.t < 0:
            return
        own, factor = vectors[need.index(self.hood.i)], self.algorithm.flow(tag.t)
        for row, j in enumerate(need):
            if j != self.hood.i and j not in self._gone:
                flow = (vectors[row] - own).mul_(factor * self.hood.weights[j])[None]
                self.ledger[j] = self.ledger[j].add_(flow) if j in self.ledger else flow

    def settle(self, state: Any) -> Any:
        self._t += 1
        carried = self.algorithm.conserves
        for j in sorted(self._gone):
            back = self.ledger.pop(j, None)
            if carried is not None and back is not None:
                state = state._replace(**{carried.field: getattr(state, carried.field) - back})
        self._gone.clear()
        return state

    def memory(self) -> dict[str, Tensor]:
        kept = {f"{_LEDGER}{j}": values.clone() for j, values in self.ledger.items()}
        lost = [[j, t] for j, t in sorted(self.hood.lost.items())]
        return kept | self.outbox.memory(self._t) | {_LOST: torch.tensor(lost, dtype=torch.int64).reshape(-1, 2)}

    def recall(self, memory: dict[str, Tensor]) -> None:
        names = [name for name in memory if name.startswith(_LEDGER)]
        self.ledger = {int(name.removeprefix(_LEDGER)): memory[name].clone() for name in names}
        self.outbox.recall(memory)
        self.hood.lost = {int(j): int(t) for j, t in memory.get(_LOST, torch.empty(0, 2)).tolist()}
