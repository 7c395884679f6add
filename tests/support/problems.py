"""Shared by several tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from netfleet import Algorithm, Dataset, ModuleProblem, Problem, load_dataset, make_partition
from netfleet.algorithms import ALGORITHMS
from netfleet.engines.host import Host
from netfleet.engines.job import Recorder, Snapshot, gathered
from netfleet.problems.models import MODELS


class Memory(Recorder):
    """A recorder that keeps the snapshots of all workers, after some rounds (None: every round)."""

    def __init__(self, rounds: Collection[int] | None = None) -> None:
        self.rounds, self.snapshots = rounds, list[Snapshot]()

    def due(self, t: int) -> bool:
        return self.rounds is None or t in self.rounds

    def record(self, snapshot: Snapshot, host: Host) -> None:
        whole = gathered(snapshot, host)
        if host.collective.keeps_record:
            self.host = host
            self.snapshots.append(whole)


def rollout(algorithm: Algorithm, f: Problem, mix: Callable[..., Any], rounds: int) -> list[Any]:
    """The states before and after each round, with nothing but f and mix."""
    state = algorithm.init(f, mix, f.start().repeat(len(f.workers), 1))  # type: ignore[arg-type]
    states = [state]
    for t in range(rounds):
        state = algorithm.round(f, mix, t, state)  # type: ignore[arg-type]
        states.append(state)
    return states


def matrix_mix(W: np.ndarray | torch.Tensor) -> Callable[..., Any]:
    """`mix` by plain matrix product."""
    matrix = W if isinstance(W, torch.Tensor) else torch.as_tensor(np.asarray(W))

    def mix(*vectors: torch.Tensor) -> Any:
        mixed = tuple(matrix.to(v.dtype) @ v for v in vectors)
        return mixed[0] if len(mixed) == 1 else mixed

    return mix


def digits_problem(workers: int, model: Any = "mlp", *, partition: Any = "shards", **options: Any) -> ModuleProblem:
    """A small real problem: digits, two labels per worker."""
    data = load_dataset("digits")
    parts = make_partition(partition, data, workers, seed=1)
    if not isinstance(model, torch.nn.Module):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = MODELS.build(model, inputs=tuple(data.train_x.shape[1:]), outputs=data.classes)
    return ModuleProblem(model, data, parts, **{"batch": 8, **options})


def some_of_a9a() -> Dataset:
    """The first of the 32,561 rows."""
    data = load_dataset("a9a")
    return replace(data, train_x=data.train_x[:4000], train_y=data.train_y[:4000])


def methods() -> list[Any]:
    """Every registered algorithm with small hyper-parameters; K = 3 where there are local steps."""
    made = []
    for name in sorted(ALGORITHMS):
        params = {"K": 3} if hasattr(ALGORITHMS[name], "K") else {}
        made.append(pytest.param(ALGORITHMS.build({"kind": name, "eta": 0.05, **params}), id=name))
    return made


def need_data(*parts: str) -> None:
    """Skip, saying which data is missing."""
    root = os.environ.get("NETFLEET_DATA", "")
    if not root or not os.path.exists(os.path.join(root, *parts)):
        pytest.skip(f"needs {'/'.join(parts)} in the folder that NETFLEET_DATA names")


def batch_norm_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10)
    )


def dropout_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10))
