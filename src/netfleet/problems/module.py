"""`nn.Module` + loss + data split over workers -> f."""

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from netfleet import randomness
from netfleet.compute.threads import ThreadPool, available_threads
from netfleet.data import Dataset, check_parts, label_counts, own_tests
from netfleet.data.tensors import Tensors, mapped, take, to_dtype
from netfleet.errors import ConfigError
from netfleet.gradients.choice import choose_path, native_model, wants_channels_last
from netfleet.gradients.looped import Looped
from netfleet.gradients.native.blocks import Network
from netfleet.gradients.paths import Gradients, PathInputs, Sample, WeightedRows
from netfleet.gradients.replica import Loss, Replica, flatten, probe
from netfleet.gradients.samples import DeviceSamples, draw
from netfleet.privacy.mechanism import Mechanism
from netfleet.privacy.spending import Spending
from netfleet.problems.base import Objective, Problem, Scores
from netfleet.problems.mini_batches import MiniBatches, Rows, Sampling
from netfleet.problems.private import PrivateGradients, check_divisible
from netfleet.problems.scoring import Metric, MetricSpec, make_metrics
from netfleet.problems.site_weights import Shares
from netfleet.problems.tasks import Task, guessed, make_task
from netfleet.registry import Spec

BatchNormPolicy = Literal["mixed", "local", "recalibrated"]
_CHUNK = 512  # samples per forward pass of an evaluation
_GROUPS = 8  # of chunks in a full gradient, each summed by itself: fixed, so that the sum has one order
_CALIBRATION = 2048  # samples that recalibrated BatchNorm statistics are made from


