"""The scores of a trained model in detail: over all test rows, at each site, and for each label, with intervals.

An interval is the bootstrap's: from 2.5 to 97.5 per cent of the metric's values on test rows drawn with replacement. It
says how much the test rows leave open, not how much another training would differ.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from netfleet import randomness
from netfleet.data.tensors import Tensors, take
from netfleet.problems.module import ModuleProblem
from netfleet.problems.scoring import METRICS, Metric, MetricSpec, by_label, make_metrics, one_auroc, one_f1
from netfleet.runs.scores import Score

RESAMPLES = 200
Rows = npt.NDArray[np.int64]


def score_table(
    problem: ModuleProblem, x: Tensor, metrics: Sequence[MetricSpec] = (), buffers: Tensor | None = None
) -> list[Score]:
    """The scores of the model with the parameters x `[d]`: loss, accuracy where it exists, and the given metrics.

    Where the workers have test rows of their own, each of them is a site. Each label has its precision, recall, F1 and
    AUROC against the rest, if one of the metrics is about labels.
    """
    named = {metric.name: metric for metric in (*core_metrics(problem), *make_metrics(metrics, problem.task))}
    wanted, statistics = list(named.values()), problem.statistics(x[None], None, buffers)
    outputs, targets = problem.outputs(x, torch.arange(problem.data.tests), statistics), problem.test_targets
    found = []
    for name, rows in _places(problem):
        here, there = outputs[rows], take(targets, torch.from_numpy(rows))
        found += [_score(name, metric, here, there, problem.seed) for metric in wanted]
    if problem.task.outputs in ("classes", "labels") and any(m.name in _NEED_LABELS for m in wanted):
        assert isinstance(targets, Tensor)
        found += _labels(outputs, targets)
    return found


_NEED_LABELS = ("auroc", "average_precision", "f1", "balanced_accuracy")


def core_metrics(problem: ModuleProblem) -> Iterator[Metric]:
    """What every task has: its loss, and the accuracy where answers can be right."""
    loss = problem.task.loss
    yield Metric("loss", lambda outputs, targets: loss(outputs, targets).mean().item())
    if problem.task.right is not None:
        yield METRICS["accuracy"]


def _places(problem: ModuleProblem) -> Iterator[tuple[str, Rows]]:
    yield "", np.arange(problem.data.tests)
    if problem.test_parts is not None and problem.m > 1 and problem.data.site is None:
        for i in range(problem.m):
            yield problem.worker_name(i), problem.test_parts[i]


def _score(place: str, metric: Metric, outputs: Tensor, targets: Tensors, seed: int) -> Score:
    count = len(outputs)
    draws = randomness.generator("bootstrap", seed).integers(count, size=(RESAMPLES, count))
    again = [metric(outputs[rows], take(targets, rows)) for rows in torch.from_numpy(draws)]
    known = [value for value in again if value is not None]
    low, high = np.quantile(known, (0.025, 0.975)).tolist() if known else (None, None)
    return Score(place, "", metric.name, metric(outputs, targets), low, high, count)


def _labels(outputs: Tensor, targets: Tensor) -> Iterator[Score]:
    for one in by_label(outputs, targets, every=True):
        hits, said, true = int((one.said & one.truth).sum()), int(one.said.sum()), int(one.truth.sum())
        values = {
            "precision": hits / said if said else None,
            "recall": hits / true if true else None,
            "f1": one_f1(one) if said + true else None,
            "auroc": one_auroc(one) if 0 < true < len(one.truth) else None,
        }
        for name, value in values.items():
            yield Score("", str(one.label), name, value, None, None, true)
