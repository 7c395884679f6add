"""Loops of users at sites: killed at any moment they end as if nothing had happened; what does not fit is refused."""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from netfleet import ConfigError, DivergedError
from netfleet.algorithms import LDSGD
from netfleet.engines.job import LoopState, Recorder, Snapshot
from netfleet.optim import KGT, LED, join
from netfleet.optim.loop_problem import LoopRecorder
from netfleet.sites.planning.folders import MODEL_FILE
from support import site_loop
from support.receipts import check_records
from support.site_loops import LOOPS, SITE_LOOP, LoopProcesses, loop_processes
from support.site_processes import ACCIDENTS, SiteProcesses, arm, plan_sites
from support.site_settings import QUADRATICS

CHAOS: dict[str, Any] = {**SITE_LOOP, "rounds": 30}
TWO: dict[str, Any] = {**SITE_LOOP, "topology": {"kind": "path", "weights": "metropolis"}}
KILLS = 10


def trained(folder: Path, table: dict[str, Any], led: int) -> LoopProcesses:
    with loop_processes(folder, table, 3) as sites:
        for name in sites.names:
            sites.start_loop(name, led=led)
        assert set(sites.wait().values()) == {0}, "\n".join(map(sites.tail, sites.names))
        return sites


def kill_at_random(sites: LoopProcesses, dice: random.Random, led: int) -> int:
    """Kill the loops of sites, also while they write, until all are done; how often."""
    targets = sorted(dice.randint(0, CHAOS["rounds"] - 2) for _ in range(KILLS))
    killed = 0
    for name in sites.names:
        sites.start_loop(name, led=led)
    while any(process.exitcode != 0 for process in sites.running.values()):
        for name, process in list(sites.running.items()):
            assert process.exitcode in (None, 0, -9), sites.tail(name)
            if process.exitcode == -9:
                sites.start_loop(name, led=led)
        victim = dice.choice(sites.names)
        if targets and sites.round(victim) >= targets[0] and sites.running[victim].exitcode is None:
            targets.pop(0)
            killed += 1
            time.sleep(dice.uniform(0, 0.05))
            sites.kill(victim)
            accident = functools.partial(arm, dice.choice(ACCIDENTS), dice.randint(1, 6))
            sites.start_loop(victim, led=led, before=accident if dice.random() < 0.3 else None)
        time.sleep(0.01)
    assert not targets
    return killed


@pytest.mark.slow
@pytest.mark.parametrize("led", [0, 1], ids=["K-GT with AdamW", "LED, which needs the last round's rate"])
def test_a_loop_killed_at_random_moments_ends_as_if_nothing_had_happened(tmp_path: Path, led: int) -> None:
    table = CHAOS | ({"algorithms": [{"kind": "led", "K": 3}]} if led else {})
    undisturbed = trained(tmp_path / "undisturbed", table, led)
    with loop_processes(tmp_path / "chaos", table, 3) as chaos:
        assert kill_at_random(chaos, random.Random(22), led) == KILLS
        for name in undisturbed.names:
            assert chaos.history(name) == undisturbed.history(name)
            for kind in (SiteProcesses.model, SiteProcesses.state):
                found, expected = kind(chaos, name), kind(undisturbed, name)
                assert found.keys() == expected.keys()
                assert all(torch.equal(found[key], expected[key]) for key in found)
        check_records(chaos.folders())
    model = site_loop.make_model(seed=1, hidden=4, frozen=1)
    model.load_state_dict(undisturbed.model("s0"))


@pytest.mark.parametrize(
    ("settings", "what"),
    [({"seed": 1}, "initial values"), ({"hidden": 5}, "parameters"), ({"frozen": 2}, "frozen parameters")],
)
def test_two_loops_that_do_not_fit_both_say_so(tmp_path: Path, settings: dict[str, Any], what: str) -> None:
    with loop_processes(tmp_path, TWO, 2) as sites:
        sites.start_loop("s0")
        sites.start_loop("s1", **settings)
        assert sites.wait() == {"s0": 2, "s1": 2}
        for name, other in (("s0", "s1"), ("s1", "s0")):
            assert f"netfleet: error: {what} of {other} and of this site differ" in sites.tail(name)
            assert not list((sites.folder / name / "run").glob("checkpoint*"))


class Answering:
    """A loop that has nothing to keep."""

    def ask(self, question: object) -> LoopState:
        return LoopState({})


