"""One site's part of the network: its row of W, the flows over its links, and the host that mixes with both."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from netfleet.algorithms import Algorithm, Mix
from netfleet.algorithms.compression import Compressed, Packed
from netfleet.engines.collective import SingleSite
from netfleet.engines.host import Exchange, PartialHost, Tag, all_finite
from netfleet.engines.loop import diverged
from netfleet.errors import ConfigError
from netfleet.privacy.link_noise import Address, Link, LinkNoise
from netfleet.problems.base import Problem
from netfleet.sites.network.outbox import Outbox
from netfleet.sites.runtime.jumps import UsualNorms
from netfleet.topology.network import Network

_LOST, _SINCE, _FLOW = "lost", "since", "ledger/"
#: The first round of a link that is not agreed on yet.
NEVER = 1 << 62


@dataclass
class Neighbourhood(Network):
    """The network as one site knows it: row i of W, without neighbours that are lost or have not joined yet.

    There is no server, so no `average`; a site that is away does not run, so no `active`. The training reads this and
    drops links in one thread; links are added in another.
    """

    i: int
    weights: dict[int, float]  # of the neighbours
    lost: dict[int, int] = field(default_factory=dict)  # lost neighbours, and the first round without each
    since: dict[int, int] = field(default_factory=dict)  # neighbours that joined later, and the link's first round
    varying: bool = True
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _last: tuple[dict[int, float], csr_array] | None = field(default=None, repr=False)  # weights, and their row of W

    @property
    def m(self) -> int:
        return max(self.i, *self.weights, 0) + 1

    def there(self, j: int, t: int) -> bool:
        return j not in self.lost and self.since.get(j, 0) <= max(t, 0)

    def neighbours(self, t: int) -> list[int]:
        return sorted(j for j in list(self.weights) if self.there(j, t))

    def linked(self) -> list[int]:
        """Neighbours with a link, now or later."""
        return [j for j in sorted(self.weights) if j not in self.lost and self.since.get(j, 0) != NEVER]

    def add(self, j: int, t: int) -> None:
        """From round t on there is a link to j, as if it were new."""
        with self._lock:
            self.since[j] = t  # first this: another thread must not see the old link in between
            self.lost.pop(j, None)

    def links(self) -> tuple[dict[int, int], dict[int, int]]:
        """The first rounds of links that were added, and the first rounds without those that are lost."""
        with self._lock:
            return {j: t for j, t in self.since.items() if t != NEVER}, dict(self.lost)

    def agreed(self) -> dict[int, int]:
        """Every neighbour with which there is a link, now or later, and the link's first round."""
        with self._lock:
            found = {j: self.since.get(j, 0) for j in list(self.weights) if j not in self.lost}
        return {j: t for j, t in found.items() if t != NEVER}

    def restore(self, since: Mapping[int, int], lost: Mapping[int, int]) -> None:
        """Take over what was saved; what was agreed on since then stays."""
        with self._lock:
            for j, t in since.items():
                known = self.since.get(j, NEVER)
                self.since[j] = t if known == NEVER else max(known, t)
            both = dict(lost) | self.lost
            self.lost = {j: t for j, t in both.items() if j in self.weights and t >= self.since.get(j, 0)}

    def drop(self, j: int, t: int) -> None:
        """From round t on there is no link to j, unless a new one was agreed on meanwhile."""
        with self._lock:
            if self.since.get(j, 0) <= max(t, 0):
                self.lost.setdefault(j, t)

    def W(self, t: int = 0) -> csr_array:
        """Row i; the other rows are not known here. It is the same object as long as the neighbours are the same."""
        weights = {j: self.weights[j] for j in self.neighbours(t)}
        if self._last is None or self._last[0] != weights:
            self._last = weights, self._row(weights)
        return self._last[1]

    def _row(self, weights: Mapping[int, float]) -> csr_array:
        columns = np.array([self.i, *weights])
        data = np.array([1 - sum(weights.values()), *weights.values()])
        return csr_array((data, (np.full(len(columns), self.i), columns)), shape=(self.m, self.m))

    def sends(self, i: int, t: int = 0) -> int:
        return len(self.neighbours(t))

    def messages(self, t: int = 0) -> int:
        return self.sends(self.i, t)


