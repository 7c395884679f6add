"""Which methods a training loop from outside can run: it gives one gradient for each mini-batch, and each once."""

import torch
from torch import Tensor

from netfleet.algorithms.base import Algorithm
from netfleet.engines.job import Job
from netfleet.engines.loop import train
from netfleet.engines.simulator import Simulator
from netfleet.errors import ConfigError
from netfleet.gradients.paths import Sample
from netfleet.problems.synthetic import Quadratics
from netfleet.runs.build import network_for
from netfleet.topology.topology import make_topology

#: Rounds of the trial; methods that look at all data do so in the first one.
ROUNDS = 3


def check_own_loop(method: Algorithm) -> None:
    """Refuse a method that passes over all of a worker's data, or takes two gradients on one mini-batch."""
    problem = _Trial(2, d=4, dtype=torch.float64, method=method)
    topology = make_topology("complete", workers=2)
    network = network_for(method, topology, 0)
    train(Simulator(problem, network, threads=1), Job(problem, network, method, ROUNDS))


class _Trial(Quadratics):
    """A small problem that refuses what a loop cannot do."""

    def __init__(self, workers: int, d: int, dtype: torch.dtype, method: Algorithm) -> None:
        super().__init__(workers, d=d, dtype=dtype)
        self._title, self._used = method.title, set[tuple[int, int]]()

    def grad(self, x: Tensor, sample: Sample) -> Tensor:
        if (sample.t, sample.k) in self._used:
            raise ConfigError(
                f"{self._title} takes two gradients on one mini-batch, and a loop of your own gives one; use another "
                f"method, such as net-fleet"
            )
        self._used.add((sample.t, sample.k))
        return torch.zeros_like(x)

    def full_grad(self, x: Tensor) -> Tensor:
        raise ConfigError(
            f"{self._title} passes over all of a worker's data, which a loop of your own does not; use another method, "
            f"such as net-fleet"
        )
