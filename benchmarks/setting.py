"""The job that all parts measure: the paper's setting, m = 50, K = 10, batch 32, on images of MNIST's shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from netfleet import randomness
from netfleet.algorithms import ALGORITHMS
from netfleet.compute.threads import one_intra_op_thread
from netfleet.data import Dataset
from netfleet.engines.host import Host
from netfleet.engines.job import Job, Snapshot
from netfleet.engines.loop import train
from netfleet.engines.simulator import Simulator
from netfleet.problems import ModuleProblem, Problem
from netfleet.problems.models import MODELS
from netfleet.topology.topology import Topology, make_topology

M, K, BATCH, ETA = 50, 10, 32, 0.01


def images(samples: int = 60_000, shape: tuple[int, ...] = (1, 28, 28), tests: int = 10_000) -> Dataset:
    """Random images and labels: the time of a gradient does not depend on what is in them."""
    generator = randomness.torch_generator("benchmark", samples)
    x = torch.rand(samples, *shape, generator=generator)
    y = torch.randint(0, 10, (samples,), generator=generator)
    return Dataset("random", x, y, x[:tests], y[:tests], classes=10)


def problem(model: str | nn.Module, data: Dataset | None = None, m: int = M, **options: object) -> ModuleProblem:
    """A model on the data, dealt out evenly."""
    data = data or images()
    if isinstance(model, str):
        model = MODELS.build(model, inputs=tuple(data.train_x.shape[1:]), classes=10)
    parts = np.array_split(np.arange(len(data.train_y)), m)
    return ModuleProblem(model, data, parts, **{"batch": BATCH, **options})  # type: ignore[arg-type]


def network(m: int = M) -> Topology:
    """The paper's Erdős–Rényi graph."""
    return make_topology("erdos-renyi", workers=m)


def rounds(f: Problem, topology: Topology, algorithm: str = "net-fleet", steps: int = K) -> Callable[[], None]:
    """A function that goes one round on in the simulator, as `netfleet run` would, without evaluation."""
    spec = {"kind": algorithm, "eta": ETA} | ({"K": steps} if algorithm in ("net-fleet", "ld-sgd") else {})
    return rounds_on(Simulator(f, topology), Job(f, topology, ALGORITHMS.build(spec), 1))


def rounds_on(host: Host, job: Job) -> Callable[[], None]:
    """A function that goes one round on."""
    now: Snapshot | None = None

    def go() -> None:
        nonlocal now
        before = now
        with one_intra_op_thread():
            if before is None:
                now = train(host, job)
            else:
                now = train(host, replace(job, rounds=before.t + 1, start=lambda *_: before))

    return go
