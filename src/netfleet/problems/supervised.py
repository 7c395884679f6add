"""Problems from experiment files: a model on a data set that is split over workers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from netfleet import randomness
from netfleet.data import Dataset, hold_out, load_dataset, make_partition
from netfleet.data.tensors import leaves, mapped
from netfleet.errors import ConfigError
from netfleet.gradients.paths import Gradients
from netfleet.gradients.replica import Loss
from netfleet.problems.base import PROBLEMS, Problem
from netfleet.problems.mini_batches import Rows, Sampling
from netfleet.problems.models import MODELS
from netfleet.problems.module import BatchNormPolicy, ModuleProblem
from netfleet.problems.site_weights import WeightSpec
from netfleet.problems.tasks import Task, make_task
from netfleet.registry import Spec, check_type, parameters, shown, suggestion
from netfleet.registry import split as kind_of


def supervised(
    workers: int,
    data: Spec | Dataset = "digits",
    partition: Spec | Sequence[Rows] = "shards",
    model: Spec | nn.Module = "mlp",
    loss: Spec | Task | Loss = "cross-entropy",
    batch: int = 32,
    l2: float = 0.0,
    sampling: Sampling = "replacement",
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
    dataset, task = data if isinstance(data, Dataset) else load_dataset(data, partition), make_task(loss)
    dataset, parts = hold_out(dataset, make_partition(partition, dataset, workers, seed), validation, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(randomness.bits("weights", seed)) >> 1)
        if not isinstance(module := model, nn.Module):
            width = task.width(dataset)
            if not isinstance(module, str | Mapping):
                raise ConfigError(f"model must be a name, a table or an nn.Module, got {shown(module)}; call its class")
            if ":" not in kind_of(module, "model")[0]:
                dataset = _as_floats(dataset)
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
    for numbers. `options` are the other keys of `[problem]`. A model by name gets whole numbers as floats.

        >>> make_problem("digits", "softmax", workers=4)
        <ModuleProblem: 4 workers, 650 parameters>
    """
    dataset = data if isinstance(data, Dataset) else load_dataset(data, partition)
    groups = None if dataset.groups is None else len(torch.unique(dataset.groups))
    count = workers if workers is not None else len(partition) if isinstance(partition, list | tuple) else groups
    if count is None:
        raise ConfigError(f"{dataset.name} has no groups that could be workers; say how many workers: workers = 8")
    hints = parameters(supervised)
    if unknown := [name for name in options if name not in hints]:
        known = f"{suggestion(unknown[0], hints)}; it takes: {', '.join(sorted(hints))}"
        raise ConfigError(f"make_problem has no parameter {unknown[0]!r}{known}")
    for name, value in {"workers": count, "batch": batch, "l2": l2, "seed": seed, **options}.items():
        check_type(value, hints[name].annotation, f"make_problem: {name}")
    if partition is None and groups is not None and count != groups:
        advice = 'leave workers out for one each, or say partition = "groups" (whole groups) or "iid" (single rows)'
        raise ConfigError(f"{dataset.name} has {groups} groups, and workers = {count}; {advice}")
    split = partition if partition is not None else "iid" if groups is None else "sites"
    named = partial(supervised, count, dataset, split, model, _default_loss(dataset) if loss is None else loss)
    return named(batch=batch, l2=l2, seed=seed, **options).weighted(weights)


def _as_floats(data: Dataset) -> Dataset:
    """Counts and pixels as the built-in models take them."""
    if all(tensor.is_floating_point() for tensor in leaves(data.train_x)):
        return data
    return replace(data, train_x=mapped(_as_float, data.train_x), test_x=mapped(_as_float, data.test_x))


def _as_float(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_floating_point() else tensor.to(torch.float32)


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