class Ledger:
    """What a site took from each neighbour, so that it can be taken back when the neighbour is lost.

    Mixing is a sum over links, wᵢⱼ (vⱼ − vᵢ), which the two ends see with opposite signs. What a method conserves in
    sum over all workers (y − g, or a correction c) is therefore a sum of such flows. The ledger has, for every
    neighbour, the flow that came from it. When the neighbour is lost for good, the site takes that flow back and keeps
    the link's weight for itself. What remains is a sum over the links among the others, opposite at their ends: the
    invariant holds among those that remain, whatever rounds the two ends did or did not share.

    | symbol | here | meaning |
    |---|---|---|
    | wᵢⱼ | `weights[j]` | this site's weight for neighbour j |
    | Σ wᵢⱼ (vⱼ − vᵢ) | `flows[j]` | what came over the link so far, times the method's factor |
    | sᵢⱼ nᵢⱼ | `add_noise` | the link's noise, if it has any: v contains it, and at the other end its opposite |
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm, self.flows = algorithm, dict[int, Tensor]()

    def add(
        self, tag: Tag, argument: int, own: Tensor, others: Mapping[int, Tensor], weights: Mapping[int, float]
    ) -> None:
        """An exchange brought the others' vectors for one argument of `mix`."""
        if self.counts(tag, argument):
            factor = self._algorithm.flow(tag.t)
            for j, vector in others.items():
                self._add(j, (vector - own).mul_(factor * weights[j])[None])

    def counts(self, tag: Tag, argument: int) -> bool:
        """Whether this argument of an exchange feeds what the method conserves."""
        conserved = self._algorithm.conserves
        return conserved is not None and conserved.argument == argument and tag.t >= 0

    def add_noise(self, tag: Tag, j: int, noise: Tensor) -> None:
        """This site has added noise `[1, d]` of its link to j to what it sent."""
        self._add(j, noise * self._algorithm.flow(tag.t))

    def _add(self, j: int, flow: Tensor) -> None:
        self.flows[j] = self.flows[j].add_(flow) if j in self.flows else flow

    def take_back(self, state: Any, lost: Sequence[int]) -> Any:
        """The state without what came from these neighbours."""
        conserved = self._algorithm.conserves
        for j in lost:
            flow = self.flows.pop(j)
            if conserved is not None:
                state = state._replace(**{conserved.field: getattr(state, conserved.field) - flow})
        return state

    def network_state(self) -> dict[str, Tensor]:
        return {f"{_FLOW}{j}": flow.clone() for j, flow in self.flows.items()}

    def load_network_state(self, memory: Mapping[str, Tensor]) -> None:
        found = {name: flow for name, flow in memory.items() if name.startswith(_FLOW)}
        self.flows = {int(name.removeprefix(_FLOW)): flow.clone() for name, flow in found.items()}


