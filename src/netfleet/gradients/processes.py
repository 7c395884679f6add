"""The looped path on many cores: processes over shared memory, where threads would queue for the interpreter's lock.

Every process has its own copy of the module and sees the same data, models and gradients in shared memory; only "go"
and "done" travel between processes. Workers are drawn from a shared counter and each is computed by one thread, so
the results are bit for bit those of threads.
"""

from __future__ import annotations

import pickle
import signal
import traceback
import weakref
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.multiprocessing as multiprocessing
from torch import Tensor, nn

from netfleet.compute.arena import Arena
from netfleet.compute.threads import ThreadPool
from netfleet.errors import EngineError
from netfleet.gradients.looped import Looped
from netfleet.gradients.paths import Sample
from netfleet.gradients.replica import Loss
from netfleet.gradients.samples import share

#: Up to so many threads the looped path uses threads: a seventh of a step may hold the lock (netfleet bench cores).
MOST_THREADS = 8


def can_travel(model: nn.Module, loss: Loss) -> bool:
    """Whether another process can load the model and the loss: they must come from an importable module."""
    parts = [*(type(module) for module in model.modules()), loss]
    if any(getattr(part, "__module__", "__main__") == "__main__" for part in parts):
        return False
    try:
        pickle.dumps((model, loss))
    except Exception:  # a lambda, a local class, an open file: whatever it is, it stays here
        return False
    return True


class Processes(Looped):
    """Gradients in other processes; sums and scores as `Looped`, in threads."""

    name = "processes"

    def __init__(self, *parts: Any, processes: int) -> None:
        super().__init__(*parts)
        model, loss, probed, train, test, _, seed, workers = parts
        self._recipe = (model, loss, probed, train.shared(), test.shared(), seed, tuple(workers))
        self._count = min(processes, len(workers))
        self._crew: _Crew | None = None

    def gradients(self, x: Tensor, sample: Sample, buffers: Tensor | None) -> Tensor:
        assert sample.rows is not None
        if self._crew is None or not self._crew.fits(sample.rows):
            self._crew = _Crew(self._recipe, self._count, x, sample.rows, buffers)
        return self._crew.gradients(x, sample, buffers)


class _Crew:
    """The running processes and the memory that they share."""

    def __init__(self, recipe: Any, count: int, x: Tensor, rows: Tensor, buffers: Tensor | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.x, self.out, self.rows = share(x.clone()), share(torch.empty_like(x)), share(rows.clone())
        self.buffers = None if buffers is None else share(buffers.clone())
        self.arena = Arena()
        self.next = context.Value("q", 0)
        self.pipes: list[Connection] = []
        processes = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            shared = (self.x, self.out, self.rows, self.buffers, self.next)
            process = context.Process(target=_serve, args=(theirs, recipe, shared), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            processes.append(process)
        weakref.finalize(self, _dismiss, self.pipes, processes)

    def fits(self, rows: Tensor) -> bool:
        return self.rows.shape == rows.shape

    def gradients(self, x: Tensor, sample: Sample, buffers: Tensor | None) -> Tensor:
        self.x.copy_(x)
        assert sample.rows is not None
        self.rows.copy_(sample.rows)
        if buffers is not None and self.buffers is not None:
            self.buffers.copy_(buffers)
        self.next.value = 0
        for pipe in self.pipes:
            self._talk(pipe.send, (sample.t, sample.k))
        for pipe in self.pipes:
            problem = self._talk(pipe.recv)
            if problem is not None:
                raise EngineError(f"a process that computes gradients failed:\n{problem}")
        if buffers is not None and self.buffers is not None:
            buffers.copy_(self.buffers)
        return self.arena.empty_like(x).copy_(self.out)

    def _talk(self, action: Any, *message: Any) -> Any:
        try:
            return action(*message)
        except (EOFError, OSError):
            raise EngineError(
                "a process that computes gradients died; in a script of your own, put what starts the run under "
                f'`if __name__ == "__main__":`, or use at most threads = {MOST_THREADS}'
            ) from None


def _dismiss(pipes: list[Connection], processes: list[Any]) -> None:
    for pipe in pipes:
        pipe.close()
    for process in processes:
        process.join(timeout=5)


def _serve(pipe: Connection, recipe: Any, shared: Any) -> None:
    """What a process does: compute the gradients that nobody has taken yet, whenever told to."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted and closes the pipe
    torch.set_num_threads(1)
    model, loss, probed, train, test, seed, workers = recipe
    x, out, rows, buffers, counter = shared
    path = Looped(model, loss, probed, train, test, ThreadPool(1), seed, workers)
    while True:
        try:
            t, k = pipe.recv()
        except EOFError:
            return
        try:
            while (i := _take(counter)) < len(rows):
                path.one(0, i, x, Sample(t, k, 0, rows), buffers, out)
            pipe.send(None)
        except Exception:
            pipe.send(traceback.format_exc())


def _take(counter: Any) -> int:
    with counter.get_lock():
        taken = int(counter.value)
        counter.value += 1
        return taken
