"""`nn.Module` + loss + data split over workers -> f."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from netfleet import randomness
from netfleet.data import Dataset, label_counts, load_dataset, make_partition
from netfleet.errors import ConfigError
from netfleet.models import MODELS
from netfleet.problems.base import PROBLEMS, Problem, Sample, Scores
from netfleet.problems.modes import averaging_batch_norm, without_dropout, without_grad
from netfleet.problems.replica import (
    Loss,
    Pool,
    Replica,
    available_threads,
    can_stack,
    flatten,
    kept_generator,
    one_intra_op_thread,
    probe,
    vmap_gradient,
    wants_channels_last,
)
from netfleet.problems.rows import Rows, thin
from netfleet.registry import Registry

LOSSES: Registry[Loss] = Registry("loss")
BatchNormPolicy = Literal["mixed", "local", "recalibrated"]
_CHUNK = 512  # samples per forward pass of an evaluation
_LANES = 8  # partial sums of a full gradient: fixed, so that the sum has one order
_CALIBRATION = 2048  # samples that recalibrated BatchNorm statistics are made from


@LOSSES.register("cross-entropy")
def cross_entropy() -> Loss:
    """Softmax and negative log-likelihood, per sample."""
    return lambda scores, targets: F.cross_entropy(scores, targets, reduction="none")


class ModuleProblem(Problem):
    """The training of one `nn.Module` on data that is split over m workers.

    `parts[i]` are worker i's rows of the training data. `loss` maps scores and targets to one loss per sample.
    `batch = 0` means exact local gradients. `sampling` draws a mini-batch with replacement (independent samples, as
    Assumption 1 has it) or "distinct". Each fᵢ gets the penalty (l2/2)‖x‖². `batch_norm` says what happens to module
    buffers: "mixed" with the neighbours at each exchange, kept "local", or "recalibrated" from training data at
    each evaluation. They never enter a gradient: in training BatchNorm uses the statistics of the batch. Exact values
    of f (`objective`, `full_grad`) are taken without dropout and, under BatchNorm, over random chunks of 512 samples.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Dataset,
        parts: Sequence[npt.NDArray[np.int64]],
        *,
        loss: Loss | None = None,
        batch: int = 32,
        l2: float = 0.0,
        sampling: Literal["replacement", "distinct"] = "replacement",
        batch_norm: BatchNormPolicy = "mixed",
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        threads: int = 0,
    ) -> None:
        _check(batch, l2, threads, sampling, parts)
        _uninitialised(model)
        self.data, self.parts, self.batch, self.l2 = data, list(parts), batch, l2
        self.sampling, self.batch_norm, self.seed = sampling, batch_norm, seed
        self.m = len(parts)
        self.workers = tuple(range(self.m))
        self.dtype, self.device = dtype, torch.device(device)
        self.loss = loss or cross_entropy()
        self.model = copy.deepcopy(model).to(self.device, dtype).train()
        self._start = flatten([p for p in self.model.parameters() if p.requires_grad], dtype)
        self.d = self._start.numel()
        self._threads = threads or available_threads()
        last = wants_channels_last(self.model, self.device)
        self._train = Rows(data.train_x, data.train_y, dtype, self.device, last)
        self._test = Rows(data.test_x, data.test_y, dtype, self.device, last)
        pair = torch.tensor([0, len(data.train_y) - 1])
        self._random, self._moving = probe(self.model, self.loss, self._train.inputs(pair), self._train.targets(pair))
        moving = [buffer for name, buffer in self.model.named_buffers() if name in self._moving]
        self._buffer_start = flatten(moving, dtype).to(self.device)
        self._generator = threading.Lock()  # torch's generator is one for all threads
        if batch == 0 and (self._random or (self._moving and batch_norm != "recalibrated")):
            raise ConfigError(
                "batch = 0 (exact gradients) has no meaning for a model with dropout or running statistics; use a "
                'mini-batch, or batch_norm = "recalibrated"'
            )
        self._host()

    def _host(self) -> None:
        """Set up what depends on which workers are hosted here."""
        self._ids = np.asarray(self.workers, dtype=np.int64)[:, None]
        self._sizes = np.array([len(self.parts[i]) for i in self.workers])[:, None]
        self._offsets = np.concatenate([[0], np.cumsum(self._sizes)[:-1]])[:, None]
        self._rows = np.concatenate([self.parts[i] for i in self.workers])
        has_buffers = self._buffer_start.numel() > 0
        keeps = has_buffers and self.batch_norm != "recalibrated"
        self.initial_buffers = self._buffer_start.repeat(len(self.workers), 1) if keeps else None
        self.buffers = None if self.initial_buffers is None else self.initial_buffers.clone()
        self.mixes_buffers = keeps and self.batch_norm == "mixed"
        self.size = int(self._sizes.sum())
        on_cpu = self.device.type == "cpu"
        threads = 1 if self._random or not on_cpu else min(self._threads, max(len(self.workers), _LANES))
        self._pool = Pool(threads)
        self._replicas = [Replica(self.model, self.loss, self._moving) for _ in range(threads)]
        stacks = len(self.workers) > 1 and self.batch > 0 and not self._random and not has_buffers
        self._vmap = vmap_gradient(self.model, self.loss) if stacks and can_stack(self.model, self.device) else None

    def at(self, workers: Sequence[int]) -> ModuleProblem:
        other = object.__new__(ModuleProblem)
        other.__dict__.update(self.__dict__)
        other.workers, other._threads = tuple(workers), 1
        other._host()
        return other

    def start(self) -> Tensor:
        return self._start.clone()

    def label_counts(self) -> npt.NDArray[np.int64]:
        return label_counts(self.data.train_y.numpy(), self.parts, self.data.classes)

    def sample(self, t: int, k: int) -> Sample:
        if self.batch == 0:
            return Sample(t, k, self.size)
        if self.sampling == "replacement":
            place = np.arange(self.batch)[None, :]
            local = randomness.integers(self._sizes, "batch", self.seed, self._ids, t, k, place)
        else:
            draws = [randomness.generator("batch", self.seed, int(i), t, k) for i in self._ids[:, 0]]
            local = np.stack(
                [g.choice(int(n), self.batch, replace=False) for g, n in zip(draws, self._sizes[:, 0], strict=True)]
            )
        rows = self._rows[self._offsets + local]
        return Sample(t, k, rows.size, torch.from_numpy(rows))

    def grad(self, x: Tensor, sample: Sample) -> Tensor:
        if sample.rows is None:
            return self.full_grad(x)
        if self._vmap is not None:
            out = self._vmap(x, self._train.inputs(sample.rows), self._train.targets(sample.rows))
        else:
            out = self._looped(x, sample)
        return out.add_(x, alpha=self.l2) if self.l2 else out

    def _looped(self, x: Tensor, sample: Sample) -> Tensor:
        out = torch.empty_like(x)
        assert sample.rows is not None

        def one(slot: int, i: int) -> None:
            replica, rows = self._replicas[slot], sample.rows[i]  # type: ignore[index]
            replica.load(x[i], None if self.buffers is None else self.buffers[i])
            _, gradients = replica.gradient(self._train.inputs(rows), self._train.targets(rows))
            replica.write(gradients, out[i])
            if self.buffers is not None:
                replica.store_buffers(self.buffers[i])

        def seeded(slot: int, i: int) -> None:
            _reseed(self.seed, self.workers[i], sample.t, sample.k)
            one(slot, i)

        with self._guarded_generator():
            self._pool.each(seeded if self._random else one, len(self.workers))
        return out

    @contextmanager
    def _guarded_generator(self) -> Iterator[None]:
        """Where the model draws random numbers, have torch's global generator alone and leave it as it was."""
        if not self._random:
            yield
            return
        with self._generator, kept_generator(self.device):
            yield

    def full_grad(self, x: Tensor) -> Tensor:
        out = torch.stack(
            [self._sum(row, *self._even(self.parts[i]))[1] for row, i in zip(x, self.workers, strict=True)]
        )
        return out.add_(x, alpha=self.l2) if self.l2 else out

    def objective(self, x: Tensor, limit: int = 0) -> tuple[Tensor, Tensor]:
        per_worker = -(-limit // len(self.workers))
        weight = torch.zeros(len(self.data.train_y), dtype=torch.float64)
        for i in self.workers:
            rows, weights = self._even(thin(self.parts[i], per_worker))
            weight.index_add_(0, rows, weights.double() / len(self.workers))
        rows = weight.nonzero()[:, 0]  # workers that share data share the work: one pass over the distinct samples
        value, gradient = self._sum(x, rows, weight[rows].to(self.dtype))
        return value + self.l2 / 2 * (x @ x), gradient.add_(x, alpha=self.l2)

    def _even(self, part: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        return torch.tensor(part), torch.full((len(part),), 1 / len(part), dtype=self.dtype)

    def _sum(self, x: Tensor, rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Σⱼ weightⱼ ℓⱼ(x) and its gradient, in a fixed order of summation whatever the number of threads."""
        order = self._shuffled(len(rows))
        pieces = -(-len(rows) // _CHUNK)
        chunks = list(zip(rows[order].tensor_split(pieces), weights[order].tensor_split(pieces), strict=True))
        values = torch.zeros(_LANES, dtype=self.dtype, device=self.device)
        sums = torch.zeros(_LANES, self.d, dtype=self.dtype, device=self.device)

        def lane(slot: int, i: int) -> None:
            replica = self._replicas[slot]
            replica.load(x)
            with without_dropout(replica.model):
                for chunk, weight in chunks[i::_LANES]:
                    inputs, targets = self._train.inputs(chunk), self._train.targets(chunk)
                    value, gradients = replica.gradient(inputs, targets, weight.to(self.device))
                    values[i] += value
                    for view, gradient in zip(replica.layout.views(sums[i]), gradients, strict=True):
                        view += gradient

        with one_intra_op_thread(), self._guarded_generator():
            if self._random:
                _reseed(self.seed)
            self._pool.each(lane, min(_LANES, len(chunks)))
        return values.sum(), sums.sum(dim=0)

    def _shuffled(self, count: int) -> Tensor:
        """A fixed random order: data sorted by label would give BatchNorm chunks of one label."""
        return torch.from_numpy(randomness.generator("chunks", self.seed).permutation(count))

    def module(self, x: Tensor, buffers: Tensor | None = None) -> nn.Module:
        """A copy of the model with the parameters x `[d]` (and running statistics `[b]`), in evaluation mode."""
        replica = Replica(self.model, self.loss, self._moving)
        replica.load(x.to(self.device, self.dtype).clone(), buffers)
        return replica.model.eval()

    def evaluate(
        self,
        x: Tensor,
        *,
        workers: Sequence[int] | None = None,
        buffers: Tensor | None = None,
        limit: int = 0,
    ) -> Scores:
        if self._buffer_start.numel() and self.batch_norm == "recalibrated":
            buffers = self._recalibrated(x, workers)
        rows = torch.from_numpy(thin(np.arange(len(self.data.test_y)), limit))
        chunks = torch.split(rows, _CHUNK)
        losses = torch.zeros(len(x), len(chunks), dtype=torch.float64)
        correct = torch.zeros(len(x), len(chunks), dtype=torch.float64)

        def one(slot: int, task: int) -> None:
            i, c = divmod(task, len(chunks))
            replica, targets = self._replicas[slot], self._test.targets(chunks[c])
            replica.load(x[i], None if buffers is None else buffers[i])
            scores = replica.model.eval()(self._test.inputs(chunks[c]))
            losses[i, c] = replica.loss(scores, targets).sum().cpu()
            correct[i, c] = (scores.argmax(dim=-1) == targets).sum().cpu()
            replica.model.train()

        with one_intra_op_thread():
            self._pool.each(without_grad(one), len(x) * len(chunks))
        return Scores(losses.sum(1) / len(rows), correct.sum(1) / len(rows))

    def _recalibrated(self, x: Tensor, workers: Sequence[int] | None) -> Tensor:
        """Buffers `[rows, b]` with BatchNorm's statistics averaged over training samples: a worker's own, or all."""
        buffers = self._buffer_start.repeat(len(x), 1)

        def one(slot: int, i: int) -> None:
            replica = self._replicas[slot]
            replica.load(x[i], self._buffer_start)
            pool = np.concatenate(self.parts) if workers is None else self.parts[workers[i]]
            with averaging_batch_norm(replica.model), without_dropout(replica.model):
                rows = torch.tensor(thin(pool, _CALIBRATION))
                for chunk in rows[self._shuffled(len(rows))].tensor_split(-(-len(rows) // _CHUNK)):
                    replica.model(self._train.inputs(chunk))
            replica.store_buffers(buffers[i])

        with one_intra_op_thread(), self._guarded_generator():
            self._pool.each(without_grad(one), len(x))
        return buffers


def _reseed(*address: int) -> None:
    torch.manual_seed(int(randomness.bits("model", *address)) >> 1)


def _uninitialised(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ConfigError(f"the model's parameter {name!r} is lazy and has no values yet; give its layer its sizes")


def _check(batch: int, l2: float, threads: int, sampling: str, parts: Sequence[npt.NDArray[np.int64]]) -> None:
    if batch < 0:
        raise ConfigError(f"batch must be at least 1, or 0 for exact local gradients, got {batch}")
    if l2 < 0:
        raise ConfigError(f"l2 must be 0 or more, got {l2}")
    if threads < 0:
        raise ConfigError(f"threads must be at least 1, or 0 for all cores, got {threads}")
    smallest = min(map(len, parts))
    if sampling == "distinct" and batch > smallest:
        raise ConfigError(
            f"batch = {batch} distinct samples cannot be drawn from a worker that has {smallest}; lower batch or use "
            f'sampling = "replacement"'
        )


@PROBLEMS.register("classification")
def classification(
    workers: int,
    data: str | Mapping[str, Any] = "digits",
    partition: str | Mapping[str, Any] = "shards",
    model: str | Mapping[str, Any] = "mlp",
    loss: str | Mapping[str, Any] = "cross-entropy",
    batch: int = 32,
    l2: float = 0.0,
    sampling: Literal["replacement", "distinct"] = "replacement",
    batch_norm: BatchNormPolicy = "mixed",
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    threads: int = 0,
) -> ModuleProblem:
    """A model on a data set split over workers, all named as in an experiment file."""
    dataset = load_dataset(data)
    parts = make_partition(partition, dataset, workers, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(randomness.bits("weights", seed)) >> 1)
        module = MODELS.build(model, inputs=tuple(dataset.train_x.shape[1:]), classes=dataset.classes)
    return ModuleProblem(
        module,
        dataset,
        parts,
        loss=LOSSES.build(loss),
        batch=batch,
        l2=l2,
        sampling=sampling,
        batch_norm=batch_norm,
        seed=seed,
        dtype=dtype,
        device=device,
        threads=threads,
    )
