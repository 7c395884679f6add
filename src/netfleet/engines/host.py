"""Hosts: every engine is one or more of them, and each hosts some of the workers.

A host sees other hosts through `exchange` and `collective` only. `exchange(tag, need, stack, content)` sends the
messages of this host's workers to the hosts that need them and fills in those of the others. Threads use mailboxes, a
cluster uses `torch.distributed`, sites use gRPC.
"""

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from netfleet.algorithms import Mix
from netfleet.algorithms.base import State
from netfleet.algorithms.compression import Packed, pack
from netfleet.compute.arena import Arena
from netfleet.compute.products import Product, as_sparse
from netfleet.engines.collective import Collective
from netfleet.engines.row_blocks import RowBlocks
from netfleet.errors import ConfigError
from netfleet.privacy.link_noise import AddsNoise, Link, links_in
from netfleet.problems.base import Problem
from netfleet.topology.faults import Unreliable
from netfleet.topology.network import Network

S = TypeVar("S", bound=State)


class Tag(NamedTuple):
    """Which message this is: the round (−1 while initialising) and the number of the exchange within it."""

    t: int
    call: int


class Content(NamedTuple):
    """What the bytes of a message are, for transports that validate messages."""

    words: str  # such as "float32[10330] in 41320"
    finite: Callable[[Tensor], bool]  # whether a message's bytes hold finite numbers only
    norms: Callable[[Tensor], list[float]]  # of each vector in a message


#: `stack[i]` is the message of worker `need[i]` as bytes; own rows are given, the others are filled in.
Exchange = Callable[[Tag, Sequence[int], Tensor, Content], None]


class Part(NamedTuple):
    """What some workers need in a round: whose vectors, host by host, and with what weights.

    The weights of a row are in the order of the workers, wherever their vectors are, so sums have the same bits for
    any assignment of workers to hosts.
    """

    need: list[int]
    W: csr_array  # [workers, need]
    own: RowBlocks  # the places of the workers themselves in `need`


class Host(ABC):
    """What runs the loop: it hosts all workers in the simulator, some on a cluster's rank, one at a site."""

    #: Whether this host stops a diverged run without asking other hosts.
    decides_alone = False
    #: What a worker is called in messages to users.
    calls_workers = "worker"

    def __init__(
        self,
        problem: Problem,
        network: Network,
        collective: Collective,
        threads: int,
        noise: AddsNoise | None = None,
    ) -> None:
        """`problem` has the objectives of the workers hosted here; `noise` is added to all that they send."""
        self.problem, self.network, self.collective = problem, network, collective
        self._product, self._sent, self._noise = Product(threads), 0, noise

    def mixer(self, t: int) -> Mix:
        """The average over the neighbourhood in round t (−1 while the algorithm initialises)."""
        average, messages, calls = self._average_of(t), self._messages(max(t, 0)), itertools.count()

        def mix(*vectors: Tensor | Packed) -> Tensor | tuple[Tensor, ...]:
            packed = self._as_sent(Tag(t, next(calls)), [pack(v) for v in vectors])
            self._sent += messages * sum(p.wire.shape[1] for p in packed)
            mixed = average(packed)
            return mixed[0] if len(mixed) == 1 else tuple(mixed)

        return mix  # type: ignore[return-value]

    @abstractmethod
    def _average_of(self, t: int) -> Callable[[Sequence[Packed]], list[Tensor]]:
        """What averages the vectors of a message in round t."""

    def _as_sent(self, tag: Tag, packed: Sequence[Packed]) -> Sequence[Packed]:
        """The vectors of an exchange with the noise of the links."""
        if self._noise is None:
            return packed
        return [pack(v) for v in self._noise.added([p.values for p in packed], self._noisy_links, *tag)]

    @functools.cached_property
    def _noisy_links(self) -> list[Link]:
        """The links of this host's workers, which are the same in all rounds."""
        return links_in(self.network.W(), self.problem.workers)

    def _messages(self, t: int) -> int:
        """Messages that this host's workers send in an exchange of round t."""
        return sum(self.network.sends(i, t) for i in self.problem.workers)

    @property
    def freezes(self) -> bool:
        """Whether a worker that does not take part keeps its whole state; else the method says what it keeps."""
        return self.network.freezes

    def active(self, t: int) -> Tensor | None:
        """Which of this host's workers take part in round t, `[rows, 1]`; None: all do."""
        mask = self.network.active(t)
        return None if mask is None else torch.from_numpy(mask[list(self.problem.workers), None])

    def settle(self, state: S) -> S:
        """A round's state after the changes to this host's links in that round."""
        return state

    def least(self, numbers: Sequence[int]) -> Sequence[int]:
        """The least such list of numbers among all hosts'."""
        workers = self.problem.workers
        found: list[list[int]] = self.collective.gather(torch.tensor([numbers] * len(workers)), workers).tolist()
        return min(found)

    def bytes_sent(self) -> int:
        """Payload bytes that this host's workers have sent so far, or a server has sent to them."""
        return self._sent

    def network_state(self) -> dict[str, Tensor]:
        """What later exchanges depend on, by name."""
        return {}

    def load_network_state(self, memory: dict[str, Tensor]) -> None:  # noqa: B027 (optional)
        """Continue from what `network_state` returned."""


