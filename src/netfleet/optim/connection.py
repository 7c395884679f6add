"""How a training loop reaches the other workers: ranks of a process group, or sites of a plan."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from netfleet.algorithms import Algorithm
from netfleet.engines.job import Snapshot, Start
from netfleet.optim.loop_problem import LoopProblem


class Connection(Protocol):
    """One worker's way to the others. All workers make every call at the same point of their loops."""

    @property
    def worker(self) -> int:
        """This worker's number."""

    @property
    def workers(self) -> int:
        """How many there are."""

    @property
    def rounds(self) -> int | None:
        """How many rounds there are; None: until the loops end."""

    def adopt(self, method: Algorithm) -> Algorithm:
        """Check that the others can train with this method; returns the method to train with."""

    def compare(self, t: int, facts: Mapping[str, str]) -> None:
        """Raise if another worker starts in another round or has other facts: what they describe, and its value."""

    def place(self) -> Mapping[str, str]:
        """What else a state of this worker belongs to: its rank, how many there are, their graph."""

    def common_start(self, values: Tensor) -> Tensor:
        """The values that all workers begin with."""

    def average(self, t: int, values: Tensor) -> Tensor:
        """The average of a vector `[n]` over all workers, which are in round t."""

    def train(self, problem: LoopProblem, method: Algorithm, start: Start | None, first: int) -> Snapshot:
        """Train until the loop ends, from `start` or from round `first`; called in the training's thread."""
