"""Peers in one process: m threads that each host one worker and talk to their neighbours only.

The lower seam of every engine with a network is one function: `exchange(tag, payload) -> {neighbour: payload}`. Here
it is an in-memory mailbox; a cluster or a real network supplies its own and reuses `Peer`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import torch
from torch import Tensor

from netfleet.algorithms import Algorithm, Mix
from netfleet.compression import Packed, pack
from netfleet.engines.loop import Recorder, Snapshot, join, share, train
from netfleet.errors import ConfigError, TransportError
from netfleet.faults import Unreliable
from netfleet.network import Network
from netfleet.problems.base import Problem
from netfleet.problems.pool import one_intra_op_thread


class Tag(NamedTuple):
    """Which message this is: the round (−1 while initialising) and the number of the exchange within it."""

    t: int
    call: int


Exchange = Callable[[Tag, Tensor], Mapping[int, Tensor]]
Gather = Callable[[Snapshot], Snapshot | None]


class Peer:
    """A host of worker i alone; it sees the others through `exchange` only."""

    alone = False

    def __init__(self, i: int, problem: Problem, network: Network, exchange: Exchange, gather: Gather) -> None:
        self.i, self.problem, self.network = i, problem.at([i]), network
        self._exchange, self.gather = exchange, gather
        self._sent = 0

    def mixer(self, t: int) -> Mix:
        weights, sends = self.network.row(self.i, max(t, 0)), self.network.sends(self.i, max(t, 0))
        calls = iter(range(2**31))

        def mix(*vectors: Tensor | Packed) -> Tensor | tuple[Tensor, ...]:
            packed = [pack(v) for v in vectors]
            payload = torch.cat([p.wire for p in packed], dim=-1)  # [1, bytes]: one message
            received = self._exchange(Tag(t, next(calls)), payload)
            self._sent += sends * payload.numel()
            averages = [weights.get(self.i, 0.0) * p.values for p in packed]
            for j in sorted(received):
                parts = torch.split(received[j], [p.wire.shape[-1] for p in packed], dim=-1)
                for average, p, part in zip(averages, packed, parts, strict=True):
                    average.add_(p.decode(part), alpha=weights[j])
            return averages[0] if len(averages) == 1 else tuple(averages)

        return mix  # type: ignore[return-value]

    @property
    def freezes(self) -> bool:
        return self.network.freezes

    def active(self, t: int) -> Tensor | None:
        mask = self.network.active(t)
        return None if mask is None else torch.from_numpy(mask[self.i : self.i + 1, None])

    def bytes_sent(self) -> int:
        return self._sent

    def memory(self) -> dict[str, Tensor]:
        return {}

    def recall(self, memory: dict[str, Tensor]) -> None:
        """This network has no memory."""


class Mailboxes:
    """The in-memory transport: each peer posts to its readers and waits for its neighbours."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._changed = threading.Condition()
        self._posted: list[dict[tuple[Any, int], Any]] = [{} for _ in range(network.m)]
        self._closed = False

    def exchange(self, i: int) -> Exchange:
        """Peer i's end of the network."""

        def swap(tag: Tag, payload: Tensor) -> Mapping[int, Tensor]:
            t = max(tag.t, 0)
            self._post(i, self.network.readers(i, t), tag, payload)
            return self._collect(i, self.network.neighbours(i, t), tag)

        return swap

    def gather(self, i: int) -> Gather:
        """Peer i's way to the record, which peer 0 keeps."""

        def bring(snapshot: Snapshot) -> Snapshot | None:
            self._post(i, [0], ("gather", snapshot.t), snapshot)
            if i != 0:
                return None
            parts = self._collect(0, range(self.network.m), ("gather", snapshot.t))
            return join([parts[j] for j in range(self.network.m)])

        return bring

    def close(self) -> None:
        """Wake everyone who waits for a message that will not come."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _post(self, sender: int, readers: list[int], tag: Any, payload: Any) -> None:
        with self._changed:
            for j in readers:
                self._posted[j][tag, sender] = payload
            self._changed.notify_all()

    def _collect(self, i: int, senders: Any, tag: Any) -> dict[int, Any]:
        box = self._posted[i]
        with self._changed:
            self._changed.wait_for(lambda: self._closed or all((tag, j) in box for j in senders))
            if self._closed:
                raise TransportError(f"worker {i}: the run was stopped by another worker")
            return {j: box.pop((tag, j)) for j in senders}


def refuse_memory(network: Network) -> None:
    """A network that remembers is simulated as a whole."""
    if isinstance(network, Unreliable) and network.remembers:
        raise ConfigError('late messages and rule = "counters" are simulated only; use engine.kind = "simulator"')


def run_peers(
    problem: Problem,
    network: Network,
    algorithm: Algorithm,
    rounds: int,
    recorder: Recorder,
    start: Snapshot | None = None,
    threads: int = 0,
) -> Snapshot:
    """Train with one thread per worker over the in-memory transport; `threads` has no meaning here."""
    refuse_memory(network)
    mail = Mailboxes(network)
    silent = _Silent(recorder)

    def host(i: int) -> Snapshot:
        torch.set_num_threads(1)
        try:
            peer = Peer(i, problem, network, mail.exchange(i), mail.gather(i))
            mine = None if start is None else share(start, [i], counts=i == 0)
            return train(peer, algorithm, rounds, recorder if i == 0 else silent, mine)
        except BaseException:
            mail.close()
            raise

    with one_intra_op_thread(), ThreadPoolExecutor(network.m, "peer") as pool:
        futures = [pool.submit(host, i) for i in range(network.m)]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        except KeyboardInterrupt:
            mail.close()
            raise
    return join(_results(futures))


class _Silent:
    """The recorder of the peers that do not keep the record: it only knows when snapshots are due."""

    def __init__(self, recorder: Recorder) -> None:
        self.due = recorder.due

    def take(self, snapshot: Snapshot) -> None:
        """Nothing is gathered on these peers."""

    def rescue(self, snapshot: Snapshot) -> None:
        """One worker's state is no state of the run."""

    def progress(self, t: int) -> None:
        """One peer's word is enough."""


def _results(futures: list[Future[Snapshot]]) -> list[Snapshot]:
    """The peers' snapshots, or the error that stopped the first of them rather than those that followed."""
    errors = [e for e in (future.exception() for future in futures) if e is not None]
    for error in sorted(errors, key=lambda e: isinstance(e, TransportError)):
        raise error
    return [future.result() for future in futures]
