"""What a round consists of: as much as a run of the method computes and sends."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import netfleet as nf
from netfleet.algorithms import ALGORITHMS
from netfleet.algorithms.build import make_algorithm
from netfleet.runs.config import experiment
from netfleet.runs.run import run_experiment
from netfleet.sites.costs.rounds import FULL, QUICK, Held, ModelSize, Work, rounds_of

ROUNDS, M, D = 7, 3, 6
METHODS = [name for name in ALGORITHMS if not ALGORITHMS[name].server]  # type: ignore[attr-defined]


def run(algorithm: dict[str, Any], **more: Any) -> nf.History:
    table = {
        "rounds": ROUNDS,
        "topology": {"kind": "ring", "workers": M},
        "problem": {"kind": "quadratics", "d": D},
        "algorithms": [algorithm],
        "evaluation": {"every": ROUNDS, "gradient": False},
        "engine": {"dtype": "float64"},
    }
    (history,) = run_experiment(experiment(table | more))
    return history


def size(parameters: int = D) -> ModelSize:
    return ModelSize((torch.Size((parameters,)),), dtype=torch.float64)


CASES: list[dict[str, Any]] = [{"kind": name, "eta": 1e-3} for name in METHODS] + [
    {"kind": "net-fleet", "K": 3, "eta": 1e-3, "compress": {"kind": "top-k", "share": 0.5}},
    {"kind": "k-gt", "K": 3, "eta": 1e-3, "local": {"kind": "adamw"}},
]


@pytest.mark.parametrize("table", CASES, ids=lambda table: "-".join(k for k in table if k != "eta") + table["kind"])
def test_gradients_and_bytes_are_those_of_a_run(table: dict[str, Any]) -> None:
    history = run(table)
    found = rounds_of(make_algorithm(table), size(), ROUNDS)
    each = [found.at(t) for t in range(-1, ROUNDS)]
    assert 2 * M * sum(sum(made.bytes) for made in each) == history.last["bytes"]
    assert M * sum(work.steps for made in each for work in made.work) == history.last["samples"]


def test_in_a_time_box_there_are_as_many_steps_as_fit() -> None:
    box = {"time_box": {"seconds": 1.0, "step_seconds": [0.1, 0.5, 2.0]}}
    method = {"kind": "net-fleet", "K": 8, "eta": 1e-3}
    counts = [8, 2, 1]
    found = [rounds_of(make_algorithm(method), size(), ROUNDS, count) for count in counts]
    assert [sum(work.steps for work in each.at(0).work) for each in found] == counts
    steps = sum(work.steps for each in found for t in range(-1, ROUNDS) for work in each.at(t).work)
    assert steps == run(method, **box).last["samples"]


def test_later_rounds_are_like_the_first_and_a_large_model_is_in_proportion() -> None:
    method = make_algorithm({"kind": "net-fleet", "K": 4, "eta": 0.1})
    found = rounds_of(method, size(), 10**6)
    assert found.at(999_999) == found.at(0)
    assert found.at(0).work == (Work(), Work(4))
    row = 8 * 3 * FULL.parameters
    large = rounds_of(method, size(3 * FULL.parameters), 2)
    assert large.at(0).bytes == (2 * row,)
    assert large.held == Held(3 * row, row, exchange=2 * row, ledger=row)


@pytest.mark.parametrize("table", CASES, ids=lambda table: "-".join(k for k in table if k != "eta") + table["kind"])
def test_a_quick_trial_finds_the_same(table: dict[str, Any]) -> None:
    """In proportion, so but for a codec's rounding; and of many local steps it runs few rounds."""
    method, large = make_algorithm(table), size(10 * QUICK.parameters)
    full, quick = (rounds_of(method, large, 4, limits=limits) for limits in (FULL, QUICK))
    assert [each.work for each in quick.cycle] == [each.work for each in full.cycle]
    assert list(quick.held) == pytest.approx(list(full.held), rel=1e-3)
    for one, other in zip(quick.cycle, full.cycle, strict=True):
        assert one.bytes == pytest.approx(other.bytes, rel=0.01)


def test_a_quick_trial_ends_after_some_gradients() -> None:
    method = make_algorithm({"kind": "net-fleet", "K": 30, "eta": 0.1})
    assert len(rounds_of(method, size(), 100, limits=QUICK).cycle) == 4
