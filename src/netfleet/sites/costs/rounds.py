"""What a round of a method consists of: the gradients between exchanges, and the bytes of each exchange's message; and
what a site holds between rounds.

A method is run with a model of the right size whose gradients cost nothing, and everything that it asks for is noted.
So all methods are covered, with compression, local optimizers, outer steps and rounds of limited time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from netfleet.algorithms.base import Algorithm
from netfleet.algorithms.compression import Packed
from netfleet.engines.loop import Counted, advance, begin
from netfleet.engines.time_box import FixedSteps
from netfleet.gradients.paths import Sample
from netfleet.problems.base import Problem, Scores
from netfleet.sites.runtime.alone import AloneHost


class Limits(NamedTuple):
    """How much is run at most."""

    parameters: int  # the bytes of a larger model are in proportion
    rounds: int  # later ones are like these, from the first on
    gradients: int  # no further round begins after so many


#: Many periods divide these rounds.
FULL = Limits(1 << 20, 120, 1 << 30)
#: For a start and for checks: milliseconds, and a tenth of a second with the slowest local optimizers.
QUICK = Limits(1 << 12, 120, 100)


class Work(NamedTuple):
    """What a site computes between two exchanges."""

    steps: int = 0  # gradients of mini-batches
    passes: int = 0  # gradients over all of its rows


class Round(NamedTuple):
    """A round: work, an exchange, work, …, work."""

    work: tuple[Work, ...]
    bytes: tuple[int, ...]  # of each exchange's message to one neighbour


class Held(NamedTuple):
    """Bytes of what a site holds."""

    state: int = 0  # the method's, with the parameters
    parameters: int = 0
    buffers: int = 0  # of the model
    exchange: int = 0  # the vectors of the largest exchange, which a codec makes a shorter message
    ledger: int = 0  # for each neighbour, if the method conserves a sum


NOTHING = Held()


@dataclass(frozen=True)
class Rounds:
    """The rounds of a method at one site."""

    first: Round  # before round 0
    cycle: tuple[Round, ...]
    held: Held = NOTHING

    def at(self, t: int) -> Round:
        """Round t; −1: what comes before round 0."""
        return self.first if t < 0 else self.cycle[t % len(self.cycle)]


@dataclass(frozen=True)
class ModelSize:
    """What messages and states depend on: the parameters' shapes, the numbers in buffers, and their type."""

    shapes: tuple[torch.Size, ...]
    buffers: int = 0
    dtype: torch.dtype = torch.float32
    mixed: bool = True  # whether buffers are averaged with the neighbours

    @property
    def parameters(self) -> int:
        return sum(shape.numel() for shape in self.shapes)


def size_of(problem: Problem) -> ModelSize:
    kept = problem.initial_buffers
    return ModelSize(tuple(problem.shapes), 0 if kept is None else kept.shape[1], problem.dtype, problem.mixes_buffers)


def rounds_of(
    algorithm: Algorithm, size: ModelSize, rounds: int, steps: int | None = None, limits: Limits = FULL
) -> Rounds:
    """The rounds of a method; `steps`: of at most so many local steps."""
    if size.parameters > limits.parameters:
        part = limits.parameters / size.parameters
        small = replace(size, shapes=(torch.Size((limits.parameters,)),), buffers=round(size.buffers * part))
        return _larger(rounds_of(algorithm, small, rounds, steps, limits), part)
    tape = _Tape()
    problem = _Counting(size, tape.worked)
    host = _Host(problem, tape.exchanged)
    f = Counted(problem, None if steps is None else FixedSteps(torch.tensor([steps])))
    problem.buffers = problem.initial_buffers
    state = begin(host, algorithm, f, torch.zeros(1, size.parameters, dtype=size.dtype))
    first, cycle = tape.cut(), list[Round]()
    while len(cycle) < min(rounds, limits.rounds) and tape.gradients <= limits.gradients:
        state = advance(host, algorithm, f, len(cycle), [state])
        cycle.append(tape.cut())
    row = size.parameters * size.dtype.itemsize
    held = Held(
        sum(values.numel() * values.element_size() for values in state),
        row,
        size.buffers * size.dtype.itemsize,
        tape.widest,
        0 if algorithm.conserves is None else row,
    )
    return Rounds(first, tuple(cycle), held)


def _larger(found: Rounds, part: float) -> Rounds:
    """The rounds of a model of which so small a part was run."""
    first, *cycle = (
        Round(each.work, tuple(round(size / part) for size in each.bytes)) for each in (found.first, *found.cycle)
    )
    return Rounds(first, tuple(cycle), Held(*(round(size / part) for size in found.held)))


class _Tape:
    def __init__(self) -> None:
        self._work, self._bytes = [Work()], list[int]()
        self.gradients = self.widest = 0

    def worked(self, more: Work) -> None:
        before = self._work[-1]
        self._work[-1] = Work(before.steps + more.steps, before.passes + more.passes)
        self.gradients += more.steps + more.passes

    def exchanged(self, size: int, width: int) -> None:
        self._bytes.append(size)
        self.widest = max(self.widest, width)
        self._work.append(Work())

    def cut(self) -> Round:
        """What was noted since the last cut."""
        found = Round(tuple(self._work), tuple(self._bytes))
        self._work, self._bytes = [Work()], []
        return found


class _Counting(Problem):
    """One worker with a model of the given size, whose gradients are 0."""

    m, workers, device = 1, (0,), torch.device("cpu")

    def __init__(self, size: ModelSize, worked: Callable[[Work], None]) -> None:
        self._size, self._worked, self.d, self.dtype = size, worked, size.parameters, size.dtype
        self.mixes_buffers = size.mixed and size.buffers > 0
        self.initial_buffers = torch.zeros(1, size.buffers, dtype=size.dtype) if size.buffers else None

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        return self._size.shapes

    def sample(self, t: int, k: int) -> Sample:
        return Sample(t, k, 1)

    def grad(self, x: Tensor, sample: Sample) -> Tensor:
        self._worked(Work(steps=1))
        return torch.zeros_like(x)

    def full_grad(self, x: Tensor) -> Tensor:
        self._worked(Work(passes=1))
        return torch.zeros_like(x)

    def start(self) -> Tensor:
        return torch.zeros(self.d, dtype=self.dtype)

    def at(self, workers: Sequence[int]) -> Problem:
        return self

    def objective(self, x: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def evaluate(self, x: Tensor, **_: object) -> Scores:
        raise NotImplementedError


class _Host(AloneHost):
    """A host without neighbours that notes the size of what it would send, with and without a codec."""

    def __init__(self, problem: Problem, exchanged: Callable[[int, int], None]) -> None:
        super().__init__(problem)
        self._exchanged = exchanged

    def _average_of(self, t: int) -> Callable[[Sequence[Packed]], list[Tensor]]:
        average = super()._average_of(t)

        def noted(packed: Sequence[Packed]) -> list[Tensor]:
            vectors = sum(p.values.numel() * p.values.element_size() for p in packed)
            self._exchanged(sum(p.wire.shape[1] for p in packed), vectors)
            return average(packed)

        return noted
