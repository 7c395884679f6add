"""Problems from experiment files: a model on a data set that is split over workers."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from netfleet import randomness
from netfleet.data import Dataset, hold_out, load_dataset, make_partition
from netfleet.errors import ConfigError
from netfleet.gradients.paths import Gradients
from netfleet.gradients.replica import Loss
from netfleet.problems.base import PROBLEMS, Problem
from netfleet.problems.models import MODELS
from netfleet.problems.module import BatchNormPolicy, ModuleProblem, Rows
from netfleet.problems.site_weights import WeightSpec
from netfleet.problems.tasks import Task, make_task
from netfleet.registry import Spec, parameters, suggestion


def supervised(
    workers: int,
    data: Spec | Dataset = "digits",
    partition: Spec | Sequence[Rows] = "shards",
    model: Spec | nn.Module = "mlp",
    loss: Spec | Task | Loss = "cross-entropy",
    batch: int = 32,
    l2: float = 0.0,
    sampling: Literal["replacement", "distinct"] = "replacement",
    batch_norm: BatchNormPolicy = "mixed",
    validation: float = 0.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    threads: int = 0,
    gradients: Gradients = "auto",
) -> ModuleProblem:
    """A model on a data set split over workers.

    With `validation`, that share of the training rows is held out and scored in place of the test rows.
    """
    dataset, task = data if isinstance(data, Dataset) else load_dataset(data), make_task(loss)
    dataset, parts = hold_out(dataset, make_partition(partition, dataset, workers, seed), validation, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(randomness.bits("weights", seed)) >> 1)
        if not isinstance(module := model, nn.Module):
            width = task.width(dataset)
            module = MODELS.build(module, inputs=dataset.inputs, classes=width, outputs=width)
    build = partial(ModuleProblem, module, dataset, parts, seed=seed, dtype=dtype, device=device, threads=threads)
    return build(loss=task, batch=batch, l2=l2, sampling=sampling, batch_norm=batch_norm, gradients=gradients)


def make_problem(
    data: Spec | Dataset,
    model: Spec | nn.Module = "mlp",
    *,
    workers: int | None = None,
    partition: Spec | Sequence[Rows] | None = None,
    loss: Spec | Task | Loss | None = None,
    weights: WeightSpec = "equal",
    batch: int = 32,
    l2: float = 0.0,
    seed: int = 0,
    **options: Any,
) -> Problem:
    """A model on data that is split over workers: each part is an object, a name, or a table as in an experiment file.

    By default each natural group of the data is a worker, and without groups the rows are dealt out evenly
    (`partition = "iid"`). The loss is the cross-entropy for labels, that of sequences for tokens, and the squared error
    for numbers. `options` are those of `[problem]` and `ModuleProblem`.

        >>> make_problem("digits", "softmax", workers=4)
        <ModuleProblem: 4 workers, 650 parameters>
    """
    dataset = data if isinstance(data, Dataset) else load_dataset(data)
    groups = None if dataset.groups is None else len(torch.unique(dataset.groups))
    count = workers if workers is not None else len(partition) if isinstance(partition, list | tuple) else groups
    if count is None:
        raise ConfigError(f"{dataset.name} has no groups that could be workers; say how many workers: workers = 8")
    known = set(parameters(supervised))
    if unknown := [name for name in options if name not in known]:
        raise ConfigError(f"make_problem has no parameter {unknown[0]!r}{suggestion(unknown[0], known)}")
    split = partition if partition is not None else "sites" if count == groups else "iid"
    named = partial(supervised, count, dataset, split, model, _default_loss(dataset) if loss is None else loss)
    return named(batch=batch, l2=l2, seed=seed, **options).weighted(weights)


def _default_loss(data: Dataset) -> str:
    if data.classes is None:
        return "mse"
    return "cross-entropy" if isinstance(data.train_y, Tensor) and data.train_y.dim() == 1 else "sequence-cross-entropy"


#: What each kind of problem takes as its loss unless told otherwise.
DEFAULT_LOSSES = {
    "classification": "cross-entropy",
    "regression": "mse",
    "survival": "cox",
    "language": "sequence-cross-entropy",
}
for _kind, _loss in DEFAULT_LOSSES.items():
    PROBLEMS.register(_kind)(partial(supervised, loss=_loss))
