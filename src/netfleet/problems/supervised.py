"""Problems from experiment files: a model on a data set that is split over workers."""

from functools import partial
from typing import Literal

import torch

from netfleet import randomness
from netfleet.data import hold_out, load_dataset, make_partition
from netfleet.gradients.paths import Gradients
from netfleet.problems.base import PROBLEMS
from netfleet.problems.models import MODELS
from netfleet.problems.module import BatchNormPolicy, ModuleProblem
from netfleet.problems.tasks import make_task
from netfleet.registry import Spec


def supervised(
    workers: int,
    data: Spec = "digits",
    partition: Spec = "shards",
    model: Spec = "mlp",
    loss: Spec = "cross-entropy",
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
    """A model on a data set split over workers, all named as in an experiment file.

    With `validation`, that share of the training rows is held out and scored in place of the test rows.
    """
    dataset, task = load_dataset(data), make_task(loss)
    dataset, parts = hold_out(dataset, make_partition(partition, dataset, workers, seed), validation, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(randomness.bits("weights", seed)) >> 1)
        width = task.width(dataset)
        module = MODELS.build(model, inputs=dataset.inputs, classes=width, outputs=width)
    build = partial(ModuleProblem, module, dataset, parts, seed=seed, dtype=dtype, device=device, threads=threads)
    return build(loss=task, batch=batch, l2=l2, sampling=sampling, batch_norm=batch_norm, gradients=gradients)


#: What each kind of problem takes as its loss unless told otherwise.
DEFAULT_LOSSES = {
    "classification": "cross-entropy",
    "regression": "mse",
    "survival": "cox",
    "language": "sequence-cross-entropy",
}
for _kind, _loss in DEFAULT_LOSSES.items():
    PROBLEMS.register(_kind)(partial(supervised, loss=_loss))
