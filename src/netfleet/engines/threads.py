"""One thread per worker in one process: each hosts its worker and exchanges messages with its neighbours only."""

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import torch
from torch import Tensor

from netfleet.compute.threads import one_intra_op_thread
from netfleet.engines.host import Content, PartialHost, Tag, refuse_memory
from netfleet.engines.job import Job, Snapshot, gathered
from netfleet.engines.loop import train
from netfleet.errors import TransportError
from netfleet.topology.network import Network

T = TypeVar("T")
R = TypeVar("R")


class Mailboxes:
    """The in-memory transport: every worker has a mailbox, posts to those of others and waits at its own."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._changed = threading.Condition()
        self._posted: list[dict[tuple[Hashable, int], Any]] = [{} for _ in range(network.m)]
        self._closed = False

    def close(self) -> None:
        """Stop every worker that waits for a message."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def post(self, sender: int, readers: Iterable[int], tag: Hashable, payload: object) -> None:
        """Put a message into some mailboxes."""
        with self._changed:
            for j in readers:
                self._posted[j][tag, sender] = payload
            self._changed.notify_all()

    def collect(self, i: int, senders: Sequence[int], tag: Hashable) -> list[Any]:
        """Wait for a message from each of the senders and take them out of the mailbox."""
        box = self._posted[i]
        with self._changed:
            self._changed.wait_for(lambda: self._closed or all((tag, j) in box for j in senders))
            if self._closed:
                raise TransportError(f"worker {i}: the run was stopped by another worker")
            return [box.pop((tag, j)) for j in senders]


class ThreadCollective:
    """The `collective` of worker i's thread, and its `exchange`, both over the mailboxes."""

    def __init__(self, i: int, mail: Mailboxes) -> None:
        self.i, self.mail, self.keeps_record = i, mail, i == 0
        self._calls = 0

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
        return self._combined(rows.sum(dim=0), lambda parts: torch.stack(parts).sum(dim=0)).clone()

    def gather(self, rows: Tensor, workers: Sequence[int]) -> Tensor:
        return self._combined(rows, torch.cat)

    def first(self, act: Callable[[], T]) -> T:
        return self._combined(None, lambda _: act())  # an error there ends the run for all workers

    def _combined(self, value: T, combine: Callable[[list[T]], R]) -> R:
        """Worker 0 combines the values of all workers; all get the result."""
        self._calls += 1
        everyone, mail = range(self.mail.network.m), self.mail
        mail.post(self.i, [0], ("value", self._calls), value)
        if self.keeps_record:
            result = combine(mail.collect(0, everyone, ("value", self._calls)))
            mail.post(0, everyone, ("result", self._calls), result)
        shared: R = mail.collect(self.i, [0], ("result", self._calls))[0]
        return shared


def run_threads(job: Job) -> Snapshot:
    """Train with one thread per worker over the in-memory transport; `job.threads` has no effect."""
    refuse_memory(job.network)
    m, mail = job.network.m, Mailboxes(job.network)

    def work(i: int) -> Snapshot:
        torch.set_num_threads(1)
        try:
            collective = ThreadCollective(i, mail)
            host = PartialHost(job.problem.at([i]), job.network, collective.exchange, collective, noise=job.noise)
            return gathered(train(host, job), host)
        except BaseException:
            mail.close()
            raise

    with one_intra_op_thread(), ThreadPoolExecutor(m, "worker") as pool:
        futures = [pool.submit(work, i) for i in range(m)]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        except KeyboardInterrupt:
            mail.close()
            raise
    errors = [e for e in (future.exception() for future in futures) if e is not None]
    for error in sorted(errors, key=lambda e: isinstance(e, TransportError)):  # the cause before what followed from it
        raise error
    return futures[0].result()
