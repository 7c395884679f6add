"""Runs `residual.cpp`: one call of the library per thread and step, in which no thread holds the interpreter's lock."""

import ctypes
from collections.abc import Sequence
from dataclasses import astuple

import torch
from torch import Tensor

from netfleet.compute.threads import ThreadPool
from netfleet.gradients.looped import Looped
from netfleet.gradients.native.blocks import Network
from netfleet.gradients.native.chain import ALIGNMENT, ends, even
from netfleet.gradients.native.heads import NUMBERS, answers
from netfleet.gradients.paths import Head, PathInputs, Sample, WeightedRows
from netfleet.gradients.samples import DeviceSamples

_LARGEST_KEPT = 1 << 28  # bytes of scratch memory per thread that are kept between calls


class _Job(ctypes.Structure):
    """`Job` of residual.cpp: the same fields in the same order, each a number or an address (0: none) of 64 bits."""

    _numbers = (
        "layers depth blocks count outputs weight bias tasks model offset x d buffers b training data loss targets "
        "rows weights gradient value correct vectors next"
    )
    _fields_ = tuple((name, ctypes.c_int64) for name in _numbers.split())


class Residual(Looped):
    """The path of a residual network; recalibrated statistics as `Looped`."""

    name = "native"

    def __init__(
        self, library: ctypes.CDLL, network: Network, inputs: PathInputs, pool: ThreadPool, head: Head
    ) -> None:
        super().__init__(inputs, pool)
        self._library, self._network = library, network
        self._loss, self._answers = NUMBERS[head], answers(head, network.outputs)
        self._layers = torch.tensor([astuple(layer) for layer in network.layers])
        self._blocks = torch.tensor([astuple(block) for block in network.blocks])
        self._scratch = [torch.empty(0, dtype=torch.uint8) for _ in range(pool.threads)]

    def gradients(self, x: Tensor, sample: Sample, buffers: Tensor | None) -> Tensor:
        assert sample.rows is not None
        out = self._arena.empty_like(x)
        models, offsets = even(*sample.rows.shape)
        self._run(self._train, x, models, offsets, sample.rows, gradient=out, buffers=buffers)
        return out

    def sums(self, x: Tensor, groups: Sequence[Sequence[WeightedRows]]) -> tuple[Tensor, Tensor]:
        values, sums = torch.zeros(len(groups), dtype=x.dtype), torch.zeros(len(groups), len(x), dtype=x.dtype)
        for j in range(max(map(len, groups))):  # the statistics of a batch are those of a chunk
            present = [i for i, group in enumerate(groups) if j < len(group)]
            rows, weights = zip(*(groups[i][j] for i in present), strict=True)
            gradient = self._arena.empty(sums, len(present))
            model, offsets = torch.zeros(len(present), dtype=torch.int64), ends(rows)
            value, _ = self._run(self._train, x, model, offsets, torch.cat(rows), torch.cat(weights), gradient)
            values[present] += value
            for i, row in zip(present, gradient, strict=True):
                sums[i] += row
        return values, sums

    def scores(self, x: Tensor, chunks: Sequence[Sequence[Tensor]], buffers: Tensor | None) -> tuple[Tensor, Tensor]:
        if buffers is None and self._network.couples_samples:
            return super().scores(x, chunks, buffers)
        shape, every = (len(x), len(chunks[0])), [chunk for own in chunks for chunk in own]
        model, offsets = torch.arange(shape[0]).repeat_interleave(shape[1]), ends(every)
        value, correct = self._run(self._test, x, model, offsets, torch.cat(every), buffers=buffers, training=False)
        return (value.double() * offsets.diff()).view(shape), (correct.double() / self._answers).view(shape)

    def _run(
        self,
        data: DeviceSamples,
        x: Tensor,
        model: Tensor,
        offsets: Tensor,
        rows: Tensor,
        weights: Tensor | None = None,
        gradient: Tensor | None = None,
        *,
        buffers: Tensor | None = None,
        training: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """The loss (weighted, or the mean) and the number of right answers of every task, and the gradients."""
        x, rows, tasks, counter = x.contiguous(), rows.contiguous(), model.numel(), ctypes.c_int64(0)
        value, correct = torch.empty(tasks, dtype=x.dtype), torch.empty(tasks, dtype=torch.int64)
        together = training and self._network.couples_samples
        vectors = -(-int(offsets.diff().max()) // self._library.lanes()) if together else 1
        kept = None if buffers is None else buffers.contiguous()
        network = self._layers, len(self._layers), self._blocks, len(self._blocks), *astuple(self._network)[2:]
        models = tasks, model, offsets, x, x.shape[-1], kept, 0 if kept is None else kept.shape[-1], int(training)
        samples = data.storage, self._loss, data.labels, rows, weights
        fields = *network, *models, *samples, gradient, value, correct, vectors, ctypes.addressof(counter)
        job = _Job(*(v.data_ptr() if isinstance(v, Tensor) else v or 0 for v in fields))
        size = self._library.scratch(ctypes.byref(job))

        def call(slot: int, _: int) -> None:
            scratch = self._memory(slot, size + ALIGNMENT)
            self._library.run(ctypes.byref(job), scratch.data_ptr() + -scratch.data_ptr() % ALIGNMENT)

        self._pool.each(call, min(self._pool.threads, tasks))
        if buffers is not None and kept is not None and kept is not buffers and training:
            buffers.copy_(kept)
        return value, correct

    def _memory(self, slot: int, size: int) -> Tensor:
        """A slot's scratch memory, which is kept and grows; the chunks of an exact gradient need too much to keep."""
        if size > _LARGEST_KEPT:
            return torch.empty(size, dtype=torch.uint8)
        if len(self._scratch[slot]) < size:
            self._scratch[slot] = self._arena.empty(self._scratch[slot], size)
        return self._scratch[slot]
