"""Imperfect networks: what is lost, late or away, and which rules keep gradient tracking right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from netfleet import ConfigError, EngineConfig, make_topology, simulate
from netfleet.algorithms.build import make_algorithm, resolve_algorithm
from netfleet.engines import Job, make_engine
from netfleet.engines.delayed import DelayedMixing
from netfleet.problems.synthetic import Quadratics
from netfleet.runs import checkpoint
from netfleet.runs.build import build_setting, network_for
from netfleet.runs.config import experiment
from netfleet.runs.metrics import tracking_error
from netfleet.runs.run import run_experiment
from netfleet.topology.faults import Faults, Unreliable
from support.problems import Memory, digits_problem

TRACKING = ["net-fleet", "gt-sgd", "k-gt", "lu-gt", "periodical-gt", "momentum-tracking"]
ONE_VECTOR = ["led", "d2", "proxskip"]


def ring(weights: str = "metropolis", workers: int = 8) -> Any:
    return make_topology("ring", workers=workers, weights=weights)


def run(kind: str, faults: Faults, rounds: int, engine: str = "simulator", problem: Any = None, **params: Any) -> Any:
    problem = problem or Quadratics(8, d=4, seed=1, dtype=torch.float64)
    few = {"momentum-tracking": {"beta": 0.5}, "gt-sgd": {}, "d2": {}}.get(kind, {"K": 2})
    method = make_algorithm({"kind": kind, "eta": 0.05, **few, **params})
    memory = Memory()
    topology = ring("laplacian" if kind == "proxskip" else "metropolis", problem.m)
    network = network_for(method, topology, 3, faults)
    make_engine(engine).run(Job(problem, network, method, rounds, memory, None, 1))
    return problem, memory.snapshots


def distance(problem: Any, snapshots: list[Any]) -> float:
    return (snapshots[-1].state.x - problem.optimum).abs().max().item()


#: Methods with one step in a round, and a step size as large as those that others take in two.
ONE_STEP = {"gt-sgd": 0.1, "d2": 0.1}


def five() -> Quadratics:
    """For five workers, who mix faster than eight and so come near the optimum in fewer rounds."""
    return Quadratics(5, d=4, seed=1, dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*TRACKING, *ONE_VECTOR])
def test_dropping_a_link_at_both_ends_keeps_methods_exact(kind: str) -> None:
    ends = run(kind, Faults(loss=0.3), 300, problem=five(), eta=ONE_STEP.get(kind, 0.05))
    assert distance(*ends) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    [
        Faults(loss=0.3, rule="counters"),
        Faults(delay=1),
        Faults(delay=2),
        Faults(absent=0.2),
        Faults(absent=0.2, spell=10),
        Faults(loss=0.1, absent=0.1, delay=1),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["net-fleet", "k-gt"])
def test_tracking_methods_stay_exact(kind: str, faults: Faults) -> None:
    assert distance(*run(kind, faults, 400, problem=five())) < 1e-10


def test_what_is_very_late_costs_rounds_but_not_the_sum() -> None:
    problem, snapshots = run("net-fleet", Faults(delay=5), 400)
    assert max(tracking_error(s.state) for s in snapshots) < 1e-11
    assert distance(*run("net-fleet", Faults(delay=2), 400)) < distance(problem, snapshots) < 1


def test_where_most_is_lost_counters_overshoot_and_dropped_links_do_not() -> None:
    counters, drop = (distance(*run("net-fleet", Faults(loss=0.7, rule=r), 1000)) for r in ("counters", "drop"))  # type: ignore[arg-type]
    assert counters > 1
    assert drop < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*TRACKING, *ONE_VECTOR])
def test_methods_stay_exact_when_workers_are_away_while_the_step_size_falls(kind: str) -> None:
    falling = {"kind": "step", "start": ONE_STEP.get(kind, 0.05), "every": 50, "factor": 0.9}
    problem, snapshots = run(kind, Faults(absent=0.2, spell=10), 600, problem=five(), eta=falling)
    assert distance(problem, snapshots) < 1e-10
    assert max(tracking_error(s.state) for s in snapshots) < 1e-10


@pytest.mark.parametrize("rule", ["fold", "ignore"])
@pytest.mark.parametrize("kind", ["net-fleet", "gt-sgd", "k-gt"])
def test_the_usual_rules_lose_the_invariant_and_the_optimum(kind: str, rule: Any) -> None:
    problem, snapshots = run(kind, Faults(loss=0.1, rule=rule), 400)
    assert distance(problem, snapshots) > 1e-2
    assert tracking_error(snapshots[-1].state) > 1e-2


@pytest.mark.parametrize("kind", ["net-fleet", "gt-sgd"])
def test_old_values_taken_for_new_lose_the_optimum(kind: str) -> None:
    assert distance(*run(kind, Faults(delay=1, rule="fold"), 400)) > 1e-2


@given(seed=st.integers(0, 1000), t=st.integers(0, 50), loss=st.floats(0, 0.9), absent=st.floats(0, 0.9))
@settings(max_examples=40, deadline=None)
def test_dropped_links_leave_a_doubly_stochastic_matrix(seed: int, t: int, loss: float, absent: float) -> None:
    topology = make_topology("erdos-renyi", workers=9, seed=seed)
    W = Unreliable(topology, Faults(loss=loss, absent=absent), seed).W(t).toarray()
    assert np.abs(W - W.T).max() < 1e-15
    assert np.abs(W.sum(0) - 1).max() < 1e-13
    base = topology.W().toarray()
    off = ~np.eye(9, dtype=bool)
    assert (np.isclose(W, base) | (W == 0))[off].all()


def test_the_usual_rules_as_matrices() -> None:
    topology = make_topology("complete", workers=6)
    fold = Unreliable(topology, Faults(loss=0.5, rule="fold"), 1).W(4).toarray()
    ignore = Unreliable(topology, Faults(loss=0.5, rule="ignore"), 1).W(4).toarray()
    assert np.abs(fold.sum(1) - 1).max() < 1e-14
    assert np.abs(fold.sum(0) - 1).max() > 0.05
    assert ignore.sum(1).min() < 0.9
    off = ~np.eye(6, dtype=bool)
    assert np.array_equal(fold[off], ignore[off])  # the same messages are lost
    assert np.array_equal(np.diag(ignore), topology.W().diagonal())


def test_about_as_many_links_fail_as_were_asked_for() -> None:
    network = Unreliable(make_topology("complete", workers=20), Faults(loss=0.3, absent=0.0), 0)
    lost = np.mean([1 - network.links(t).heard.mean() for t in range(50)])
    assert abs(lost - 0.3) < 4 * np.sqrt(0.3 * 0.7 / (50 * 190))
    away = Unreliable(make_topology("ring", workers=50), Faults(absent=0.2, spell=5), 0)
    present = [away.active(t) for t in range(200)]
    assert all(np.array_equal(present[t], present[t - t % 5]) for t in range(200))
    assert abs(1 - np.mean(present) - 0.2) < 4 * np.sqrt(0.2 * 0.8 / (50 * 40))


def late_by_hand(network: Unreliable, history: list[np.ndarray], t: int) -> np.ndarray:
    """What each worker makes of round t, worker by worker and link by link."""
    links, now = network.links(t), history[t]
    out = now.copy() if network.faults.rule == "drop" else now * links.kept[:, None]
    for i, j, w, heard, delay in zip(links.i, links.j, links.w, links.heard, links.delay, strict=True):
        if heard:
            then = history[t - delay]
            out[i] += w * (then[j] - then[i] if network.faults.rule == "drop" else then[j])
    return out


@pytest.mark.parametrize("rule", ["drop", "fold", "ignore"])
def test_late_messages_link_by_link(rule: Any) -> None:
    network = Unreliable(ring(), Faults(delay=2, loss=0.2, rule=rule), 5)
    rng, carrier = np.random.default_rng(0), DelayedMixing(network)
    history = [rng.standard_normal((8, 3)) for _ in range(6)]
    delays = set()
    for t in range(6):
        out = carrier.mix(t, "0", torch.from_numpy(history[t])).numpy()
        assert np.abs(out - late_by_hand(network, history, t)).max() < 1e-14
        delays |= set(network.links(t).delay.tolist())
        if rule == "drop":
            assert np.abs(out.sum(0) - history[t].sum(0)).max() < 1e-13
    assert delays == {0, 1, 2}


def test_before_anything_can_be_late_the_carrier_is_the_matrix() -> None:
    v = torch.randn(8, 3, dtype=torch.float64)
    for rule in ("drop", "fold", "ignore"):
        network = Unreliable(ring(), Faults(loss=0.4, delay=1, rule=rule), 5)  # type: ignore[arg-type]
        W = torch.from_numpy(network.W(0).toarray())
        assert (DelayedMixing(network).mix(0, "0", v) - W @ v).abs().max() < 1e-14


def test_counters_make_up_for_every_lost_message() -> None:
    network = Unreliable(ring(), Faults(loss=0.5, rule="counters"), 2)
    rng, carrier = np.random.default_rng(0), DelayedMixing(network)
    sent, taken = np.zeros((8, 3)), np.zeros((8, 3))
    for t in range(40):
        v = rng.standard_normal((8, 3))
        sent += v
        taken += carrier.mix(t, "0", torch.from_numpy(v)).numpy() - v
        last = {(i, j): t for i, j, heard in zip(*network.links(t)[:2], network.links(t).heard, strict=True) if heard}
        for i in range(8):
            if all((i, j) in last for j in ring().neighbours(i)):  # all links of i were heard just now
                due = sum(w * (sent[j] - sent[i]) for j, w in ring().row(i).items() if j != i)
                assert np.abs(taken[i] - due).max() < 1e-12


@pytest.mark.slow
def test_counters_are_as_exact_as_dropped_links_in_float32() -> None:
    def ends(rule: Any) -> tuple[float, float]:
        problem = Quadratics(8, d=4, seed=1, dtype=torch.float32)
        problem, snapshots = run("net-fleet", Faults(loss=0.1, rule=rule), 2000, problem=problem)
        return distance(problem, snapshots), tracking_error(snapshots[-1].state).item()

    for counters, drop in zip(ends("counters"), ends("drop"), strict=True):
        assert counters < 10 * drop


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["drop", "fold", "ignore"])
@pytest.mark.parametrize("kind", ["net-fleet", "led", "dfedsam"])
def test_the_simulator_equals_one_thread_per_worker(kind: str, rule: Any) -> None:
    faults = Faults(loss=0.2, absent=0.2, spell=2, rule=rule)
    problem = Quadratics(8, d=4, sigma=0.3, seed=1, dtype=torch.float64)
    _, ours = run(kind, faults, 6, problem=problem)
    _, theirs = run(kind, faults, 6, "threads", problem=problem)
    for a, b in zip(ours, theirs, strict=True):
        assert (a.bytes, a.samples) == (b.bytes, b.samples)
        for left, right in zip(a.state, b.state, strict=True):
            assert (left - right).abs().max() < 1e-12


def test_who_is_away_keeps_what_it_has_and_costs_nothing() -> None:
    problem, snapshots = run("net-fleet", Faults(absent=0.3), 12, K=3)
    network = Unreliable(ring(), Faults(absent=0.3), 3)
    for t in range(12):
        before, after, there = snapshots[t], snapshots[t + 1], network.active(t)
        for i in range(8):
            assert torch.equal(before.state.x[i], after.state.x[i]) == (not there[i])
        assert after.samples - before.samples == 3 * there.sum()
        pairs = sum(there[i] and there[j] for i in range(8) for j in ring().neighbours(i))
        assert after.bytes - before.bytes == pairs * 2 * problem.d * 8
    assert any(not network.active(t).all() for t in range(12))


def test_lost_messages_were_sent() -> None:
    _, snapshots = run("net-fleet", Faults(loss=0.5), 4)
    assert snapshots[-1].bytes == 4 * 16 * 2 * 4 * 8


def table(**network: Any) -> Any:
    return experiment(
        {
            "rounds": 8,
            "checkpoint_every": 4,
            "topology": {"kind": "ring", "workers": 5},
            "problem": {"kind": "quadratics", "sigma": 0.3},
            "algorithms": [{"kind": "net-fleet", "K": 2, "eta": 0.05}],
            **({"network": network} if network else {}),
        }
    )


@pytest.mark.parametrize("network", [{"delay": 2}, {"loss": 0.3, "rule": "counters"}, {"absent": 0.3}], ids=str)
def test_a_resumed_run_is_bit_identical(tmp_path: Path, network: dict[str, Any]) -> None:
    settings_ = table(**network)
    whole = run_experiment(settings_, tmp_path)[0]
    run_, setting, half = settings_.runs()[0], build_setting(settings_, 0), Memory()
    method = make_algorithm(run_.config["algorithm"])
    carrier = network_for(method, setting.topology, 0, settings_.network)
    make_engine("simulator").run(Job(setting.problem, carrier, method, 4, half, None, 1))
    checkpoint.save(tmp_path / run_.folder, half.snapshots[-1], half.host, run_.hash)  # as if stopped after 4
    again = run_experiment(settings_, tmp_path, resume=True)[0]
    for a, b in zip(whole.final.state, again.final.state, strict=True):
        assert torch.equal(a, b)


def test_the_network_is_part_of_the_hash_only_where_it_fails() -> None:
    plain, failing = table().runs()[0], table(loss=0.1).runs()[0]
    assert "network" not in plain.config
    assert failing.config["network"] == {"loss": 0.1, "rule": "drop", "delay": 0, "absent": 0.0, "spell": 1}
    assert plain.hash != failing.hash


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ({"loss": 1.0}, r"network: loss is a share and must lie in \[0, 1\), got 1.0"),
        ({"absent": -0.1}, "network: absent is a share"),
        ({"delay": -1}, "network: delay must be 0 rounds or more"),
        ({"spell": 0}, "spell 1 or more"),
        ({"rule": "hope"}, "rule in .network. must be one of 'drop', 'fold', 'ignore', 'counters', got 'hope'"),
        ({"rule": "counters", "delay": 1}, 'rule = "counters" is for lost messages'),
        ({"los": 0.1}, "unknown key 'los' in .network. .did you mean 'loss'"),
    ],
)
def test_a_bad_network_is_refused(network: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        table(**network)


def test_with_counters_an_absence_is_not_made_up_for() -> None:
    network = Unreliable(ring(), Faults(absent=0.4, rule="counters"), 2)
    rng, carrier = np.random.default_rng(0), DelayedMixing(network)
    for t in range(20):
        v = torch.from_numpy(rng.standard_normal((8, 3)))
        # nothing is lost here: the exchange is that of the links between those who are there
        assert (carrier.mix(t, "0", v) - torch.from_numpy(network.W(t).toarray()) @ v).abs().max() < 1e-12


@pytest.mark.parametrize("kind", ["one-peer-hypercube", "random-matching"])
def test_dropped_links_keep_tracking_exact_on_graphs_that_vary(kind: str) -> None:
    history = simulate(
        {"kind": "net-fleet", "K": 3, "eta": 0.03},
        topology=make_topology(kind, workers=8),
        problem=Quadratics(8, d=4, dtype=torch.float64),
        engine=EngineConfig(dtype="float64"),
        rounds=400,
        network={"loss": 0.1, "absent": 0.1},
    )
    assert history.last["tracking_error"] < 1e-12


def test_what_does_not_fail_is_no_failure() -> None:
    assert table(loss=0.0).network is None
    assert table(loss=0.0).runs()[0].hash == table().runs()[0].hash
    assert simulate("fedavg", problem="quadratics", rounds=2, network=Faults()).last["round"] == 2
    one = simulate("net-fleet", topology="ring", workers=1, problem="quadratics", rounds=2, network=Faults(delay=1))
    assert one.last["round"] == 2


def test_when_all_are_away_nothing_happens() -> None:
    _, snapshots = run("net-fleet", Faults(absent=0.99), 3)
    assert torch.equal(snapshots[0].state.x, snapshots[1].state.x)
    assert snapshots[-1].bytes == 0


def test_a_bad_combination_is_found_before_anything_is_run(tmp_path: Path) -> None:
    both = table(loss=0.1)
    mixed = replace(both, algorithms=(*both.algorithms, resolve_algorithm("fedavg")))
    with pytest.raises(ConfigError, match="FedAvg has a server"):
        run_experiment(mixed, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_averaged_running_statistics_are_refused_where_they_could_become_negative() -> None:
    norm = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 10))
    with pytest.raises(ConfigError, match="averaged running statistics may become negative"):
        simulate(problem=digits_problem(4, norm), topology="ring", rounds=2, network={"delay": 1})


def test_what_cannot_be_combined_is_refused() -> None:
    with pytest.raises(ConfigError, match="one-way links"):
        simulate(topology="one-peer-exponential", problem="quadratics", rounds=2, network={"loss": 0.1})
    with pytest.raises(ConfigError, match="FedAvg has a server and no links that can fail"):
        simulate("fedavg", problem="quadratics", rounds=2, network={"loss": 0.1})
    with pytest.raises(ConfigError, match="differences need constant weights"):
        simulate({"kind": "ld-sgd", "compress": "cast"}, problem="quadratics", rounds=2, network={"loss": 0.1})
    with pytest.raises(ConfigError, match="need a fixed graph, but 'random-matching' changes"):
        simulate(topology="random-matching", problem="quadratics", rounds=2, network={"delay": 1})
    with pytest.raises(ConfigError, match="only the simulator supports delay and rule"):
        run("net-fleet", Faults(delay=1), 2, "threads")