class PartialHost(Host):
    """A host of some of the workers, in ascending order."""

    def __init__(
        self,
        problem: Problem,
        network: Network,
        exchange: Exchange,
        collective: Collective,
        threads: int = 1,
        hosts: Sequence[int] | None = None,
        chunk: int = 0,
        noise: AddsNoise | None = None,
    ) -> None:
        """`hosts` has the host of each worker, so that vectors from one host are contiguous.

        Longer messages of a worker than `chunk` bytes are sent in parts, if it is not 0, and averaged part by part.
        """
        super().__init__(problem, network, collective, threads, noise)
        self._exchange, self._arena, self._hosts, self._chunk = exchange, Arena(), hosts, chunk
        self._known: tuple[csr_array, Part] | None = None  # the last weights, and this host's part of them
        self._matrices: dict[torch.dtype, Tensor] = {}

    def _average_of(self, t: int) -> Callable[[Sequence[Packed]], list[Tensor]]:
        weights = self.network.average(max(t, 0))
        if weights is not None:
            return functools.partial(self._exact_average, weights)
        part, calls = self._part(max(t, 0)), itertools.count()
        return lambda packed: self._neighbourhood(Tag(t, next(calls)), part, packed)

    def _part(self, t: int) -> Part:
        """The part of W(t) that this host works with; a network may return the same matrix in many rounds."""
        if self._known is None or self.network.varying:
            W = self.network.W(t)
            if self._known is None or self._known[0] is not W:
                self._known = W, part_of(W, self.problem.workers, self._hosts)
                self._matrices.clear()
        return self._known[1]

    def _neighbourhood(self, tag: Tag, part: Part, packed: Sequence[Packed]) -> list[Tensor]:
        """One message from each worker that is needed, then each vector's averages."""
        if 0 < self._chunk < sum(p.wire.shape[1] for p in packed) and all(p.as_is for p in packed):
            return [self._in_chunks(tag, part, p.values) for p in packed]
        ends = list(itertools.accumulate(p.wire.shape[1] for p in packed))
        places = [slice(end - p.wire.shape[1], end) for end, p in zip(ends, packed, strict=True)]
        stack = self._arena.empty(packed[0].wire.new_empty(0, ends[-1]), len(part.need))
        for p, place in zip(packed, places, strict=True):
            part.own.put(stack[:, place], p.wire)
        self._exchange(tag, part.need, stack, _content(packed, places))
        values = [p.decode(stack[:, place]) for p, place in zip(packed, places, strict=True)]
        for argument, vectors in enumerate(values):
            self.took(tag, argument, part.need, vectors)
        return [self._weighted(part, vectors) for vectors in values]

    def _in_chunks(self, tag: Tag, part: Part, values: Tensor) -> Tensor:
        """The averages of a vector that is too long for one message: besides the result this needs little memory."""
        out, width = torch.empty_like(values), max(1, self._chunk // values.element_size())
        for begin in range(0, values.shape[1], width):
            own, place = values[:, begin : begin + width], out[:, begin : begin + width]
            stack = self._arena.empty(own[:0], len(part.need))
            part.own.put(stack, own)
            self._exchange(tag, part.need, stack.view(torch.uint8), _content([pack(own)], [slice(None)]))
            self._weighted(part, stack, place)
            del stack  # its memory is the next one's
        return out

    def took(self, tag: Tag, argument: int, need: Sequence[int], vectors: Tensor) -> None:
        """Called after an exchange with each argument of `mix`: a row for each worker in `need`."""

    def _weighted(self, part: Part, values: Tensor, out: Tensor | None = None) -> Tensor:
        if values.dtype not in self._matrices:
            self._matrices[values.dtype] = as_sparse(part.W, values.dtype).to(values.device)
        return self._product(self._matrices[values.dtype], values, part.own.count, out)

    def _exact_average(self, weights: object, packed: Sequence[Packed]) -> list[Tensor]:
        """The exact average, one sum over all hosts for all vectors."""
        own = torch.as_tensor(weights)[list(self.problem.workers), None]
        values = torch.cat([p.values for p in packed], dim=1)
        total = self.collective.total(values * own.to(values.device, values.dtype))
        parts = torch.split(total, [p.values.shape[1] for p in packed])
        return [part.repeat(len(own), 1) for part in parts]


def _content(packed: Sequence[Packed], places: Sequence[slice]) -> Content:
    words = (f"{p.values.dtype}[{p.values.shape[1]}] in {p.wire.shape[1]}" for p in packed)

    def finite(message: Tensor) -> bool:
        values = (p.decode(message[None, place]) for p, place in zip(packed, places, strict=True))
        return all(all_finite(v) for v in values)

    def norms(message: Tensor) -> list[float]:
        values = (p.decode(message[None, place]) for p, place in zip(packed, places, strict=True))
        return [float(torch.linalg.vector_norm(v)) for v in values]

    return Content(" ".join(words).replace("torch.", ""), finite, norms)


def all_finite(values: Tensor) -> bool:
    """Whether all are finite; the least and the greatest tell, because NaN propagates, and need no extra memory."""
    return not values.numel() or all(bool(torch.isfinite(end)) for end in torch.aminmax(values))


def needed(W: csr_array, workers: Sequence[int]) -> list[int]:
    """Whose vectors some workers need: their own, and those of their neighbours."""
    rows = W[list(workers)]
    return sorted({*workers, *rows.indices[rows.data != 0].tolist()})


def part_of(W: csr_array, workers: Sequence[int], hosts: Sequence[int] | None = None) -> Part:
    """What some workers need in a round with weights W."""
    need = needed(W, workers)
    if hosts is not None:
        need.sort(key=lambda j: (hosts[j], j))
    rows = csr_array(W[list(workers)])
    rows.eliminate_zeros()
    rows.sort_indices()
    place = np.zeros(W.shape[0], dtype=rows.indices.dtype)
    place[need] = np.arange(len(need))
    part = csr_array((rows.data, place[rows.indices], rows.indptr), shape=(len(workers), len(need)))
    return Part(need, part, RowBlocks(place[list(workers)].tolist()))


def refuse_memory(network: Network) -> None:
    """Refuse a network whose exchanges depend on earlier ones, which only the simulator supports."""
    if isinstance(network, Unreliable) and network.has_memory:
        raise ConfigError('network: only the simulator supports delay and rule = "counters"; use engine "simulator"')
