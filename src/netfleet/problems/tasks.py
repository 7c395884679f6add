"""What a model's outputs mean: the loss of each sample, which answers are right, and what the targets must be.

| loss | outputs | targets | right |
|---|---|---|---|
| cross-entropy | a score per class `[B, C]` | labels `[B]` | the highest score |
| sequence-cross-entropy | a score per token at each place `[B, T, V]` | tokens `[B, T]`, −100: none | share of places |
| bce | one logit `[B]` or `[B, 1]`, or one per label `[B, L]` | 0 or 1, `[B]` or `[B, L]` | share of labels |
| mse, huber | numbers `[B]` or `[B, L]` | numbers of the same shape | – |
| cox | a log-risk `[B]` or `[B, 1]` | `[B, 2]`: time, and 1 for an event or 0 for censored | – |

The loss of a sample is the mean over its places, labels or numbers. Cox's partial likelihood compares each event with
the samples of the batch that were still at risk, so a mini-batch approximates it: `batch = 0` makes it exact.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from netfleet.data.dataset import IGNORED, Dataset
from netfleet.data.tensors import Tensors, describe, leaves
from netfleet.errors import ConfigError, DataError
from netfleet.gradients.paths import Head
from netfleet.gradients.replica import Loss, Right
from netfleet.registry import Registry, Spec

Outputs = Literal["classes", "tokens", "labels", "numbers", "risk"]


@dataclass(frozen=True)
class Task:
    """A loss with what it says about outputs and targets.

    `loss` maps a batch of outputs and targets to one loss per sample. `outputs` says what the outputs are, which
    decides about accuracy and other metrics; None: only the loss is reported. A `joint` loss of a sample depends on
    the other samples of its batch.
    """

    loss: Loss
    outputs: Outputs | None = None
    joint: bool = False
    #: The same loss in C++, where there is one.
    head: Head | None = None

    @property
    def right(self) -> Right | None:
        """The share of right answers of each sample, where answers can be right."""
        return right_answers if self.outputs in ("classes", "tokens", "labels") else None

    def width(self, data: Dataset) -> int:
        """How many outputs a model needs."""
        y, labels = data.train_y, self.outputs in ("classes", "tokens")
        if data.classes is not None and (labels or self.outputs is None):
            return data.classes
        if labels:
            return int(max(t.max() for y in (data.train_y, data.test_y) for t in leaves(y))) + 1
        one = self.outputs == "risk" or not isinstance(y, Tensor) or y.dim() == 1
        return 1 if one else int(leaves(y)[0].shape[-1])

    def targets(self, y: Tensors, where: str) -> Tensors:
        """The targets as the loss takes them; raises if they are not what it needs."""
        if self.outputs is None:
            return y
        if not isinstance(y, Tensor):
            raise DataError(f"{where}: the targets are {describe(y)}, expected one tensor; use a loss of your own")
        if self.outputs in ("classes", "tokens"):
            return _labels(y, 1 if self.outputs == "classes" else 2, where)
        return _numbers(y, self.outputs, where)


LOSSES: Registry[Task | Loss] = Registry("loss")


@LOSSES.register("cross-entropy")
def cross_entropy() -> Task:
    """Softmax and negative log-likelihood of a label."""
    return Task(_cross_entropy, "classes", head="cross-entropy")


@LOSSES.register("sequence-cross-entropy")
def sequence_cross_entropy() -> Task:
    """The mean over the places of a sequence of softmax and negative log-likelihood of a token."""
    return Task(_sequence_cross_entropy, "tokens")


@LOSSES.register("bce")
def bce() -> Task:
    """Binary cross-entropy with logits: of one label, or the mean over several."""
    return Task(_bce, "labels", head="bce")


@LOSSES.register("mse")
def mse() -> Task:
    """The squared error, the mean over several outputs."""
    return Task(_mse, "numbers", head="mse")


@dataclass(frozen=True)
class _Huber:
    delta: float

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _per_sample(F.huber_loss(_like(outputs, targets), targets, reduction="none", delta=self.delta))


@LOSSES.register("huber")
def huber(delta: float = 1.0) -> Task:
    """Half the squared error up to `delta`, and linear beyond: outliers count less."""
    if not 0 < delta < float("inf"):
        raise ConfigError(f"loss 'huber': delta must be above 0, got {delta}; try delta = 1.0")
    return Task(_Huber(delta), "numbers")


@LOSSES.register("cox")
def cox() -> Task:
    """Cox's negative log partial likelihood, with Breslow's rule for ties, divided by the number of samples."""
    return Task(_cox, "risk", joint=True)


def make_task(loss: Task | Loss | Spec) -> Task:
    """The task of a loss: by name, as a table, a `Task`, or any function of outputs and targets."""
    if isinstance(loss, Task):
        return loss
    made = loss if callable(loss) else LOSSES.build(loss)
    if isinstance(made, Task):
        return made
    if not callable(made):
        raise ConfigError(f"loss {loss!r} made a {type(made).__name__}, expected a function or a netfleet Task")
    return Task(made)


def guessed(task: Task, outputs: Tensor, targets: Tensors) -> Task:
    """A loss of one's own on labels `[B]` and a score for each of several classes has an accuracy."""
    labels = isinstance(targets, Tensor) and targets.dim() == 1 and targets.dtype == torch.int64
    several = isinstance(outputs, Tensor) and outputs.dim() == 2 and outputs.shape[1] > 1
    return replace(task, outputs="classes") if task.outputs is None and labels and several else task


