"""Peers in one process: m threads that each host one worker and talk to their neighbours only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any

import torch
from torch import Tensor

from netfleet.algorithms import Algorithm
from netfleet.compute.threads import one_intra_op_thread
from netfleet.engines.host import Content, PartialHost, Tag, refuse_memory
from netfleet.engines.loop import Recorder, Snapshot, Start, together, train
from netfleet.errors import TransportError
from netfleet.problems.base import Problem
from netfleet.topology.network import Network


class Mailboxes:
    """The in-memory transport: everyone has a box, posts to those of others and waits for its own."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._changed = threading.Condition()
        self._posted: list[dict[tuple[Any, int], Any]] = [{} for _ in range(network.m)]
        self._closed = False

    def close(self) -> None:
        """Wake everyone who waits for a message that will not come."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def post(self, sender: int, readers: Iterable[int], tag: Any, payload: Any) -> None:
        """Put a message into some boxes."""
        with self._changed:
            for j in readers:
                self._posted[j][tag, sender] = payload
            self._changed.notify_all()

    def collect(self, i: int, senders: Sequence[int], tag: Any) -> list[Any]:
        """Wait for a message of each of the senders and take them out of the box."""
        box = self._posted[i]
        with self._changed:
            self._changed.wait_for(lambda: self._closed or all((tag, j) in box for j in senders))
            if self._closed:
                raise TransportError(f"worker {i}: the run was stopped by another worker")
            return [box.pop((tag, j)) for j in senders]


class Peer:
    """Worker i's end of the mailboxes: its `exchange` and its `collective`."""

    def __init__(self, i: int, mail: Mailboxes) -> None:
        self.i, self.mail, self.keeps_record = i, mail, i == 0
        self._meetings = 0

    def exchange(self, tag: Tag, need: Sequence[int], stack: Tensor, content: Content) -> None:
        W = self.mail.network.W(max(tag.t, 0))
        readers = [j for j in W[:, [self.i]].nonzero()[0].tolist() if j != self.i]
        self.mail.post(self.i, readers, tag, stack[need.index(self.i)])
        others = [j for j in need if j != self.i]
        for j, message in zip(others, self.mail.collect(self.i, others, tag), strict=True):
            stack[need.index(j)] = message

    def count(self, m: int) -> int:
        return m

    def total(self, rows: Tensor) -> Tensor:
        return self._meet(rows.sum(dim=0), lambda parts: torch.stack(parts).sum(dim=0)).clone()  # type: ignore[no-any-return]

    def gather(self, rows: Tensor, workers: Sequence[int]) -> Tensor:
        return self._meet(rows, torch.cat)  # type: ignore[no-any-return]

    def first(self, act: Callable[[], Any]) -> Any:
        return self._meet(None, lambda _: act())  # an error there ends the run for everyone

    def _meet(self, value: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """All bring a value, peer 0 makes one of them, all get it."""
        self._meetings += 1
        everyone, mail = range(self.mail.network.m), self.mail
        mail.post(self.i, [0], ("bring", self._meetings), value)
        if self.keeps_record:
            result = combine(mail.collect(0, everyone, ("bring", self._meetings)))
            mail.post(0, everyone, ("result", self._meetings), result)
        return mail.collect(self.i, [0], ("result", self._meetings))[0]


def run_threads(
    problem: Problem,
    network: Network,
    algorithm: Algorithm,
    rounds: int,
    recorder: Recorder,
    start: Start | None = None,
    threads: int = 0,
) -> Snapshot:
    """Train with one thread per worker over the in-memory transport; `threads` has no meaning here."""
    refuse_memory(network)
    mail = Mailboxes(network)

    def host(i: int) -> Snapshot:
        torch.set_num_threads(1)
        try:
            peer = Peer(i, mail)
            block = PartialHost(problem.at([i]), network, peer.exchange, peer)
            return together(train(block, algorithm, rounds, recorder, start), block)
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
    return _results(futures)[0]


def _results(futures: list[Future[Snapshot]]) -> list[Snapshot]:
    """What the peers return, or the error that stopped the first of them rather than those that followed."""
    errors = [e for e in (future.exception() for future in futures) if e is not None]
    for error in sorted(errors, key=lambda e: isinstance(e, TransportError)):
        raise error
    return [future.result() for future in futures]