class SiteHost(PartialHost):
    """The host of one site's worker: it keeps a ledger, and its messages."""

    decides_alone = True  # no other site is asked about this site's values

    def __init__(
        self,
        problem: Problem,
        neighbourhood: Neighbourhood,
        algorithm: Algorithm,
        exchange: Exchange,
        outbox: Outbox,
        noise: "HostNoise | None" = None,
        norms: UsualNorms | None = None,
    ) -> None:
        """`norms` are only saved and restored with the rest."""
        super().__init__(problem, neighbourhood, exchange, SingleSite(), noise=None if noise is None else noise.noise)
        self._links_noise = noise
        self.neighbourhood, self._outbox, self._ledger = neighbourhood, outbox, Ledger(algorithm)
        self._algorithm, self._norms = algorithm, norms or UsualNorms()
        self._t = -1  # the round under way

    def mixer(self, t: int) -> Mix:
        self._t = t
        if self._links_noise is not None:
            self._links_noise.begin(t)
        mix = super().mixer(t)

        def careful(*vectors: Tensor | Packed) -> Tensor | tuple[Tensor, ...]:
            if not all(all_finite(v.values if isinstance(v, Packed) else v) for v in vectors):
                raise diverged(self._algorithm, "what this site was about to send", max(t, 0))
            return mix(*vectors)  # type: ignore[arg-type]

        return careful  # type: ignore[return-value]

    @property
    def _noisy_links(self) -> list[Link]:
        return [] if self._links_noise is None else self._links_noise.links

    def took(self, tag: Tag, argument: int, need: Sequence[int], vectors: Tensor) -> None:
        rows = dict(zip(need, vectors, strict=True))
        own = rows.pop(self.neighbourhood.i)
        self._ledger.add(tag, argument, own, rows, self.neighbourhood.weights)
        if self._links_noise is not None and self._ledger.counts(tag, argument):
            for j, noise in self._links_noise.drawn(Address(*tag, argument), own[None]):
                self._ledger.add_noise(tag, j, noise)

    def settle(self, state: Any) -> Any:
        lost = [j for j in self._ledger.flows if not self.neighbourhood.there(j, self._t)]
        return self._ledger.take_back(state, lost)

    def network_state(self) -> dict[str, Tensor]:
        since, lost = self.neighbourhood.links()
        kept = self._ledger.network_state() | self._outbox.network_state(self._t)
        kept |= {} if self._links_noise is None else self._links_noise.network_state()
        return kept | self._norms.network_state() | {_LOST: pairs(lost), _SINCE: pairs(since)}

    def load_network_state(self, memory: dict[str, Tensor]) -> None:
        self._ledger.load_network_state(memory)
        self._outbox.load_network_state(memory)
        self._norms.load_network_state(memory)
        if self._links_noise is not None:
            self._links_noise.load_network_state(memory)
        since, lost = (memory.get(name, pairs({})).cpu() for name in (_SINCE, _LOST))
        self.neighbourhood.restore(dict(since.tolist()), dict(lost.tolist()))


class HostNoise(Protocol):
    """What a site's host asks about the noise of its links (`site_noise.SiteNoise`)."""

    noise: LinkNoise

    def begin(self, t: int) -> None:
        """Round t begins."""

    @property
    def links(self) -> list[Link]:
        """The links that have noise in this round."""

    def drawn(self, address: Address, like: Tensor) -> Iterator[tuple[int, Tensor]]:
        """What this site added for each neighbour to a vector `[1, d]`."""

    def network_state(self) -> dict[str, Tensor]:
        """What the noise of later rounds depends on."""

    def load_network_state(self, memory: Mapping[str, Tensor]) -> None:
        """Continue from what `network_state` returned."""


def pairs(values: Mapping[int, int]) -> Tensor:
    """A table of whole numbers, `[rows, 2]`."""
    return torch.tensor(sorted(values.items()), dtype=torch.int64).reshape(-1, 2)


def why_fixed(algorithm: Algorithm) -> ConfigError | None:
    """Why sites that run this method cannot lose neighbours and get new ones, if so."""
    tracks = set(algorithm.State._fields) & {"y", "c"}
    if isinstance(algorithm, Compressed):
        return ConfigError(
            f"{algorithm.title} with compress: a lost neighbour cannot be removed, so a site "
            f"that is lost must come back; use patience = 0, or leave compress out"
        )
    if algorithm.conserves is None and tracks:
        return ConfigError(
            f"{algorithm.title} keeps a sum over all workers ({', '.join(sorted(tracks))}) but does not say how "
            f"exchanges feed it; add conserves = Conserved(field, argument) to the method, or use patience = 0"
        )
    return None