def _cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores, targets, reduction="none")


def _sequence_cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    losses = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=IGNORED)
    counted = (targets != IGNORED).sum(1).clamp(min=1)
    return losses.view(targets.shape).sum(1) / counted


def _bce(logits: Tensor, targets: Tensor) -> Tensor:
    return _per_sample(F.binary_cross_entropy_with_logits(_like(logits, targets), targets, reduction="none"))


def _mse(outputs: Tensor, targets: Tensor) -> Tensor:
    return _per_sample(F.mse_loss(_like(outputs, targets), targets, reduction="none"))


def _cox(outputs: Tensor, targets: Tensor) -> Tensor:
    risk, (time, event) = outputs.flatten(), targets.unbind(1)
    order = time.argsort(descending=True, stable=True)
    at_risk = torch.logcumsumexp(risk[order], 0)
    count = torch.searchsorted(-time[order], -time, right=True)  # of samples with at least this time
    return event * (at_risk[count - 1] - risk)


def _per_sample(losses: Tensor) -> Tensor:
    return losses.flatten(1).mean(1) if losses.dim() > 1 else losses


def _like(outputs: Tensor, targets: Tensor) -> Tensor:
    """Outputs `[B, 1]` for targets `[B]`, and the other way round; broadcasting would compare all with all."""
    if (
        outputs.shape != targets.shape
        and outputs.reshape(len(outputs), -1).shape == targets.reshape(len(targets), -1).shape
    ):
        return outputs.reshape(targets.shape)
    if outputs.shape != targets.shape:
        raise ValueError(f"outputs of shape {tuple(outputs.shape)} for targets of shape {tuple(targets.shape)}")
    return outputs


def right_answers(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of right answers of each sample `[B]`: of its label, of the places of a sequence, or of its labels."""
    if targets.is_floating_point():  # logits of labels
        return _per_sample(((_like(outputs, targets) > 0) == (targets > 0.5)).double())
    right = (outputs.argmax(dim=-1) == targets).double()
    if targets.dim() == 1:
        return right
    return right.sum(1) / (targets != IGNORED).sum(1).clamp(min=1)  # an ignored place is never right


def _labels(y: Tensor, axes: int, where: str) -> Tensor:
    if y.is_floating_point() or y.dim() != axes:
        shape = "one label for each row" if axes == 1 else "[rows, places] of tokens"
        whole = "cross-entropy for labels, sequence-cross-entropy for sequences, or bce for several labels of 0 and 1"
        hint = "bce for 0 and 1, mse for numbers" if y.is_floating_point() else whole
        raise DataError(f"{where}: the targets are {describe(y)}, expected int64 {shape}; or use loss = {hint}")
    return y.long()


def _numbers(y: Tensor, outputs: Outputs, where: str) -> Tensor:
    if outputs == "labels" and not bool(((y == 0) | (y == 1)).all()):
        low, high = y.min().item(), y.max().item()
        raise DataError(
            f"{where}: loss 'bce' needs targets of 0 or 1, got {low:g} to {high:g}; use cross-entropy or mse"
        )
    if outputs == "risk":
        event = y[:, 1] if y.dim() == 2 and y.shape[1] == 2 else None
        if event is None or not bool(((event == 0) | (event == 1)).all()):
            shape = "targets [rows, 2], the time and 1 for an event or 0 for censored"
            raise DataError(f"{where}: loss 'cox' needs {shape}, got {describe(y)}; give each row both")
    return y if y.is_floating_point() else y.to(torch.float32)
