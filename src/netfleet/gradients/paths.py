"""What every way to compute gradients has in common; `choice.py` says which one a model takes."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from torch import Tensor, nn

from netfleet.gradients.replica import Loss, Probe, Right
from netfleet.gradients.samples import DeviceSamples

Gradients = Literal["auto", "native", "stacked", "looped", "processes"]
#: The losses that the native path has code for, as means over a sample's outputs; "bce" takes logits.
Head = Literal["cross-entropy", "bce", "mse"]
WeightedRows = tuple[Tensor, Tensor]  # rows of the training data and their weights in a sum
Step = tuple[int, int]  # round and step: the address of a model's random numbers


class Sample(NamedTuple):
    """The name of one mini-batch per hosted worker: a pure function of (seed, worker, round, step)."""

    t: int
    k: int
    size: int  # training samples that a gradient on it uses, over the hosted workers
    rows: Tensor | None = None  # [rows, batch] indices into the training data, where there is data
    drawn: tuple[Tensor, ...] | None = None  # of private gradients: each worker's rows, any number of them


class PathInputs(NamedTuple):
    """What gradients are computed from."""

    model: nn.Module
    loss: Loss
    right: Right | None  # None: there are no right answers
    probed: Probe
    train: DeviceSamples
    test: DeviceSamples
    seed: int
    workers: tuple[int, ...]  # that are hosted
    head: Head | None  # what the loss is to the native path; None: nothing that it knows, or another device


class GradientPath(Protocol):
    """What a `ModuleProblem` needs computed."""

    name: str

    def gradients(self, x: Tensor, sample: Sample, buffers: Tensor | None) -> Tensor:
        """∇fᵢ(xᵢ; ζᵢ) for each hosted worker `[rows, d]`; running statistics in `buffers` are updated."""

    def sums(self, x: Tensor, groups: Sequence[Sequence[WeightedRows]]) -> tuple[Tensor, Tensor]:
        """Of each group the weighted sum of losses `[groups]` and of gradients `[groups, d]` at one model `[d]`."""

    def clipped(self, x: Tensor, rows: Sequence[Tensor], clip: float, step: Step | None = None) -> Tensor:
        """Σⱼ min(1, clip / ‖∇ℓⱼ(xᵢ)‖₂) ∇ℓⱼ(xᵢ) over each hosted worker's own rows, `[workers, d]`.

        A worker may have no row. The norm is over all parameters together. If a gradient is not finite, the worker's
        sum is not. Samples must not depend on each other (`per_sample.py`). A model with dropout needs `step`.
        """

    def scores(self, x: Tensor, chunks: Sequence[Sequence[Tensor]], buffers: Tensor | None) -> tuple[Tensor, Tensor]:
        """Summed loss and right answers of each model on each of its chunks of test rows, both `[models, chunks]`.

        Each of a sample's labels is a part of a right answer; without any, there is nothing right (0).
        """
