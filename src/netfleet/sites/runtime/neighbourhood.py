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

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from netfleet.algorithms import Algorithm, Mix
from netfleet.algorithms.compression import Compressed
from netfleet.engines.collective import SingleSite
from netfleet.engines.host import Exchange, PartialHost, Tag
from netfleet.errors import ConfigError
from netfleet.problems.base import Problem
from netfleet.sites.network.outbox import Outbox

_LOST, _SINCE, _LEDGER = "lost", "since", "ledger/"


#: The first round of a link that is not agreed upon.
NEVER = 1 << 62


@dataclass
class Neighbourhood:
    """The network as one site knows it: row i of W, without those who are gone or not there yet.

    The training asks it and gives links up in one thread; links are added in another.
    """

    i: int
    weights: dict[int, float]  # of the neighbours
    lost: dict[int, int] = field(default_factory=dict)  # who is gone, and since which round
    since: dict[int, int] = field(default_factory=dict)  # who came later, and the first round of the link
    varying: bool = True
    freezes: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def m(self) -> int:
        """Workers that W has room for."""
        return max(self.i, *self.weights, 0) + 1

    def there(self, j: int, t: int) -> bool:
        """Whether neighbour j takes part in round t."""
        return j not in self.lost and self.since.get(j, 0) <= max(t, 0)

    def neighbours(self, t: int) -> list[int]:
        """Who is there in round t."""
        return sorted(j for j in list(self.weights) if self.there(j, t))

    def agreed(self) -> bool:
        """Whether there is any link, now or later."""
        return any(j not in self.lost and self.since.get(j, 0) != NEVER for j in list(self.weights))

    def add(self, j: int, t: int) -> None:
        """From round t on the link to j is there, as if it were new."""
        with self._lock:
            self.since[j] = t  # first this: whoever looks in between must not see the old link
            self.lost.pop(j, None)

    def links(self) -> tuple[dict[int, int], dict[int, int]]:
        """The first rounds of links that came later, and the first without those that are lost."""
        with self._lock:
            return {j: t for j, t in self.since.items() if t != NEVER}, dict(self.lost)

    def recall(self, since: Mapping[int, int], lost: Mapping[int, int]) -> None:
        """Take over what was kept; what was agreed upon since then stands."""
        with self._lock:
            for j, t in since.items():
                known = self.since.get(j, NEVER)
                self.since[j] = t if known == NEVER else max(known, t)
            both = dict(lost) | self.lost
            self.lost = {j: t for j, t in both.items() if j in self.weights and t >= self.since.get(j, 0)}

    def drop(self, j: int, t: int) -> None:
        """From round t on the link to j is gone, unless another was agreed upon meanwhile."""
        with self._lock:
            if self.since.get(j, 0) <= max(t, 0):
                self.lost.setdefault(j, t)

    def W(self, t: int = 0) -> csr_array:
        """Row i; those of the others are not known here."""
        there = self.neighbours(t)
        own = 1 - sum(self.weights[j] for j in there)
        columns = np.array([self.i, *there])
        data = np.array([own, *(self.weights[j] for j in there)])
        return csr_array((data, (np.full(len(columns), self.i), columns)), shape=(self.m, self.m))

    def average(self, t: int = 0) -> None:
        """There is no server."""

    def sends(self, i: int, t: int = 0) -> int:
        return len(self.neighbours(t))

    def messages(self, t: int = 0) -> int:
        return self.sends(self.i, t)

    def active(self, t: int = 0) -> None:
        """A site that is away does not run."""


class SiteHost(PartialHost):
    """The host of one site's worker: a block that keeps a ledger, and remembers what it sent."""

    decides_alone = True  # nobody else is asked about this site's values

    def __init__(
        self,
        problem: Problem,
        hood: Neighbourhood,
        algorithm: Algorithm,
        exchange: Exchange,
        outbox: Outbox | None = None,
    ) -> None:
        super().__init__(problem, hood, exchange, SingleSite())
        self.hood, self.algorithm, self.outbox = hood, algorithm, outbox or Outbox()
        self._t = -1  # the round under way
        self.ledger: dict[int, Tensor] = {}

    def drop(self, j: int, t: int) -> None:
        """Neighbour j is gone from round t on; what came from it is taken back at the end of the round."""
        self.hood.drop(j, t)

    def mixer(self, t: int) -> Mix:
        self._t = t
        return super().mixer(t)

    def took(self, tag: Tag, argument: int, need: Sequence[int], vectors: Tensor) -> None:
        carried = self.algorithm.conserves
        if carried is None or carried.argument != argument or tag.t < 0:
            return
        own, factor = vectors[need.index(self.hood.i)], self.algorithm.flow(tag.t)
        for row, j in enumerate(need):
            if j != self.hood.i:
                flow = (vectors[row] - own).mul_(factor * self.hood.weights[j])[None]
                self.ledger[j] = self.ledger[j].add_(flow) if j in self.ledger else flow

    def settle(self, state: Any) -> Any:
        carried = self.algorithm.conserves
        for j in [j for j in self.ledger if not self.hood.there(j, self._t)]:
            back = self.ledger.pop(j)
            if carried is not None:
                state = state._replace(**{carried.field: getattr(state, carried.field) - back})
        return state

    def network_state(self) -> dict[str, Tensor]:
        kept = {f"{_LEDGER}{j}": values.clone() for j, values in self.ledger.items()}
        since, lost = self.hood.links()
        return kept | self.outbox.network_state(self._t) | {_LOST: _pairs(lost), _SINCE: _pairs(since)}

    def load_network_state(self, memory: dict[str, Tensor]) -> None:
        names = [name for name in memory if name.startswith(_LEDGER)]
        self.ledger = {int(name.removeprefix(_LEDGER)): memory[name].clone() for name in names}
        self.outbox.load_network_state(memory)
        nothing = _pairs({})
        self.hood.recall(dict(memory.get(_SINCE, nothing).tolist()), dict(memory.get(_LOST, nothing).tolist()))


def _pairs(values: Mapping[int, int]) -> Tensor:
    return torch.tensor(sorted(values.items()), dtype=torch.int64).reshape(-1, 2)


def check_losable(algorithm: Algorithm) -> None:
    """Raise unless neighbours of sites that run this method may go and come."""
    tracks = set(algorithm.State._fields) & {"y", "c"}
    if isinstance(algorithm, Compressed):
        raise ConfigError(
            f"{algorithm.title} with compress: what neighbours remember of each other cannot be taken back, so a site "
            f"that is lost must come back; use patience = 0, or leave compress out"
        )
    if algorithm.conserves is None and tracks:
        raise ConfigError(
            f"{algorithm.title} keeps a sum over all workers ({', '.join(sorted(tracks))}) but does not say how "
            f"exchanges feed it; add conserves = Conserved(field, argument) to the method, or use patience = 0"
        )