class ModuleProblem(Problem):
    """The training of one `nn.Module` on data that is split over m workers.

    `parts[i]` are worker i's rows of the training data, `test_parts[i]` its own test rows (by default those of its
    groups). `loss` is a name, a table, a `Task`, or a function that maps outputs and targets to one loss per sample
    (`problems/tasks.py`). Only parameters that require a gradient are trained and sent. `batch = 0` means exact local
    gradients. `sampling` draws a mini-batch with replacement (independent samples, as Assumption 1 has it) or
    "distinct". Each fᵢ gets the penalty (l2/2)‖x‖². `batch_norm` says what happens to module buffers: "mixed" with the
    neighbours at each exchange, kept "local", or "recalibrated" from training data at each evaluation. They never
    enter a gradient: in training BatchNorm uses the statistics of the batch. Exact values of f (`objective`,
    `full_grad`) are taken without dropout and, under BatchNorm, over random chunks of 512 samples.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Dataset,
        parts: Sequence[Rows],
        *,
        loss: Task | Loss | Spec = "cross-entropy",
        test_parts: Sequence[Rows] | None = None,
        batch: int = 32,
        l2: float = 0.0,
        sampling: Sampling = "replacement",
        batch_norm: BatchNormPolicy = "mixed",
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        threads: int = 0,
        gradients: Gradients = "auto",
    ) -> None:
        parts = check_parts(parts, data.rows, len(parts), "parts")
        _check(model, batch, l2, threads, sampling, parts)
        self.data, self.parts, self.batch, self.l2 = data, parts, batch, l2
        self.sampling, self.batch_norm, self.seed, self.gradients = sampling, batch_norm, seed, gradients
        self.m = len(parts)
        self._mechanism: Mechanism | None = None
        self.test_parts = (
            own_tests(data, parts) if test_parts is None else check_parts(test_parts, data.tests, self.m, "test_parts")
        )
        self.has_own_tests, self.workers = self.test_parts is not None, tuple(range(self.m))
        self.dtype, self.device = dtype, torch.device(device)
        self.model = copy.deepcopy(model).to(self.device, dtype).train()
        self._start = flatten([p for p in self.model.parameters() if p.requires_grad], dtype)
        self.d = self._start.numel()
        self._threads = threads or available_threads()
        task = make_task(loss)
        targets, test_targets = (task.targets(y, data.name) for y in (data.train_y, data.test_y))
        pair = torch.tensor([0, data.rows - 1])
        trial = (
            mapped(lambda t: to_dtype(t.to(self.device), dtype), take(tensors, pair))
            for tensors in (data.train_x, targets)
        )
        self._probed = probe(self.model, task.loss, *trial)
        self.task = guessed(task, self._probed.outputs, targets)
        plain = isinstance(data.train_x, Tensor) and data.train_x.is_floating_point()
        self._head = self.task.head if self.device.type == "cpu" and plain else None
        shape, moved, both = torch.Size(data.inputs), self._probed.moving, (targets, test_targets)
        self._native = native_model(self.model, shape, dtype, moved, self._head, both, gradients)
        last = wants_channels_last(self.model, self.device)
        if self._native is not None:
            last = not isinstance(self._native, Network) and self._native[0].kernel_h > 0
        self._train = DeviceSamples(data.train_x, targets, dtype, self.device, last)
        self._test = DeviceSamples(data.test_x, test_targets, dtype, self.device, last)
        moving = [buffer for name, buffer in self.model.named_buffers() if name in self._probed.moving]
        self._buffer_start = flatten(moving, dtype).to(self.device)
        if batch == 0 and (self._probed.random or (moving and batch_norm != "recalibrated")):
            raise ConfigError(
                "batch = 0 (exact gradients) has no meaning for a model with dropout or running statistics; use a "
                'mini-batch, or batch_norm = "recalibrated"'
            )
        self._host()

    def _host(self) -> None:
        """Set up what depends on which workers are hosted here."""
        scale = [1.0] * self.m if self.shares is None else (self.m * self.shares).tolist()
        #: What each hosted worker contributes to the mean over the hosted workers: 1 / (their number), unless weighted.
        self._parts_of_mean = [scale[i] / len(self.workers) for i in self.workers]
        own = torch.tensor([[scale[i]] for i in self.workers], dtype=self.dtype, device=self.device)
        self._scale = None if self.shares is None else own
        has_buffers = self._buffer_start.numel() > 0
        keeps = has_buffers and self.batch_norm != "recalibrated"
        self.initial_buffers = self._buffer_start.repeat(len(self.workers), 1) if keeps else None
        self.buffers = None if self.initial_buffers is None else self.initial_buffers.clone()
        self.mixes_buffers = keeps and self.batch_norm == "mixed"
        one = self._probed.random or self.device.type != "cpu"
        self._pool = ThreadPool(1 if one else min(self._threads, max(len(self.workers), _GROUPS)))
        task, samples = (self.task.loss, self.task.right, self._probed), (self._train, self._test)
        inputs = PathInputs(self.model, *task, *samples, self.seed, self.workers, self._head)
        self._path = choose_path(inputs, self._native, self._pool, self._threads, self.gradients)
        self._inputs, self._outputs_path = inputs, self._path if isinstance(self._path, Looped) else None
        hosted = [self.parts[i] for i in self.workers]
        self.size = sum(map(len, hosted))
        self._batches = MiniBatches(hosted, self.workers, self.batch, self.sampling, self.seed)
        self._private = None if self._mechanism is None else PrivateGradients(self._mechanism, self.workers, hosted)

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        return tuple(p.shape for p in self.model.parameters() if p.requires_grad)

    @property
    def path(self) -> str:
        """How gradients are computed: "native", "stacked", "looped" or "processes" (`gradients/choice.py`)."""
        return self._path.name

    def among(self, rows: Sequence[int]) -> "ModuleProblem":
        return self.at([self.workers[i] for i in rows], self._threads)

    def at(self, workers: Sequence[int], threads: int = 1) -> "ModuleProblem":
        other = object.__new__(ModuleProblem)
        other.__dict__.update(self.__dict__)
        other.workers, other._threads = tuple(workers), threads
        other._host()
        return other

    def start(self) -> Tensor:
        return self._start.clone()

    def label_counts(self) -> Rows | None:
        if self.task.outputs != "classes" or not isinstance(self.data.train_y, Tensor):
            return None
        return label_counts(self.data.train_y.numpy(), self.parts, self.task.width(self.data))

    def sample(self, t: int, k: int) -> Sample:
        if self._private is not None:
            return self._private.sample(t, k)
        if self.batch == 0:
            return Sample(t, k, self.size)
        return self._batches.sample(t, k)

    def grad(self, x: Tensor, sample: Sample) -> Tensor:
        if self._private is not None:
            out = self._private.compute(self._path, x, sample, self._pool)
        elif sample.rows is None:
            return self.full_grad(x)
        else:
            out = self._path.gradients(x, sample, self.buffers)
        return self._as_it_counts(out.add_(x, alpha=self.l2) if self.l2 else out)

    def private(self, mechanism: Mechanism, spending: Spending) -> "ModuleProblem":
        """The problem with private gradients; raises if a gradient cannot be divided into those of its samples."""
        check_divisible(self.model, self._probed.moving, self.task, self._train, self.data.rows)
        other = copy.copy(self)
        other._mechanism, other.spending = mechanism, spending
        other._host()
        return other

    def _as_it_counts(self, gradients: Tensor) -> Tensor:
        return gradients if self._scale is None else gradients.mul_(self._scale)

    @property
    def sizes(self) -> Sequence[int]:
        return [len(part) for part in self.parts]

    def with_shares(self, shares: Shares) -> "ModuleProblem":
        other = copy.copy(self)
        other.shares = torch.from_numpy(shares)
        other._host()
        return other

    def full_grad(self, x: Tensor) -> Tensor:
        parts = (self._even(self.parts[i]) for i in self.workers)
        out = torch.stack([self._sum(row, *part)[1] for row, part in zip(x, parts, strict=True)])
        return self._as_it_counts(out.add_(x, alpha=self.l2) if self.l2 else out)

    def objective(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.task.joint:  # samples of different workers are not compared with each other
            own = ((torch.tensor(self.parts[i]), share) for i, share in self._shares_of_mean())
            groups = [[(rows, torch.full((len(rows),), share / len(rows), dtype=self.dtype))] for rows, share in own]
            values, gradients = self._path.sums(x, groups)
            return self._penalised(x, values.sum(), gradients.sum(dim=0))
        weights = torch.zeros(self.data.rows, dtype=torch.float64)
        for i, share in self._shares_of_mean():
            _add(weights, self.parts[i], share / len(self.parts[i]))
        return self._penalised(x, *self._sum(x, *self._weighted(weights)))

    def _shares_of_mean(self) -> Iterable[tuple[int, float]]:
        return zip(self.workers, self._parts_of_mean, strict=True)

    def estimated_objective(self, x: Tensor, per_worker: int) -> Objective:
        """From random groups of each worker's samples: how far the groups differ says how far their mean is off.

        A worker with few samples uses all. The draws are the same in every evaluation, and independent between workers
        even where these share data.
        """
        groups = max(min(_GROUPS, per_worker), 2)
        each = -(-per_worker // groups)  # samples of a worker in a group
        if self.task.joint or per_worker == 0 or groups * each >= max(map(len, self.parts)):
            return Objective(*self.objective(x))
        whole = torch.zeros(self.data.rows, dtype=torch.float64)
        mean, error = torch.zeros(2, groups, len(whole), dtype=torch.float64)
        scales = set()
        for i, share in self._shares_of_mean():
            part = self.parts[i]
            if len(part) <= groups * each:
                _add(whole, part, share / len(part))
                continue
            left = 1 - groups * each / len(part)
            scales.add(scale := math.sqrt(left / (groups * (groups - 1))))
            for g, rows in enumerate(draw(part, groups * each, "objective", self.seed, i).reshape(groups, each)):
                _add(mean[g], rows, share / each)
                _add(error[g], rows, scale * share / each)
        value, gradient = self._groups(x, whole[None])
        values, gradients = self._groups(x, mean)
        if len(scales) > 1:
            errors = self._groups(x, error)
        else:  # where all parts are of one size, one pass does for both
            errors = values * max(scales, default=0.0), gradients * max(scales, default=0.0)
        found = self._penalised(x, value[0] + values.mean(), gradient[0] + gradients.mean(dim=0))
        return Objective(*found, (errors[0] - errors[0].mean(), errors[1] - errors[1].mean(dim=0)))

    def _penalised(self, x: Tensor, value: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        penalty = self.l2 * sum(self._parts_of_mean)
        return value + penalty / 2 * (x @ x), gradient.add_(x, alpha=penalty)

    def _groups(self, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Σⱼ weightⱼ ℓⱼ(x) `[groups]` and its gradient `[groups, d]` for each row of weights."""
        if not weights.any():
            return x.new_zeros(len(weights)), x.new_zeros(len(weights), len(x))
        return self._path.sums(x, [self._chunks(*self._weighted(row)) for row in weights])

    def _weighted(self, weights: Tensor) -> WeightedRows:
        """The rows with a weight: workers that share data share the work, in one pass over the distinct samples."""
        rows = weights.nonzero()[:, 0]
        return rows, weights[rows].to(self.dtype)

    def _even(self, part: Rows) -> tuple[Tensor, Tensor]:
        return torch.tensor(part), torch.full((len(part),), 1 / len(part), dtype=self.dtype)

    def _sum(self, x: Tensor, rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Σⱼ weightⱼ ℓⱼ(x) and its gradient, in a fixed order of summation whatever the number of threads."""
        chunks = self._chunks(rows, weights)
        values, gradients = self._path.sums(x, [chunks[i::_GROUPS] for i in range(min(_GROUPS, len(chunks)))])
        return values.sum(), gradients.sum(dim=0)

    def _chunks(self, rows: Tensor, weights: Tensor) -> list[WeightedRows]:
        """In a fixed random order: data sorted by label would give BatchNorm chunks of one label."""
        if self.task.joint:
            return [(rows, weights)]
        order, pieces = self._shuffled(len(rows)), -(-len(rows) // _CHUNK)
        return list(zip(rows[order].tensor_split(pieces), weights[order].tensor_split(pieces), strict=True))

    def _shuffled(self, count: int) -> Tensor:
        return torch.from_numpy(randomness.generator("chunks", self.seed).permutation(count))

    def module(self, x: Tensor, buffers: Tensor | None = None) -> nn.Module:
        """A copy of the model with the parameters x `[d]` (and running statistics `[b]`), in evaluation mode."""
        if tuple(x.shape) != (self.d,):
            advice = "choose one worker's, or the average: history.final.state.x.mean(0)"
            raise ConfigError(f"a model has {self.d} parameters in one row, got the shape {tuple(x.shape)}; {advice}")
        replica = Replica(self.model, self.task.loss, self._probed.moving)
        replica.load(x.to(self.device, self.dtype).clone(), buffers)
        return replica.model.eval()

    def evaluate(
        self,
        x: Tensor,
        *,
        workers: Sequence[int] | None = None,
        buffers: Tensor | None = None,
        limit: int = 0,
        metrics: Sequence[MetricSpec] = (),
        own: bool = False,
    ) -> Scores:
        buffers = self.statistics(x, workers, buffers)
        if own:
            assert workers is not None
            assert self.test_parts is not None
            drawn = [torch.from_numpy(self.test_parts[i]) for i in workers]
            each = [self._scored(x[i : i + 1], [rows], _row(buffers, i)) for i, rows in enumerate(drawn)]
            scores = Scores(torch.cat([one.loss for one in each]), _joined([one.accuracy for one in each]))
        else:
            drawn, pieces = self._test_rows(len(x), workers, limit)
            scores = self._scored(x, drawn, buffers, pieces)
        wanted = make_metrics(metrics, self.task)
        values = [self._measured(wanted, x[i], drawn[i], _row(buffers, i)) for i in range(len(x) if wanted else 0)]
        return scores._replace(metrics=dict(zip((m.name for m in wanted), zip(*values, strict=True), strict=False)))

    def statistics(self, x: Tensor, workers: Sequence[int] | None, buffers: Tensor | None) -> Tensor | None:
        """The running statistics `[rows, b]` that models are scored with: the given ones, or recalibrated."""
        if self._buffer_start.numel() and self.batch_norm == "recalibrated":
            return self._recalibrated(x, workers)
        return buffers

    def _test_rows(self, models: int, workers: Sequence[int] | None, limit: int) -> tuple[list[Tensor], int]:
        """The test rows of each model, and in how many pieces they are scored if they are a part of all (else 0)."""
        every = np.arange(self.data.tests)
        pieces = max(min(_GROUPS, limit), 2, -(-limit // _CHUNK))
        count = -(-limit // pieces) * pieces
        if self.task.joint or not 0 < limit <= count < len(every):
            return [torch.from_numpy(every)] * models, 0
        names = [()] * models if workers is None else [(i,) for i in workers]  # each worker's model has its own rows
        return [torch.from_numpy(draw(every, count, "test", self.seed, *name)) for name in names], pieces

    def _scored(self, x: Tensor, drawn: Sequence[Tensor], buffers: Tensor | None, pieces: int = 0) -> Scores:
        """Loss and accuracy on as many rows for each model; with pieces of a part also their standard errors."""
        count = len(drawn[0])
        size = count if self.task.joint else _CHUNK
        chunks = [rows.tensor_split(pieces) if pieces else torch.split(rows, size) for rows in drawn]
        losses, right = self._path.scores(x, chunks, buffers)
        has_accuracy = self.task.right is not None
        if not pieces:
            return Scores(losses.sum(1) / count, right.sum(1) / count if has_accuracy else None)
        losses, right = (part * pieces / count for part in (losses, right))  # the mean of each piece
        scale = math.sqrt((1 - count / self.data.tests) / pieces)
        if not has_accuracy:
            return Scores(losses.mean(1), None, losses.std(1) * scale)
        return Scores(losses.mean(1), right.mean(1), losses.std(1) * scale, right.std(1) * scale)

    def outputs(self, x: Tensor, rows: Tensor, buffers: Tensor | None = None) -> Tensor:
        """What the model with the parameters x `[d]` (and running statistics `[1, b]`) makes of some test rows."""
        if self._outputs_path is None:
            self._outputs_path = Looped(self._inputs, self._pool)
        return self._outputs_path.outputs(x, torch.split(rows, _CHUNK), buffers)

    def _measured(
        self, metrics: Sequence[Metric], x: Tensor, rows: Tensor, buffers: Tensor | None
    ) -> list[float | None]:
        targets, outputs = self._test.targets(rows), self.outputs(x, rows, buffers)
        return [metric(outputs, targets) for metric in metrics]

    @property
    def test_targets(self) -> Tensors:
        return self._test.targets(torch.arange(self.data.tests))

    def worker_name(self, i: int) -> str:
        """The name of the group that worker i has, where it has just one; else its number."""
        names, groups = self.data.group_names, self.data.groups
        own = torch.unique(groups[torch.from_numpy(self.parts[i])]) if groups is not None else []
        return names[int(own[0])] if names is not None and len(own) == 1 else f"worker {i}"

    def check_metrics(self, metrics: Sequence[MetricSpec]) -> None:
        make_metrics(metrics, self.task)

    def _recalibrated(self, x: Tensor, workers: Sequence[int] | None) -> Tensor:
        """Buffers `[rows, b]` with BatchNorm's statistics averaged over training samples: a worker's own, or all."""
        assert isinstance(self._path, Looped)  # a chain has no buffers
        chunks = []
        for i in range(len(x)):
            pool, name = (
                (np.concatenate(self.parts), ()) if workers is None else (self.parts[workers[i]], (workers[i],))
            )
            rows = torch.from_numpy(draw(pool, _CALIBRATION, "calibration", self.seed, *name))
            chunks.append(rows[self._shuffled(len(rows))].tensor_split(-(-len(rows) // _CHUNK)))
        return self._path.recalibrated(x, self._buffer_start, chunks)


def _row(buffers: Tensor | None, i: int) -> Tensor | None:
    return None if buffers is None else buffers[i : i + 1]


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    return torch.cat([part for part in parts if part is not None]) if parts[0] is not None else None


def _add(weights: Tensor, rows: Rows, weight: float) -> None:
    weights.index_add_(0, torch.tensor(rows), torch.full((len(rows),), weight, dtype=weights.dtype))


def _check(model: nn.Module, batch: int, l2: float, threads: int, sampling: str, parts: Sequence[Rows]) -> None:
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ConfigError(f"the model's parameter {name!r} is lazy and has no values yet; give its layer its sizes")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            "no parameter of the model requires a gradient, so there is nothing to train; unfreeze a layer"
        )
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
