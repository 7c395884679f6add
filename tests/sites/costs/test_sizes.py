"""Computed sizes against the files and messages of sites."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from netfleet.algorithms import ALGORITHMS
from netfleet.algorithms.build import make_algorithm
from netfleet.sites.costs.rounds import FULL, QUICK, ModelSize, rounds_of
from netfleet.sites.costs.sizes import sizes_of
from support.site_memory import run_in_memory

#: A problem with as many parameters, whose checkpoints consist of little else.
LARGE: dict[str, Any] = {
    "rounds": 2,
    "topology": {"kind": "ring"},
    "problem": {
        "kind": "classification",
        "data": "digits",
        "model": {"kind": "mlp", "hidden": [1334]},
        "partition": "iid",
        "batch": 4,
    },
    "evaluation": {"every": 2},
}


@pytest.mark.parametrize(
    "method",
    [
        {"kind": "net-fleet", "K": 1},
        {"kind": "ld-sgd", "K": 1},
        {"kind": "k-gt", "K": 1},
        {"kind": "net-fleet", "K": 1, "compress": {"kind": "top-k", "share": 0.1}},
    ],
    ids=lambda method: "-".join(map(str, method.values())),
)
def test_a_checkpoint_is_as_large_as_was_computed(tmp_path: Path, method: dict[str, Any]) -> None:
    run_in_memory(tmp_path, {**LARGE, "algorithms": [{**method, "eta": 0.01}]}, 3)
    (path,) = (tmp_path / "plan" / "s0" / "run").glob("checkpoint-*.safetensors")
    model = ModelSize((torch.Size((65 * 1334 + 1335 * 10,)),))
    for limits in (FULL, QUICK):
        computed = sizes_of(rounds_of(make_algorithm(method), model, 2, limits=limits), neighbours=2, rounds=2, keep=1)
        assert computed.checkpoint == pytest.approx(path.stat().st_size, rel=0.01)
        assert computed.checkpoint > 0.99 * path.stat().st_size  # it must not be too small
        assert computed.disk > 2 * computed.checkpoint
        sent = json.loads((tmp_path / "plan" / "s0" / "run" / "history.jsonl").read_text().splitlines()[-1])["bytes"]
        assert computed.message * 2 * 2 == pytest.approx(sent, rel=0.01)  # two rounds, two neighbours


def test_the_folder_grows_to_what_was_computed(tmp_path: Path) -> None:
    """All of its files: those of checkpoints that are kept, the models, the record, and what is always small."""
    table = {"rounds": 40, "topology": {"kind": "ring"}, "problem": {"kind": "quadratics", "d": 50}}
    table |= {"algorithms": [{"kind": "net-fleet", "K": 1, "eta": 0.01}], "evaluation": {"every": 20}}
    run_in_memory(tmp_path, table, 3)
    files = {path.stat().st_ino: path.stat().st_size for path in (tmp_path / "plan" / "s0").rglob("*.*")}
    made = rounds_of(make_algorithm({"kind": "net-fleet", "K": 1}), ModelSize((torch.Size((50,)),)), 40)
    computed = sizes_of(made, neighbours=2, rounds=40, keep=8)
    assert 0.8 * computed.disk < sum(files.values()) < 1.05 * computed.disk


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if not ALGORITHMS[name].server])
def test_every_method_has_work_and_a_size(name: str) -> None:
    algorithm = make_algorithm({"kind": name})
    made = rounds_of(algorithm, ModelSize((torch.Size((2,)),)), 10, limits=QUICK)
    assert sum(sum(work) for each in made.cycle for work in each.work) >= len(made.cycle)
    sizes = sizes_of(made, neighbours=2, rounds=10, keep=1)
    assert sizes.message >= 8
    assert sizes.disk > sizes.checkpoint >= 8 * len(algorithm.State._fields)


def test_what_is_around_a_method_counts() -> None:
    def vectors(table: dict[str, Any]) -> float:
        return rounds_of(make_algorithm(table), ModelSize((torch.Size((100,)),)), 2).held.state / 400

    assert (
        vectors({"kind": "net-fleet", "compress": {"kind": "top-k", "share": 0.1}})
        > vectors({"kind": "net-fleet"})
        == 3
    )
    assert vectors({"kind": "k-gt", "outer": {"kind": "nesterov"}}) > 3


def test_buffers_are_saved_whether_they_are_sent_or_not() -> None:
    method, shapes = make_algorithm({"kind": "dsgd"}), (torch.Size((100,)),)
    plain, mixed, kept = (
        sizes_of(rounds_of(method, size, 2), neighbours=2, rounds=2, keep=1)
        for size in (ModelSize(shapes), ModelSize(shapes, 10), ModelSize(shapes, 10, mixed=False))
    )
    assert (mixed.message - plain.message, kept.message - plain.message) == (40, 0)
    assert (mixed.checkpoint - plain.checkpoint, kept.checkpoint - plain.checkpoint) == (80, 40)
