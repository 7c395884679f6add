"""A pool of threads for numbered tasks."""

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import torch


class ThreadPool:
    """Some threads, each with a slot number, that run numbered tasks; the calling thread is slot 0."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._inboxes: list[_Queue] = [SimpleQueue() for _ in range(threads - 1)]
        for slot, inbox in enumerate(self._inboxes, start=1):
            threading.Thread(target=_work, args=(slot, inbox), name=f"netfleet-{slot}", daemon=True).start()
        weakref.finalize(self, _dismiss, self._inboxes)

    def each(self, task: Callable[[int, int], None], count: int) -> None:
        """Run `task(slot, i)` for every i below `count`; an exception in a task is raised here."""
        tasks = iter(range(count))

        def drain(slot: int) -> None:
            for i in tasks:  # taking the next number is atomic under the interpreter lock
                task(slot, i)

        helpers, outbox = self._inboxes[: max(count - 1, 0)], SimpleQueue[BaseException | None]()
        for inbox in helpers:
            inbox.put((drain, outbox))
        try:
            drain(0)
        finally:
            errors = [outbox.get() for _ in helpers]
        for error in errors:
            if error is not None:
                raise error


_Queue = SimpleQueue[Any]


def _work(slot: int, inbox: _Queue) -> None:
    torch.set_num_threads(1)
    while (order := inbox.get()) is not None:
        drain, outbox = order
        try:
            drain(slot)
            outbox.put(None)
        except BaseException as error:
            outbox.put(error)
        del order, drain, outbox  # else they keep the task's tensors until the next task


def _dismiss(inboxes: list[_Queue]) -> None:
    for inbox in inboxes:
        inbox.put(None)


def available_threads() -> int:
    """The number of cores this process may use; processes that torchrun started on one machine share them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


@contextmanager
def one_intra_op_thread() -> Iterator[None]:
    """Let every torch operator run on its calling thread: parallelism is over workers, and sums have one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
