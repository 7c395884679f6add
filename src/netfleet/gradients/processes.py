"""The looped path on many cores: processes over shared memory, where threads would queue for the interpreter's lock.

Every process has its own copy of the module and sees the same data, models and gradients in shared memory; only "go"
and "done" travel between processes. Workers are drawn from a shared counter and each is computed by one thread, so
the results are bit for bit those of threads.
"""

import pickle
import signal
import traceback
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import Synchronized
from typing import NamedTuple

import torch
import torch.multiprocessing as multiprocessing
from torch import Tensor, nn

from netfleet.compute.arena import Arena
from netfleet.compute.threads import ThreadPool
from netfleet.errors import EngineError
from netfleet.gradients.looped import Looped
from netfleet.gradients.paths import PathInputs, Sample
from netfleet.gradients.replica import Loss
from netfleet.gradients.samples import share

#: Up to this many, the looped path uses threads; more would queue for the interpreter's lock.
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


class _Shared(NamedTuple):
    """The memory that all processes see."""

    x: Tensor
    gradients: Tensor
    rows: Tensor
    buffers: Tensor | None
    next: "Synchronized[int]"  # the number of the next row that no process has taken


class Processes(Looped):
    """Gradients in other processes; sums and scores as `Looped`, in threads."""

    name = "processes"

    def __init__(self, inputs: PathInputs, pool: ThreadPool, processes: int) -> None:
        super().__init__(inputs, pool)
        self._inputs = inputs._replace(train=inputs.train.shared(), test=inputs.test.shared())
        self._count = min(processes, len(inputs.workers))
        self._running: _Running | None = None

    def gradients(self, x: Tensor, sample: Sample, buffers: Tensor | None) -> Tensor:
        assert sample.rows is not None
        if self._running is None or self._running.shared.rows.shape != sample.rows.shape:
            self._running = _Running(self._inputs, self._count, x, sample.rows, buffers)
        return self._running.gradients(x, sample, sample.rows, buffers)


class _Running:
    """The running processes and the memory that they share."""

    def __init__(self, inputs: PathInputs, count: int, x: Tensor, rows: Tensor, buffers: Tensor | None) -> None:
        context = multiprocessing.get_context("spawn")
        copied = None if buffers is None else share(buffers.clone())
        memory = share(x.clone()), share(torch.empty_like(x)), share(rows.clone()), copied
        self.shared, self.arena = _Shared(*memory, context.Value("q", 0)), Arena()
        self.pipes: list[Connection] = []
        processes = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, inputs, self.shared), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            processes.append(process)
        weakref.finalize(self, _stop, self.pipes, processes)

    def gradients(self, x: Tensor, sample: Sample, rows: Tensor, buffers: Tensor | None) -> Tensor:
        shared = self.shared
        shared.x.copy_(x)
        shared.rows.copy_(rows)
        if buffers is not None and shared.buffers is not None:
            shared.buffers.copy_(buffers)
        shared.next.value = 0
        try:
            for pipe in self.pipes:
                pipe.send((sample.t, sample.k))
            problems = [pipe.recv() for pipe in self.pipes]
        except (EOFError, OSError):
            raise EngineError(
                "a process that computes gradients died; in a script of your own, put what starts the run under "
                f'`if __name__ == "__main__":`, or use at most threads = {MOST_THREADS}'
            ) from None
        for problem in filter(None, problems):
            raise EngineError(f"a process that computes gradients failed:\n{problem}")
        if buffers is not None and shared.buffers is not None:
            buffers.copy_(shared.buffers)
        return self.arena.empty_like(x).copy_(shared.gradients)


def _stop(pipes: list[Connection], processes: Sequence[BaseProcess]) -> None:
    for pipe in pipes:
        pipe.close()
    for process in processes:
        process.join(timeout=5)


def _serve(pipe: Connection, inputs: PathInputs, shared: _Shared) -> None:
    """What a process does: whenever told to, compute the gradients that no process has taken yet."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted and closes the pipe
    torch.set_num_threads(1)
    path = Looped(inputs, ThreadPool(1))

    def next_row() -> int:
        with shared.next.get_lock():
            shared.next.value += 1
            return shared.next.value - 1

    while True:
        try:
            t, k = pipe.recv()
        except EOFError:
            return
        try:
            while (i := next_row()) < len(shared.rows):
                path.one(0, i, shared.x, Sample(t, k, 0, shared.rows), shared.buffers, shared.gradients)
            pipe.send(None)
        except Exception:
            pipe.send(traceback.format_exc())
