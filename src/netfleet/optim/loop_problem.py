"""The objective of a worker whose gradients come from the user's loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from netfleet.engines.host import Host, all_finite
from netfleet.engines.job import LoopState, Recorder, Snapshot
from netfleet.errors import ConfigError, DivergedError
from netfleet.gradients.paths import Sample
from netfleet.optim.handover import Handover
from netfleet.optim.kept import Kept
from netfleet.optim.parameters import FlatParameters
from netfleet.problems.base import ParameterGroup, Problem, Scores


class GradientAt(NamedTuple):
    """The training wants the gradient at x, `[d]`, on a mini-batch."""

    x: Tensor
    sample: Sample


class RoundEnded(NamedTuple):
    """A round is over (or nothing has begun yet); the next one begins with the answer."""

    snapshot: Snapshot


Question = GradientAt | RoundEnded
#: A gradient `[1, d]`, or what the loop keeps, to be saved with the snapshot.
Answer = Tensor | LoopState


class LoopProblem(Problem):
    """Gradients are what the loop leaves in `.grad`."""

    owns_state = True

    def __init__(
        self,
        flat: FlatParameters,
        buffers: Sequence[Tensor],
        worker: int,
        workers: int,
        seed: int,
        kept: Callable[[], Kept | None],
    ) -> None:
        """`kept` is what the loop keeps, among which may be the model; a scheduler among it refers to the optimizer."""
        self.m, self.workers, self.seed = workers, (worker,), seed
        self.d, self.dtype, self.device = flat.d, flat.dtype, flat.device
        self._flat, self._statistics = flat, [b for b in buffers if b.is_floating_point()]
        self.mixes_buffers = bool(self._statistics)
        self.buffers = self.initial_buffers = self.read_buffers()
        self.handover: Handover[Question, Answer] = Handover()
        self._asked = (-1, -1)
        self._repeats = False
        self._kept = kept

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        return self._flat.shapes

    def read_buffers(self) -> Tensor | None:
        """The module's buffers in one vector, `[1, …]`."""
        parts = [b.flatten().to(self.dtype) for b in self._statistics]
        return torch.cat(parts)[None] if parts else None

    def write_buffers(self, values: Tensor | None) -> None:
        """Write one vector, `[1, …]`, into the module's buffers."""
        if values is not None:
            sizes = [b.numel() for b in self._statistics]
            for b, part in zip(self._statistics, torch.split(values[0], sizes), strict=True):
                b.copy_(part.view_as(b))

    def named_values(self) -> dict[str, Tensor]:
        """The model by the names of its parameters and buffers, if the loop keeps it; else all parameters as `x`."""
        kept = self._kept()
        model = None if kept is None else kept.model
        return {"x": self._flat.x} if model is None else dict(model.state_dict())

    def use_groups(self, groups: tuple[ParameterGroup, ...]) -> None:
        """Let local steps move the parameters of these groups with their own rates and options."""
        self.groups = groups

    def let_repeat(self, repeats: bool) -> None:
        """Whether the loop can use a mini-batch twice, because the closure is told its name."""
        self._repeats = repeats

    def sample(self, t: int, k: int) -> Sample:
        return Sample(t, k, 1)

    def grad(self, x: Tensor, sample: Sample) -> Tensor:
        if self._asked == (sample.t, sample.k) and not self._repeats:
            raise ConfigError(
                "this method takes two gradients on one mini-batch; give step a closure with an argument, the "
                "mini-batch's name, that uses the same data for the same name"
            )
        self._asked = sample.t, sample.k
        self.write_buffers(self.buffers)
        gradient = self.handover.ask(GradientAt(x[0], sample))
        assert isinstance(gradient, Tensor)
        self.buffers = self.read_buffers()
        return gradient

    def full_grad(self, x: Tensor) -> Tensor:
        raise ConfigError("this method passes over all of a worker's data, which a loop cannot; use netfleet run")

    def start(self) -> Tensor:
        return self._flat.x

    def at(self, workers: Sequence[int]) -> Problem:
        return self

    def objective(self, x: Tensor) -> tuple[Tensor, Tensor]:
        raise ConfigError("a training loop has no exact objective")

    def evaluate(self, x: Tensor, **options: object) -> Scores:
        raise ConfigError("a training loop has no held-out data")


class LoopRecorder(Recorder):
    """Gives control to the loop between two rounds. `then` records the snapshot when the loop comes back."""

    keeps_last = False

    def __init__(self, handover: Handover[Question, Answer], then: Recorder | None = None) -> None:
        self._handover, self._then = handover, then

    def due(self, t: int) -> bool:
        return True

    def record(self, snapshot: Snapshot, host: Host) -> None:
        kept = self._handover.ask(RoundEnded(snapshot))
        if self._then is not None:
            assert isinstance(kept, LoopState)
            self._check_finite(snapshot)
            self._then.record(replace(snapshot, loop=kept), host)

    def _check_finite(self, snapshot: Snapshot) -> None:
        """The loop may have written into the parameters and buffers meanwhile."""
        if not all(map(all_finite, (*snapshot.state, *(() if snapshot.buffers is None else (snapshot.buffers,))))):
            raise DivergedError(
                f"a parameter or buffer is not finite after round {snapshot.t}; nothing of it was saved or sent, and "
                f"the last saved state is that of the round before"
            )

    def progress(self, t: int) -> None:
        if self._then is not None:
            self._then.progress(t)


@dataclass
class Rates:
    """The step sizes as the loop sets them: of the present round, and of the one before it."""

    now: float
    before: float
    t: int = 0

    def __call__(self, t: int) -> float:
        return self.before if t < self.t else self.now

    def resume(self, t: int, rate: float) -> None:
        """Round t follows one with this step size."""
        self.t, self.now, self.before = t - 1, rate, rate

    def begin(self, t: int, rate: float) -> None:
        """Round t begins with this step size."""
        if t > self.t:
            self.before = self.now
        self.t, self.now = t, rate
