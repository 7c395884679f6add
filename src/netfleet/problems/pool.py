"""Threads that share out numbered tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch


class Pool:
    """Some threads, each with a slot number, that share out numbered tasks; the caller is the first of them."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._executor = (
            ThreadPoolExecutor(threads - 1, "netfleet", initializer=lambda: torch.set_num_threads(1))
            if threads > 1
            else None
        )

    def each(self, task: Callable[[int, int], None], count: int) -> None:
        """Run `task(slot, i)` for every i below `count`; an exception in a task is raised here."""
        tasks = iter(range(count))

        def drain(slot: int) -> None:
            for i in tasks:  # taking the next number is atomic under the interpreter lock
                task(slot, i)

        helpers = (
            [self._executor.submit(drain, slot) for slot in range(1, min(self.threads, count))]
            if self._executor
            else []
        )
        try:
            drain(0)
        finally:
            for helper in helpers:
                helper.result()


def available_threads() -> int:
    """The number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def one_intra_op_thread() -> Iterator[None]:
    """Let every torch operator run on its calling thread: parallelism is over workers, and sums have one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
