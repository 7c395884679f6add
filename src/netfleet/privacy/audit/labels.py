"""Labels are read off a gradient: the last layer's bias has a negative gradient for labels that are in the batch.

With softmax and cross-entropy that gradient is the mean of p(c) − 1[label = c], which is positive for a label that
nobody has (Zhao, Mopuri, Bilen 2020). Of one gradient at a known model, the mean of p(c) is about that on other rows; a
label that one row has then shows by 1 / batch.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from netfleet.privacy.audit.layers import LinearLayer


class LabelGuess(NamedTuple):
    """Which labels were said to be in a batch, and which were, both `[classes]`."""

    said: Tensor
    true: Tensor


def read_labels(gradient: Tensor, layer: LinearLayer, absent: Tensor | None = None, batch: int = 1) -> Tensor:
    """Which labels are in the batch, `[classes]`; `absent` is what the biases' gradients would be without any label."""
    least = torch.zeros(()) if absent is None else absent - 1 / (2 * batch)
    return layer.biases(gradient) < least


def count_labels(gradient: Tensor, layer: LinearLayer, batch: int) -> Tensor:
    """The labels of a batch, one after the other: each takes 1 / batch off its label's bias."""
    left, labels = layer.biases(gradient).clone(), []
    for _ in range(batch):
        labels.append(int(left.argmin()))
        left[labels[-1]] += 1 / batch
    return torch.tensor(labels)


class LabelScore(NamedTuple):
    """How good guesses are; `advantage` is the share of labels found less that of labels said in error."""

    precision: float
    recall: float
    advantage: float


def score_labels(guesses: Sequence[LabelGuess]) -> LabelScore:
    """Over all victims together."""
    said, true = (torch.cat(parts).bool() for parts in zip(*guesses, strict=True))
    right = int((said & true).sum())
    recall, wrong = right / max(int(true.sum()), 1), int((said & ~true).sum()) / max(int((~true).sum()), 1)
    return LabelScore(right / max(int(said.sum()), 1), recall, recall - wrong)
