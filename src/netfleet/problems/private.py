"""The private part of a `ModuleProblem`: its gradients are sums of clipped ones of single rows, plus noise."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from netfleet.compute.threads import ThreadPool
from netfleet.errors import ConfigError
from netfleet.gradients.paths import GradientPath, Sample
from netfleet.gradients.per_sample import depends_on_others, mixes_samples
from netfleet.gradients.samples import DeviceSamples
from netfleet.privacy.mechanism import Mechanism, Rows
from netfleet.problems.tasks import Task


class PrivateGradients:
    """Draws the mini-batches of the workers that are hosted here, and makes their gradients private."""

    def __init__(self, mechanism: Mechanism, workers: Sequence[int], parts: Sequence[Rows]) -> None:
        """`parts` are the rows of each of these workers."""
        self._mechanism, self._workers = mechanism, workers
        self._sampler = mechanism.sampler(workers, parts)

    def sample(self, t: int, k: int) -> Sample:
        return Sample(t, k, self._sampler.expected, drawn=self._sampler.draw(t, k))

    def compute(self, path: GradientPath, x: Tensor, sample: Sample, pool: ThreadPool) -> Tensor:
        """The private gradients `[workers, d]` at the models x."""
        assert sample.drawn is not None
        out = path.clipped(x, sample.drawn, self._mechanism.clip, (sample.t, sample.k))
        self._mechanism.add_noise(out, self._workers, sample.t, sample.k, pool)
        expected = self._mechanism.expected(self._workers)
        return out.div_(torch.tensor(expected, dtype=x.dtype, device=x.device)[:, None])


def check_divisible(model: nn.Module, moving: frozenset[str], task: Task, samples: DeviceSamples, count: int) -> None:
    """Raise if a gradient cannot be divided into those of its samples; there are so many of them for a trial."""
    cause, rows = "privacy clips the gradient of each row, but", torch.arange(min(2, count))
    if task.joint:
        raise ConfigError(f"{cause} this loss compares rows with each other; use another loss")
    if (module := mixes_samples(model, moving)) is not None:
        raise ConfigError(f"{cause} the model's {module!r} mixes the rows of a batch; use GroupNorm or LayerNorm")
    inputs, targets = samples.inputs(rows), samples.targets(rows)
    if len(rows) > 1 and depends_on_others(model, task.loss, inputs, targets):
        raise ConfigError(
            f"{cause} a row's gradient depends on the other rows of its batch: a layer or the loss mixes them; use "
            f"layers and a loss that treat each row by itself"
        )
