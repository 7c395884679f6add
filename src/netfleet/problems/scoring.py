"""Metrics by name: functions of a model's outputs and the targets, for `evaluation.metrics` and tables of scores.

Several classes are scored one against the rest, several labels one by one, and their mean is taken. Average precision
comes from scikit-learn (`pip install 'netfleet[metrics]'`). A metric that some rows do not have (AUROC where all have
one label) is None there.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from netfleet.data.tensors import Tensors
from netfleet.errors import ConfigError
from netfleet.problems.tasks import Outputs, Task, right_answers
from netfleet.registry import load_object, suggestion

Flags = npt.NDArray[np.bool_]
Measure = Callable[..., float]  # of outputs and targets


@dataclass(frozen=True)
class Metric:
    """A number that says how good outputs are; `needs` are the kinds of outputs that have it (empty: any)."""

    name: str
    measure: Measure
    needs: tuple[Outputs, ...] = ()

    @property
    def __name__(self) -> str:  # as functions have it
        return self.name

    def __call__(self, outputs: Tensor, targets: Tensors) -> float | None:
        if not bool(torch.isfinite(outputs).all()):  # of a run that diverges; the loss will say so
            return None
        try:
            value = float(self.measure(outputs, targets))
        except (TypeError, ValueError, KeyError, IndexError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            words = "a metric is a function of (outputs, targets) that returns one number"
            raise ConfigError(f"metric {self.name!r} failed ({reason}); {words}") from error
        return value if math.isfinite(value) else None


METRICS: dict[str, Metric] = {}
#: Columns of a history that no metric may replace.
TAKEN = {"round", "loss", "train_loss", "grad_norm2", "consensus_error", "stationarity", "tracking_error", "distance2"}
TAKEN |= {"eta", "bytes", "samples", "seconds"}
MetricSpec = str | Metric | Measure


def make_metrics(specs: Sequence[MetricSpec], task: Task) -> tuple[Metric, ...]:
    """The metrics of some names, objects or functions; raises where the task has no such metric."""
    made = tuple(map(make_metric, specs))
    names = [metric.name for metric in made]
    for metric in made:
        if metric.name in TAKEN or names.count(metric.name) > 1:
            cause = "is the name of another column" if metric.name in TAKEN else "is the name of two metrics"
            raise ConfigError(f"{metric.name!r} {cause} of a history; call the function otherwise")
        if metric.measure is average_precision:
            sklearn_metrics()
        if metric.needs and task.outputs not in metric.needs:
            known = ", ".join(sorted(m.name for m in METRICS.values() if task.outputs in m.needs)) or "none by name"
            came = f"outputs are {task.outputs}" if task.outputs else "loss does not say what the outputs are"
            raise ConfigError(f"metric {metric.name!r} does not exist for this task, whose {came}; it has: {known}")
    return made


def make_metric(spec: MetricSpec) -> Metric:
    if isinstance(spec, Metric):
        return spec
    if isinstance(spec, str) and ":" in spec:
        return Metric(spec.partition(":")[2], load_object(spec, "metric"))
    if isinstance(spec, str) and spec in METRICS:
        return METRICS[spec]
    if callable(spec):
        return Metric(spec.__name__, spec)
    near = suggestion(spec, METRICS) if isinstance(spec, str) else ""
    known = ", ".join(sorted(METRICS))
    raise ConfigError(f"unknown metric {spec!r}{near}; known: {known}, or 'package.module:function' for your own")


class OneLabel(NamedTuple):
    """One label against the rest: the score of each row, whether the model says it, and whether it is so."""

    label: int
    scores: npt.NDArray[np.float64]
    said: Flags
    truth: Flags


def by_label(outputs: Tensor, targets: Tensor, *, every: bool = False) -> Iterator[OneLabel]:
    """Each class or label by itself; of two classes only the second, unless `every` class is asked for."""
    outputs = outputs.detach().cpu().double()
    if targets.is_floating_point():  # logits of labels
        columns = list(zip(outputs.reshape(len(outputs), -1).T, targets.cpu().reshape(len(targets), -1).T, strict=True))
        for label, (logits, truth) in enumerate(columns, start=int(len(columns) == 1)):  # one logit is that of label 1
            yield OneLabel(label, logits.numpy(), (logits > 0).numpy(), (truth > 0.5).numpy())
        return
    chances, said, truth = outputs.softmax(-1).numpy(), outputs.argmax(-1).numpy(), targets.cpu().numpy()
    for label in range(0 if every or outputs.shape[-1] != 2 else 1, outputs.shape[-1]):
        yield OneLabel(label, chances[:, label], said == label, truth == label)


def _metric(*needs: Outputs) -> Callable[[Measure], Measure]:
    def add(measure: Measure) -> Measure:
        METRICS[measure.__name__] = Metric(measure.__name__, measure, needs)
        return measure

    return add


def _mean(values: list[float]) -> float:
    found = [value for value in values if not math.isnan(value)]
    return sum(found) / len(found) if found else math.nan


@_metric("classes", "tokens", "labels")
def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of right answers."""
    return right_answers(outputs, targets).mean().item()