class Remembering(Recorder):
    """Remembers the rounds that it was given."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def record(self, snapshot: Snapshot, host: object) -> None:
        self.rounds.append(snapshot.t)


@pytest.mark.parametrize("what", ["parameters", "buffers"])
def test_what_a_loop_has_made_not_finite_is_not_saved(what: str) -> None:
    fine, spoilt = torch.zeros(1, 3), torch.tensor([[0.0, float("inf"), 0.0]])
    then, host = Remembering(), cast(Any, None)
    recorder = LoopRecorder(cast(Any, Answering()), then)
    recorder.record(Snapshot(4, LDSGD.State(fine), fine), host)
    with pytest.raises(DivergedError, match="not finite after round 5; nothing of it was saved or sent"):
        recorder.record(
            Snapshot(5, LDSGD.State(spoilt if what == "parameters" else fine), spoilt if what == "buffers" else fine),
            host,
        )
    assert then.rounds == [4]


def site(folder: Path, table: dict[str, Any] = SITE_LOOP) -> Path:
    plan_sites(folder, table, 3)
    return folder / "plan" / "s0"


@pytest.mark.slow
def test_a_script_that_is_refused_ends_with_a_sentence_and_exit_code_2(tmp_path: Path) -> None:
    folder = site(tmp_path)
    command = [sys.executable, str(Path(site_loop.__file__)), str(folder), "K=7"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ})
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "netfleet: error: the plan of s0 trains with" in ended.stderr.splitlines()[-1]


def test_a_process_is_one_site(tmp_path: Path) -> None:
    folder = site(tmp_path)
    with join(folder) as first:
        assert (first.name, first.worker, first.workers, first.rounds) == ("s0", 0, 3, SITE_LOOP["rounds"])
        with pytest.raises(ConfigError, match="has joined as s0 already"):
            join(tmp_path / "plan" / "s1")
    with join(tmp_path / "plan" / "s1"):
        pass


def test_folders_that_are_not_for_loops_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"it has no site\.toml"):
        join(tmp_path)
    plan_sites(tmp_path, QUADRATICS, 4)
    with pytest.raises(ConfigError, match="own-loop"):
        join(tmp_path / "plan" / "s0")


def test_another_method_than_the_plans_is_refused_but_another_rate_is_not(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    with join(site(tmp_path)):
        KGT(model.parameters(), lr=0.7, K=3, local=torch.optim.AdamW)
        for make in (
            lambda: KGT(model.parameters(), K=4, local=torch.optim.AdamW),
            lambda: KGT(model.parameters(), K=3),
            lambda: LED(model.parameters(), K=3),
        ):
            with pytest.raises(ConfigError, match="the plan of s0 trains with"):
                make()


def test_a_site_has_no_average_over_all(tmp_path: Path) -> None:
    with join(site(tmp_path)):
        optimizer = KGT(nn.Linear(2, 1).parameters(), K=3, local=torch.optim.AdamW)
        with pytest.raises(ConfigError, match="neighbours"), optimizer.averaged():
            pass


def test_sites_end_their_loops_and_write_models_by_name(tmp_path: Path) -> None:
    with loop_processes(tmp_path, {**SITE_LOOP, "rounds": 4}, 3) as sites:
        for name in sites.names:
            sites.start_loop(name)
        assert set(sites.wait().values()) == {0}, "\n".join(map(sites.tail, sites.names))
        for name in sites.names:
            site_loop.make_model(seed=3, hidden=4, frozen=5).load_state_dict(sites.model(name))
            assert [record["round"] for record in sites.history(name)] == [0, 2, 4]
            assert "loss" in sites.history(name)[-1]


def test_a_loop_leaves_when_it_is_asked_to(tmp_path: Path) -> None:
    with loop_processes(tmp_path, {**SITE_LOOP, "rounds": 400}, 3) as sites:
        for name in sites.names:
            sites.start_loop(name)
        sites.reach(2, *sites.names)
        (sites.folder / "s0" / "leave").touch()
        assert sites.wait("s0") == {"s0": 0}
        assert (sites.folder / "s0" / MODEL_FILE).exists()
        assert [event["event"] for event in sites.events("s0")][-2:] == ["leaving", "left"]
        t = sites.round("s1")
        sites.reach(t + 2, "s1", "s2")
        assert json.loads((sites.folder / "s1" / "links.json").read_text())["lost"].keys() == {"0"}


def test_plans_for_loops_refuse_what_a_loop_cannot_do(tmp_path: Path) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"algorithms": [{"kind": "dfedsam"}]}, "two gradients on one mini-batch"),
        ({"algorithms": [{"kind": "fedavg"}]}, "needs a server"),
        ({"problem": {"kind": "own-loop", "weights": [1, 2, 3]}}, "weighs its loss itself"),
        ({"evaluation": {"metrics": ["auroc"]}}, "measures its model itself"),
    ]
    for change, words in bad:
        with pytest.raises(ConfigError, match=words):
            plan_sites(tmp_path, {**LOOPS, **change}, 3)
    assert not (tmp_path / "plan").exists()
