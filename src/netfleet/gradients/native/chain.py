"""Runs `chain.cpp`: one call of the library per thread and step, in which no thread holds the interpreter's lock."""

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import astuple

import torch
from torch import Tensor

from netfleet.compute.arena import Arena
from netfleet.compute.threads import ThreadPool
from netfleet.gradients.native.heads import NUMBERS, answers
from netfleet.gradients.native.layers import Layer
from netfleet.gradients.paths import Head, PathInputs, Sample, Step, WeightedRows
from netfleet.gradients.samples import DeviceSamples

ALIGNMENT = 64


class _Job(ctypes.Structure):
    """`Job` of chain.cpp: the same fields in the same order, each a number or an address (0: none) of 64 bits."""

    _numbers = (
        "layers depth tasks model offset x d data size loss targets rows weights clip gradient value correct next"
    )
    _fields_ = tuple((name, ctypes.c_int64) for name in _numbers.split())


class Chain:
    """The path of a model that is a chain of layers."""

    name = "native"

    def __init__(
        self, library: ctypes.CDLL, layers: list[Layer], inputs: PathInputs, pool: ThreadPool, head: Head
    ) -> None:
        self._train, self._test, self._pool = inputs.train, inputs.test, pool
        self._loss, self._answers = NUMBERS[head], answers(head, layers[-1].cout)
        self._layers, self._arena = torch.tensor([astuple(layer) for layer in layers]), Arena()
        self._call = library.run
        size = library.scratch(self._layers.data_ptr(), len(layers))
        self._scratch = [torch.empty(size + ALIGNMENT, dtype=torch.uint8) for _ in range(pool.threads)]
        self._aligned = [at + -at % ALIGNMENT for at in (scratch.data_ptr() for scratch in self._scratch)]

    def gradients(self, x: Tensor, sample: Sample, buffers: Tensor | None) -> Tensor:
        assert sample.rows is not None
        out = self._arena.empty_like(x)
        models, offsets = even(*sample.rows.shape)
        self._run(self._train, x, models, offsets, sample.rows, gradient=out)
        return out

    def sums(self, x: Tensor, groups: Sequence[Sequence[WeightedRows]]) -> tuple[Tensor, Tensor]:
        chunks = (chunk for group in groups for chunk in group)
        rows, weights = (torch.cat(parts) for parts in zip(*chunks, strict=True))
        offsets = torch.tensor([0, *(sum(len(rows) for rows, _ in group) for group in groups)]).cumsum(0)
        gradient = torch.empty(len(groups), len(x), dtype=x.dtype)
        model = torch.zeros(len(groups), dtype=torch.int64)
        value, _ = self._run(self._train, x, model, offsets, rows, weights=weights, gradient=gradient)
        return value, gradient

    def clipped(self, x: Tensor, rows: Sequence[Tensor], clip: float, step: Step | None = None) -> Tensor:
        out, bound = self._arena.empty_like(x), torch.tensor([clip], dtype=x.dtype)
        self._run(self._train, x, torch.arange(len(x)), ends(rows), torch.cat(tuple(rows)), clip=bound, gradient=out)
        return out

    def scores(self, x: Tensor, chunks: Sequence[Sequence[Tensor]], buffers: Tensor | None) -> tuple[Tensor, Tensor]:
        shape, every = (len(x), len(chunks[0])), [chunk for own in chunks for chunk in own]
        model = torch.arange(shape[0]).repeat_interleave(shape[1])
        offsets = ends(every)
        value, correct = self._run(self._test, x, model, offsets, torch.cat(every))
        return (value.double() * offsets.diff()).view(shape), (correct.double() / self._answers).view(shape)

    def _run(
        self,
        data: DeviceSamples,
        x: Tensor,
        model: Tensor,
        offsets: Tensor,
        rows: Tensor,
        weights: Tensor | None = None,
        clip: Tensor | None = None,
        gradient: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The loss (weighted, or the mean) and the number of right answers of every task, and the gradients."""
        x, rows, tasks, counter = x.contiguous(), rows.contiguous(), model.numel(), ctypes.c_int64(0)
        value, correct = torch.empty(tasks, dtype=x.dtype), torch.empty(tasks, dtype=torch.int64)
        models = self._layers, len(self._layers), tasks, model, offsets, x, x.shape[-1]
        samples = data.storage, data.size, self._loss, data.labels, rows, weights, clip
        fields = *models, *samples, gradient, value, correct, ctypes.addressof(counter)
        job = _Job(*(v.data_ptr() if isinstance(v, Tensor) else v or 0 for v in fields))

        threads = min(self._pool.threads, tasks)
        self._pool.each(lambda slot, _: self._call(ctypes.byref(job), self._aligned[slot]), threads)
        return value, correct


@functools.lru_cache(maxsize=8)
def even(models: int, batch: int) -> tuple[Tensor, Tensor]:
    """Which model each task is for and where its rows begin, when every task is one mini-batch."""
    return torch.arange(models), torch.arange(models + 1) * batch


def ends(rows: Sequence[Tensor]) -> Tensor:
    """Where each task's rows begin, and where the last's end."""
    return torch.tensor([0, *map(len, rows)]).cumsum(0)