@_metric("classes", "labels")
def balanced_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The mean of the shares of each class that are recognised; over labels the mean of theirs."""
    if not targets.is_floating_point():
        return _recall(outputs.argmax(-1).cpu().numpy(), targets.cpu().numpy())
    return _mean([_recall(o.said, o.truth) for o in by_label(outputs, targets)])


def _recall(said: npt.NDArray[np.generic], truth: npt.NDArray[np.generic]) -> float:
    """The mean over the classes that occur."""
    return float(np.mean([(said[truth == label] == label).mean() for label in np.unique(truth)]))


@_metric("classes", "labels")
def f1(outputs: Tensor, targets: Tensor) -> float:
    """The harmonic mean of precision and recall; 0 where a label neither occurs nor is said."""
    return _mean([one_f1(o) for o in by_label(outputs, targets)])


def one_f1(one: OneLabel) -> float:
    both = int(one.said.sum() + one.truth.sum())
    return 2 * int((one.said & one.truth).sum()) / both if both else 0.0


@_metric("classes", "labels")
def auroc(outputs: Tensor, targets: Tensor) -> float:
    """The area under the receiver operating characteristic."""
    return _mean([one_auroc(o) for o in by_label(outputs, targets)])


def one_auroc(one: OneLabel) -> float:
    """The share of pairs of a row with the label and one without in which the first has the higher score."""
    from scipy.stats import rankdata  # here, since it takes a fifth of the time of a start

    having, without = int(one.truth.sum()), int((~one.truth).sum())
    least = having * (having + 1) / 2
    above = rankdata(one.scores)[one.truth].sum() - least if having and without else math.nan
    return float(above / max(having * without, 1))


@_metric("classes", "labels")
def average_precision(outputs: Tensor, targets: Tensor) -> float:
    """The mean of the precision over recall, as a sum over thresholds."""
    score, found = sklearn_metrics().average_precision_score, by_label(outputs, targets)
    return _mean([float(score(o.truth, o.scores)) if o.truth.any() else math.nan for o in found])


@_metric("numbers")
def rmse(outputs: Tensor, targets: Tensor) -> float:
    """The root of the mean squared error."""
    return (outputs.double().reshape(targets.shape) - targets.double()).square().mean().sqrt().item()


@_metric("numbers")
def mae(outputs: Tensor, targets: Tensor) -> float:
    """The mean absolute error."""
    return (outputs.double().reshape(targets.shape) - targets.double()).abs().mean().item()


@_metric("numbers")
def r2(outputs: Tensor, targets: Tensor) -> float:
    """1 − squared error / squared distance from the mean; the mean over several outputs."""
    truth = targets.double().reshape(len(targets), -1)
    rest = (outputs.double().reshape(truth.shape) - truth).square().sum(0)
    return (1 - rest / (truth - truth.mean(0)).square().sum(0)).mean().item()


@_metric("classes", "tokens")
def perplexity(outputs: Tensor, targets: Tensor) -> float:
    """exp of the mean negative log-likelihood over all labels or tokens."""
    scores = outputs.double().flatten(0, -2)
    return torch.nn.functional.cross_entropy(scores, targets.flatten()).exp().item()


@_metric("risk")
def concordance(outputs: Tensor, targets: Tensor) -> float:
    """Harrell's C: of the pairs whose order is known, the share in which who has the event first has more risk."""
    risk, (time, event) = outputs.double().flatten(), targets.double().unbind(1)
    known = (event[:, None] > 0) & (time[:, None] < time[None, :])
    right = (risk[:, None] > risk[None, :]).double() + 0.5 * (risk[:, None] == risk[None, :])
    return ((right * known).sum() / known.sum()).item()


def sklearn_metrics() -> ModuleType:
    try:
        import sklearn.metrics
    except ImportError:
        raise ConfigError("this metric needs scikit-learn; pip install 'netfleet[metrics]'") from None
    module: ModuleType = sklearn.metrics
    return module
