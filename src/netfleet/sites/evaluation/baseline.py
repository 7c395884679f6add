"""The model that looks at no input: the shares of the classes, or the mean, of the site's own training rows."""

import torch
from torch import Tensor

from netfleet.data.tensors import Tensors, take
from netfleet.problems.module import ModuleProblem

#: What the baseline is called, by what the outputs are.
BASELINES = {"classes": "majority", "labels": "majority", "numbers": "mean"}


def constant_outputs(problem: ModuleProblem, worker: int, rows: int) -> Tensor | None:
    """The same outputs for each of some rows; None where the task has no such baseline."""
    kind, data = problem.task.outputs, problem.data
    if kind not in BASELINES:
        return None
    own = take(problem.task.targets(data.train_y, data.name), torch.from_numpy(problem.parts[worker]))
    return _outputs(own, problem.task.width(data) if kind == "classes" else None, kind).expand(rows, -1)


def _outputs(targets: Tensors, classes: int | None, kind: str) -> Tensor:
    """As logits or numbers `[1, outputs]`; a class that does not occur counts as half a row."""
    assert isinstance(targets, Tensor)
    if classes is not None:
        return torch.bincount(targets, minlength=classes).double().clamp(min=0.5).log()[None]
    mean, half = targets.double().reshape(len(targets), -1).mean(0, keepdim=True), 0.5 / len(targets)
    return torch.logit(mean.clamp(half, 1 - half)) if kind == "labels" else mean
