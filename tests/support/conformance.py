"""What every method must satisfy, registered or a user's own."""

from __future__ import annotations

from typing import Any

import numpy as np

from netfleet import Algorithm, Topology, make_topology
from netfleet.engines import Job, make_engine
from support.problems import Memory, matrix_mix, rollout


def run(engine: str, method: Algorithm, problem: Any, topology: Topology, rounds: int = 5, threads: int = 1) -> Memory:
    memory = Memory()
    make_engine(engine).run(Job(problem, topology, method, rounds, memory, None, threads))
    return memory


def assert_close(left: Any, right: Any, tolerance: float) -> None:
    for name, a, b in zip(left._fields, left, right, strict=True):
        assert a.shape == b.shape, name
        if a.numel():
            assert (a - b).abs().max() <= tolerance * (1 + b.abs().max()), name


def check_lone_runs(method: Algorithm, noisy: Any) -> None:
    """Without mixing, a stacked run is m lone runs."""
    stacked = rollout(method, noisy, matrix_mix(np.eye(6)), 5)[-1]
    for i in range(6):
        alone = rollout(method, noisy.at([i]), matrix_mix(np.eye(1)), 5)[-1]
        assert_close(type(stacked)(*(part[i : i + 1] for part in stacked)), alone, 1e-13)


def check_engines_agree(method: Algorithm, noisy: Any, kind: str) -> None:
    """The simulator and one thread per worker compute the same."""
    topology = make_topology(kind, workers=6, seed=3)
    ours, theirs = run("simulator", method, noisy, topology), run("threads", method, noisy, topology)
    assert [s.t for s in ours.snapshots] == [s.t for s in theirs.snapshots] == list(range(6))
    for a, b in zip(ours.snapshots, theirs.snapshots, strict=True):
        assert_close(a.state, b.state, 1e-12)
        assert (a.bytes, a.samples) == (b.bytes, b.samples)
