"""The path for every `nn.Module`: one copy of it per thread, worker by worker.

Every row is computed alone on one intra-op thread, so results do not depend on the number of threads.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from netfleet import randomness
from netfleet.compute.arena import Arena
from netfleet.compute.threads import ThreadPool, one_intra_op_thread
from netfleet.errors import ConfigError
from netfleet.gradients.paths import PathInputs, Sample, Step, WeightedRows
from netfleet.gradients.per_sample import PerSample, add_clipped, choose, plain_attention
from netfleet.gradients.replica import (
    Replica,
    averaging_batch_norm,
    kept_generator,
    outputs_of,
    without_dropout,
    without_grad,
)

_GENERATOR = threading.Lock()  # torch's generator is one for all threads


class Looped:
    """Gradients by autograd, a copy of the module per thread."""

    name = "looped"

    def __init__(self, inputs: PathInputs, pool: ThreadPool) -> None:
        self.random, self._train, self._test, self._pool = inputs.probed.random, inputs.train, inputs.test, pool
        self._right = inputs.right
        self._seed, self._workers, self.device, self._arena = inputs.seed, inputs.workers, inputs.train.device, Arena()
        self._per_sample: tuple[PerSample, int] | None = None  # found when first needed
        self._replicas = [Replica(inputs.model, inputs.loss, inputs.probed.moving) for _ in range(pool.threads)]

    def gradients(self, x: Tensor, sample: Sample, buffers: Tensor | None) -> Tensor:
        out = self._arena.empty_like(x)
        assert sample.rows is not None
        with one_intra_op_thread(), self._guarded_generator():
            self._pool.each(lambda slot, i: self.one(slot, i, x, sample, buffers, out), len(sample.rows))
        return out

    def one(self, slot: int, i: int, x: Tensor, sample: Sample, buffers: Tensor | None, out: Tensor) -> None:
        """The gradient of the i-th hosted worker, by the module of a slot, into `out[i]`."""
        assert sample.rows is not None
        replica, rows = self._replicas[slot], sample.rows[i]
        if self.random:
            _reseed(self._seed, self._workers[i], sample.t, sample.k)
        replica.load(x[i], None if buffers is None else buffers[i])
        _, gradients = replica.gradient(self._train.inputs(rows), self._train.targets(rows))
        replica.write(gradients, out[i])
        if buffers is not None:
            replica.store_buffers(buffers[i])

    def sums(self, x: Tensor, groups: Sequence[Sequence[WeightedRows]]) -> tuple[Tensor, Tensor]:
        values = torch.zeros(len(groups), dtype=x.dtype, device=self.device)
        sums = torch.zeros(len(groups), len(x), dtype=x.dtype, device=self.device)

        def one(slot: int, i: int) -> None:
            replica = self._replicas[slot]
            replica.load(x)
            with without_dropout(replica.model):
                for rows, weights in groups[i]:
                    inputs, targets = self._train.inputs(rows), self._train.targets(rows)
                    value, gradients = replica.gradient(inputs, targets, weights.to(self.device))
                    values[i] += value
                    for view, gradient in zip(replica.layout.views(sums[i]), gradients, strict=True):
                        view += gradient

        with one_intra_op_thread(), self._guarded_generator():
            if self.random:
                _reseed(self._seed)
            self._pool.each(one, len(groups))
        return values, sums

    def clipped(self, x: Tensor, rows: Sequence[Tensor], clip: float, step: Step | None = None) -> Tensor:
        if self.random and step is None:
            raise ConfigError(
                "the clipped gradients of a model with dropout need a round and step; give them, or set dropout to 0"
            )
        if self._per_sample is None:
            first = torch.zeros(1, dtype=torch.int64, device=self.device)
            self._per_sample = choose(self._replicas[0], self._train.inputs(first), self._train.targets(first))
        (gradients, together), out = self._per_sample, self._arena.empty_like(x).zero_()

        def one(slot: int, i: int) -> None:
            if step is not None and self.random:
                _reseed(self._seed, self._workers[i], *step)
            replica, views = self._replicas[slot], self._replicas[slot].layout.views(out[i])
            own = x[i].clone()  # at an address that suits all alike: some operations' order depends on it
            for part in torch.split(rows[i], together) if len(rows[i]) else ():
                made = gradients(replica, own, self._train.inputs(part), self._train.targets(part))
                add_clipped(made, clip, views)

        with one_intra_op_thread(), self._guarded_generator(), plain_attention():
            self._pool.each(one, len(rows))
        return out

    def scores(self, x: Tensor, chunks: Sequence[Sequence[Tensor]], buffers: Tensor | None) -> tuple[Tensor, Tensor]:
        losses, correct = torch.zeros(2, len(x), len(chunks[0]), dtype=torch.float64)

        def one(slot: int, task: int) -> None:
            i, c = divmod(task, len(chunks[0]))
            replica, targets = self._replicas[slot], self._test.targets(chunks[i][c])
            replica.load(x[i], None if buffers is None else buffers[i])
            outputs = outputs_of(replica.model.eval(), self._test.inputs(chunks[i][c]))
            losses[i, c] = replica.loss(outputs, targets).sum().cpu()
            if self._right is not None:
                correct[i, c] = self._right(outputs, targets).sum().cpu()
            replica.model.train()

        with one_intra_op_thread():
            self._pool.each(without_grad(one), losses.numel())
        return losses, correct

    def outputs(self, x: Tensor, chunks: Sequence[Tensor], buffers: Tensor | None) -> Tensor:
        """What the model x `[d]` makes of chunks of test rows, one after the other."""
        found: list[Tensor] = [x] * len(chunks)

        def one(slot: int, c: int) -> None:
            replica = self._replicas[slot]
            replica.load(x, None if buffers is None else buffers[0])
            found[c] = outputs_of(replica.model.eval(), self._test.inputs(chunks[c]))
            replica.model.train()

        with one_intra_op_thread():
            self._pool.each(without_grad(one), len(chunks))
        return torch.cat(found)

    def recalibrated(self, x: Tensor, start: Tensor, chunks: Sequence[Sequence[Tensor]]) -> Tensor:
        """Buffers `[models, b]` with BatchNorm's statistics averaged over each model's chunks of training rows."""
        buffers = start.repeat(len(x), 1)

        def one(slot: int, i: int) -> None:
            replica = self._replicas[slot]
            replica.load(x[i], start)
            with averaging_batch_norm(replica.model), without_dropout(replica.model):
                for rows in chunks[i]:
                    outputs_of(replica.model, self._train.inputs(rows))
            replica.store_buffers(buffers[i])

        with one_intra_op_thread(), self._guarded_generator():
            self._pool.each(without_grad(one), len(x))
        return buffers

    @contextmanager
    def _guarded_generator(self) -> Iterator[None]:
        """Where the model draws random numbers, have torch's global generator alone and leave it as it was."""
        if not self.random:
            yield
            return
        with _GENERATOR, kept_generator(self.device):
            yield


def _reseed(*address: int) -> None:
    torch.manual_seed(int(randomness.bits("model", *address)) >> 1)
