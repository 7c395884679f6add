"""Rounds of limited time: who takes how many local steps, and what that does to the methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import netfleet as nf
from netfleet.algorithms import ALGORITHMS
from netfleet.algorithms.build import make_algorithm
from netfleet.algorithms.proxskip import ProxSkip
from netfleet.engines.job import Job
from netfleet.engines.simulator import run_simulator
from netfleet.engines.time_box import ClockSteps, FixedSteps
from netfleet.errors import CheckpointError, ConfigError
from netfleet.problems.synthetic import Quadratics
from netfleet.runs.build import network_for
from netfleet.runs.time_box import TimeBox
from netfleet.sites.runtime.step_record import STEPS_FILE, StepRecord
from support.problems import digits_problem

M = 5
COUNTS = torch.tensor([1, 4, 2, 4, 3])
METHODS = {kind: make_algorithm(kind) for kind in sorted(ALGORITHMS)}
WITH_STEPS = [
    kind
    for kind, method in METHODS.items()
    if method.uses_step and getattr(method, "K", 1) > 1 and not isinstance(method, ProxSkip)
]
EXACT = [kind for kind in WITH_STEPS if METHODS[kind].exact_with != "none"]


def trained(kind: str, counts: torch.Tensor | None, rounds: int, problem: nf.Problem, **options: Any) -> Any:
    method = make_algorithm({"kind": kind, "K": 4, "eta": 0.05, **options})
    topology = nf.make_topology("ring", workers=M, weights="metropolis")
    steps = None if counts is None else lambda workers: FixedSteps(counts[list(workers)])
    return run_simulator(Job(problem, network_for(method, topology, 0), method, rounds, steps=steps)).state


@pytest.mark.parametrize("kind", WITH_STEPS)
def test_all_steps_are_as_none_left_out(kind: str) -> None:
    problem = Quadratics(M, d=6, dtype=torch.float64)
    states = (trained(kind, counts, 3, problem) for counts in (None, torch.full([M], 4)))
    for whole, boxed in zip(*states, strict=True):
        assert torch.equal(whole, boxed)


def test_net_fleet_with_fewer_steps_is_net_fleet_with_a_smaller_K() -> None:
    problem = digits_problem(M, model="softmax", batch=4, dtype=torch.float64)
    few, small = trained("net-fleet", torch.full([M], 2), 3, problem), trained("net-fleet", None, 3, problem, K=2)
    for one, other in zip(few, small, strict=True):
        assert torch.allclose(one, other, atol=1e-14)


def test_workers_with_their_own_numbers_of_steps_are_what_each_does_alone() -> None:
    """In round 0 nobody has heard of the others' steps."""
    problem = digits_problem(M, model="softmax", batch=4, dtype=torch.float64)
    mixed = trained("net-fleet", COUNTS, 1, problem)
    for i, count in enumerate(COUNTS.tolist()):
        alone = trained("net-fleet", None, 1, problem, K=count)
        for one, other in zip(mixed, alone, strict=True):
            assert torch.allclose(one[i], other[i], atol=1e-12)


@pytest.mark.parametrize("kind", EXACT)
def test_the_optimum_of_exact_methods_stays_where_it_is(kind: str) -> None:
    problem = Quadratics(M, d=6, dtype=torch.float64)
    x = trained(kind, COUNTS, 1500, problem).x
    assert (x - problem.optimum).norm() < 1e-6


def test_without_a_correction_the_fastest_workers_count_more() -> None:
    """LD-SGD ends at the optimum of an average in which workers count by their steps."""
    problem = Quadratics(M, d=6, dtype=torch.float64)
    even, uneven = (trained("ld-sgd", counts, 1500, problem).x.mean(dim=0) for counts in (None, COUNTS))
    assert (uneven - problem.optimum).norm() > 2 * (even - problem.optimum).norm()


# ---- the clock ----


class Memory:
    def __init__(self) -> None:
        self.steps: dict[int, int] = {}

    def read(self, t: int) -> int | None:
        return self.steps.get(t)

    def write(self, t: int, steps: int) -> None:
        self.steps[t] = steps


def taken(box: TimeBox, K: int, duration: float, record: Any, t: int = 0) -> list[bool]:
    now = 0.0
    steps, found = ClockSteps(box.seconds, box.least, K, record, lambda: now), []
    steps.begin(t)
    for k in range(1, K + 1):
        assert steps.takes(k) == steps.takes(k)
        found.append(bool(steps.takes(k)))
        now += duration if found[-1] else 0.0
    return found


@pytest.mark.parametrize(("duration", "count"), [(0.1, 8), (1.0, 5), (2.0, 2), (2.5, 2), (9.0, 2)])
def test_as_many_steps_as_fit(duration: float, count: int) -> None:
    box, record = TimeBox(seconds=5.0, least=2), Memory()
    assert taken(box, 8, duration, record) == [k < count for k in range(8)]
    assert record.steps == {0: count}


def test_a_repeated_round_takes_as_many_steps_whatever_the_clock_says(tmp_path: Path) -> None:
    box = TimeBox(seconds=5.0)
    taken(box, 8, 1.0, StepRecord(tmp_path), t=3)
    with open(tmp_path / STEPS_FILE, "a") as file:
        file.write('{"round": 4, "st')  # a crash
    again = StepRecord(tmp_path)
    assert sum(taken(box, 8, 0.1, again, t=3)) == 5
    assert sum(taken(box, 8, 0.1, again, t=4)) == 8
    assert StepRecord(tmp_path).read(4) == 8
    (tmp_path / STEPS_FILE).write_text("nonsense\n")
    with pytest.raises(CheckpointError, match="damaged"):
        StepRecord(tmp_path)


# ---- settings ----


def test_bad_boxes_are_refused() -> None:
    for table, words in (
        ({"seconds": 0.0}, "seconds above 0"),
        ({"seconds": 1.0, "least": 0}, "must be 1 or more"),
        ({"seconds": 1.0, "least": 20, "step_seconds": 1.0}, "more than the method's K = 10"),
        ({"seconds": 1.0}, "does not go by the clock"),
        ({"seconds": 1.0, "step_seconds": [1.0, 2.0]}, "2 numbers for 4 workers"),
    ):
        with pytest.raises(ConfigError, match=words):
            nf.run("net-fleet", topology="ring", workers=4, problem="quadratics", rounds=2, time_box=table)
    box = {"seconds": 1.0, "step_seconds": 1.0}
    for kind, why in (("gt-sgd", "one step"), ("proxskip", "draws"), ("d-msgd", "itself")):
        with pytest.raises(ConfigError, match=why):
            nf.run(kind, topology="ring", workers=4, problem="quadratics", rounds=2, time_box=box)


@pytest.mark.parametrize("engine", ["simulator", "threads"])
def test_engines_agree(engine: str) -> None:
    box = {"seconds": 1.0, "step_seconds": [0.1, 0.2, 0.5, 2.0]}
    table: dict[str, Any] = {"topology": "ring", "workers": 4, "problem": "quadratics", "rounds": 5, "time_box": box}
    (expected,) = nf.run("k-gt", **table)
    (found,) = nf.run("k-gt", **table, engine=engine)
    assert found.last["loss"] == pytest.approx(expected.last["loss"], rel=1e-12)
    assert found.last["samples"] == expected.last["samples"]
