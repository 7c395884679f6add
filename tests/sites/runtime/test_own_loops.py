"""Sites that train with loops from outside: what is saved with their state, and what neighbours compare."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from netfleet import ConfigError
from netfleet.algorithms.build import make_algorithm
from netfleet.engines.host import Host
from netfleet.engines.job import Job, Snapshot
from netfleet.engines.loop import train
from netfleet.engines.simulator import Simulator
from netfleet.errors import CheckpointError, DivergedError, FrameError
from netfleet.runs import checkpoint
from netfleet.runs.build import build_topology
from netfleet.runs.config import experiment
from netfleet.runs.history import History
from netfleet.sites.runtime import join_leave
from netfleet.sites.runtime.facts import FACTS_FILE, INITIAL, difference, facts_message, parse_facts, shortened
from support.site_loops import FACTS, LOOPS, CountingRecorder, own_loop, train_loops
from support.site_processes import plan_sites
from support.site_settings import quadratics

TWO: dict[str, Any] = {**LOOPS, "topology": {"kind": "path", "weights": "metropolis"}}


def simulated() -> Snapshot:
    problem, method = quadratics(3), make_algorithm(LOOPS["algorithms"][0])
    topology = build_topology(experiment({**LOOPS, "topology": {**LOOPS["topology"], "workers": 3}}).topology)
    return train(Simulator(problem, topology, 1), Job(problem, topology, method, LOOPS["rounds"]))


def saved(folder: Path, i: int) -> Snapshot:
    run = folder / "plan" / f"s{i}" / "run"
    hash_ = History.load(run).hash
    return checkpoint.load(run, hash_, make_algorithm("net-fleet").State, torch.device("cpu"), [i])


def test_loops_at_sites_end_where_the_simulator_does(tmp_path: Path) -> None:
    plan = plan_sites(tmp_path, LOOPS, 3)
    ended, expected = train_loops(tmp_path, plan, lambda i: own_loop(i, FACTS)), simulated().state.x
    for i in range(3):
        history = ended[i]
        assert isinstance(history, History), history
        assert torch.allclose(load_file(tmp_path / "plan" / f"s{i}" / "model.safetensors")["w"], expected[i])
        assert [(record["round"], record["loss"]) for record in history.records] == [(t, 0.5) for t in (0, 2, 4, 6)]
        loop = saved(tmp_path, i).loop
        assert loop is not None
        assert loop.text == str(LOOPS["rounds"] + 1)
        assert torch.equal(loop.tensors["x"], history.final.state.x[0])  # type: ignore[union-attr]


def test_a_resumed_loop_has_its_state_again_and_compares_no_initial_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join_leave, "INFORM", 0.1)
    plan = plan_sites(tmp_path, LOOPS, 3)
    train_loops(tmp_path, plan, lambda i: own_loop(i, FACTS))
    again = train_loops(
        tmp_path, plan, lambda i: own_loop(i, {**FACTS, INITIAL: "something else"}), only=[1], linger=0.1
    )
    assert isinstance(again[1], History), again[1]
    loop = saved(tmp_path, 1).loop
    assert loop is not None
    assert loop.text == str(LOOPS["rounds"] + 1)
    other = train_loops(
        tmp_path, plan, lambda i: own_loop(i, {**FACTS, "frozen parameters": "new"}), only=[1], linger=0.1
    )
    assert isinstance(other[1], ConfigError)
    assert "the checkpoint in" in str(other[1])
    assert "frozen parameters" in str(other[1])


class Spoiling(CountingRecorder):
    """A loop that writes a value that is not finite into its model after round 3."""

    def record(self, snapshot: Snapshot, host: Host) -> None:
        super().record(snapshot, host)
        if snapshot.t == 3:
            snapshot.state.x[0, 0] = float("nan")


def test_nothing_that_is_not_finite_is_sent_and_the_saved_state_stays(tmp_path: Path) -> None:
    plan = plan_sites(tmp_path, TWO, 2)
    ended = train_loops(tmp_path, plan, lambda i: replace(own_loop(i, FACTS), around=Spoiling))
    for i in range(2):
        assert isinstance(ended[i], DivergedError), ended[i]
        assert "what this site was about to send is not finite in round 3" in str(ended[i])
        last = saved(tmp_path, i)
        assert last.t == 3
        assert all(bool(torch.isfinite(values).all()) for values in last.state)


@pytest.mark.parametrize("what", list(FACTS))
def test_a_difference_is_named_at_both_ends_and_leaves_nothing(tmp_path: Path, what: str) -> None:
    plan = plan_sites(tmp_path, TWO, 2)
    ended = train_loops(tmp_path, plan, lambda i: own_loop(i, FACTS if i else {**FACTS, what: "other"}))
    for i in range(2):
        assert isinstance(ended[i], ConfigError), ended[i]
        assert str(ended[i]).startswith(f"{what} of s{1 - i} and of this site differ")
        run = tmp_path / "plan" / f"s{i}" / "run"
        assert {path.name for path in run.iterdir()} == {"config.json", "history.jsonl"}
        assert not (run / "history.jsonl").read_bytes()
    good = train_loops(tmp_path, plan, lambda i: own_loop(i, FACTS))
    assert all(isinstance(each, History) for each in good.values()), good


def test_initial_values_that_differ_say_what_to_do() -> None:
    words = difference(FACTS, {**FACTS, INITIAL: "one"}, "org-b")
    assert words is not None
    assert "torch.manual_seed" in words
    assert "one there, zero here" in words


def test_facts_are_short_and_checked() -> None:
    long = shortened({"parameters": "x" * 5000, "method": "y" * 5000})
    assert parse_facts(bytes(facts_message(long).data)) == long
    assert long["parameters"] != shortened({"parameters": "x" * 4999})["parameters"]
    with pytest.raises(ConfigError, match="at most"):
        facts_message({str(i): "z" * 90 for i in range(50)})
    for bad in (b"[1]", b'{"a": 1}', b"", b"[" * 4096, b"\xff"):
        with pytest.raises(ValueError, match=r"JSON|Expecting|facts|brackets|utf"):
            parse_facts(bad)


def test_a_lost_facts_file_is_said(tmp_path: Path) -> None:
    plan = plan_sites(tmp_path, TWO, 2)
    train_loops(tmp_path, plan, lambda i: own_loop(i, FACTS))
    path = tmp_path / "plan" / "s0" / "run" / FACTS_FILE
    assert json.loads(path.read_text()) == FACTS
    path.unlink()
    (error,) = train_loops(tmp_path, plan, lambda i: own_loop(i, FACTS), only=[0], linger=0.1).values()
    assert isinstance(error, CheckpointError)
    assert FACTS_FILE in str(error)


def test_a_site_with_a_loop_gives_no_model() -> None:
    with pytest.raises(FrameError, match="loop of its own"):
        join_leave.model_message(None)
