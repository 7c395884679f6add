"""The job that the parts measure: the paper's setting, m = 50, K = 10, batch 32, on images of MNIST's shape."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from netfleet import randomness
from netfleet.algorithms import ALGORITHMS
from netfleet.algorithms.base import Algorithm
from netfleet.compute.threads import one_intra_op_thread
from netfleet.data import Dataset
from netfleet.engines.host import Host
from netfleet.engines.job import Job, Snapshot
from netfleet.engines.loop import train
from netfleet.engines.simulator import Simulator
from netfleet.problems import ModuleProblem, Problem
from netfleet.problems.models import MODELS
from netfleet.topology.topology import Topology, make_topology

T = TypeVar("T")
ETA = 0.01


@dataclass(frozen=True)
class Setting:
    """What is measured, and how thoroughly: 0 is a result, 1 a quick look, 2 only shows that the part works."""

    haste: int = 0
    m: int = 50
    K: int = 10
    batch: int = 32
    samples: int = 60_000

    def pick(self, full: T, quick: T, tiny: T) -> T:
        """A number of repeats, a list of sizes, … for this thoroughness."""
        return (full, quick, tiny)[self.haste]

    def images(self, samples: int = 0, tests: int = 10_000, shape: tuple[int, ...] = (1, 28, 28)) -> Dataset:
        """Random images and labels: the time of a gradient does not depend on their content."""
        samples = min(samples or self.samples, self.samples)
        generator = randomness.torch_generator("benchmark", samples)
        x = torch.rand(samples, *shape, generator=generator)
        y = torch.randint(0, 10, (samples,), generator=generator)
        return Dataset("random", x, y, x[:tests], y[:tests], classes=10)

    def problem(
        self, model: str | nn.Module | dict[str, object], data: Dataset | None = None, m: int = 0, **more: object
    ) -> ModuleProblem:
        """A model on the data, split evenly."""
        data = data or self.images()
        shape = data.inputs
        parts = np.array_split(np.arange(len(data.train_y)), m or self.m)
        options = {"batch": self.batch, **more}
        return ModuleProblem(network(model, shape), data, parts, **options)  # type: ignore[arg-type]

    def topology(self, m: int = 0) -> Topology:
        return make_topology("erdos-renyi", workers=m or self.m)


PAPER = Setting()
QUICK = Setting(haste=1)
TINY = Setting(haste=2, m=4, K=2, batch=4, samples=400)


def network(model: str | nn.Module | dict[str, object], shape: tuple[int, ...] = (1, 28, 28)) -> nn.Module:
    """A model by its name or table, for images of ten classes."""
    return model if isinstance(model, nn.Module) else MODELS.build(model, inputs=shape, outputs=10)


def rounds(f: Problem, topology: Topology, steps: int) -> Callable[[], None]:
    """A function that runs the next round of NET-FLEET in the simulator, as `netfleet run` would, unevaluated."""
    return rounds_on(Simulator(f, topology), Job(f, topology, method(steps), 1))


def method(steps: int) -> Algorithm:
    return ALGORITHMS.build({"kind": "net-fleet", "eta": ETA, "K": steps})


def rounds_on(host: Host, job: Job) -> Callable[[], None]:
    now: Snapshot | None = None

    def go() -> None:
        nonlocal now
        with one_intra_op_thread():
            now = train(host, replace(job, rounds=now.t + 1, start=lambda *_, last=now: last) if now else job)

    return go
