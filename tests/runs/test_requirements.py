"""Networks on which a method diverges are rejected, and only those."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

from netfleet import ConfigError, Topology, make_topology
from netfleet.algorithms import LED, NetFleet, ProxSkip
from netfleet.algorithms.build import make_algorithm
from netfleet.engines.loop import Counted, advance, begin, diverged
from netfleet.engines.simulator import Simulator
from netfleet.problems.synthetic import Quadratics
from netfleet.runs.build import network_for
from netfleet.runs.own_loop import check_own_loop
from netfleet.topology.faults import Faults, Unreliable

GRAPHS = {"random matching": "random-matching", "one-peer hypercube": "one-peer-hypercube"}  # others: a ring
WEIGHTS = {"1 round late": {"kind": "laplacian", "factor": 1.0}}
UNSTABLE: dict[str, Faults | None] = {
    "random matching": None,
    "one-peer hypercube": None,
    "1 round late": Faults(delay=1),
    "2 rounds late": Faults(delay=2),
    "80 % lost": Faults(loss=0.8),
    "half of the messages lost, counters": Faults(loss=0.5, rule="counters"),
}
STABLE: dict[str, Faults | None] = {
    "30 % lost": Faults(loss=0.3),
    "30 % lost, folded": Faults(loss=0.3, rule="fold"),
    "20 % of the messages lost, counters": Faults(loss=0.2, rule="counters"),
    "20 % away": Faults(absent=0.2),
    "20 % away for 10 rounds": Faults(absent=0.2, spell=10),
}


@functools.cache
def graph(name: str) -> Topology:
    """Of eight workers."""
    return make_topology(GRAPHS.get(name, "ring"), workers=8, weights=WEIGHTS.get(name))


@pytest.mark.parametrize("name", UNSTABLE)
@pytest.mark.parametrize("kind", ["led", "d2", "proxskip"])
def test_methods_that_sum_differences_are_rejected_where_they_diverge(kind: str, name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"diverges on this network, and a smaller step size makes it worse.* \(net-fleet, k-gt, …\)"
    ):
        network_for(make_algorithm(kind), graph(name), 0, UNSTABLE[name])


@pytest.mark.parametrize("name", STABLE)
@pytest.mark.parametrize("kind", ["led", "d2", "proxskip"])
def test_they_are_accepted_where_they_converge(kind: str, name: str) -> None:
    assert network_for(make_algorithm(kind), graph(name), 0, STABLE[name]).m == 8


def ends_at(method: Any, topology: Topology, faults: Faults | None, rounds: int) -> float:
    """The largest distance of a worker from the optimum, relative to its distance at the start."""
    problem = Quadratics(8, d=3, dtype=torch.float64)
    network = topology if faults is None else Unreliable(topology, faults, seed=5)
    host, f = Simulator(problem, network, threads=1), Counted(problem)
    state = begin(host, method, f, problem.start().repeat(8, 1))
    for t in range(rounds):
        state = advance(host, method, f, t, [state])
    return float((state.x - problem.optimum).abs().max() / problem.optimum.abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("name", [*UNSTABLE, *STABLE])
def test_small_steps_show_that_the_verdict_is_right(name: str) -> None:
    found = ends_at(LED(K=2, eta=0.005), graph(name), (UNSTABLE | STABLE)[name], rounds=400)
    assert (found > 10) == (name in UNSTABLE)


@pytest.mark.slow
@pytest.mark.parametrize("name", UNSTABLE)
def test_led_with_a_small_beta_and_tracking_methods_work_where_it_is_rejected(name: str) -> None:
    eta, limit = (0.005, 1.0) if "lost" in name else (0.02, 0.01)  # what is lost costs rounds
    small = LED(K=2, eta=5 * eta, beta=0.05)
    assert network_for(small, graph(name), 0, UNSTABLE[name]).m == 8
    assert ends_at(small, graph(name), UNSTABLE[name], rounds=600) < limit
    assert ends_at(NetFleet(K=2, eta=5 * eta), graph(name), UNSTABLE[name], rounds=600) < limit


def test_after_divergence_a_smaller_step_is_not_advised_where_it_makes_things_worse() -> None:
    assert str(diverged(NetFleet(), "x", 3)).endswith("Use a smaller step size (eta)")
    assert "smaller steps make it worse there" in str(diverged(LED(), "x", 3))
    assert "smaller steps make it worse there" in str(
        diverged(make_algorithm({"kind": "d2", "compress": "cast"}), "x", 3)
    )


@pytest.mark.parametrize("K", [1, 2, 10, 50])
def test_proxskips_limit_is_where_its_second_moment_stops_to_decay(K: int) -> None:
    def radius(eigenvalue: float) -> float:
        """Of E[M ⊗ M], M being a round without gradients on (x, K η c); the number of steps is geometric."""
        mix = np.array([[eigenvalue, 0], [1 - eigenvalue, 1]])
        step = np.array([[eigenvalue - 1, -1], [0, 0]])
        second = np.kron(mix, mix) + np.kron(mix, step) + np.kron(step, mix) + (2 - 1 / K) * np.kron(step, step)
        return float(np.abs(np.linalg.eigvals(second)).max())

    limit = ProxSkip(K=K).least_eigenvalue
    assert radius(limit) == pytest.approx(1)
    assert radius(limit - 1e-3) > 1 > radius(limit + 1e-3)


def test_proxskip_is_rejected_on_a_metropolis_ring_where_led_is_not() -> None:
    ring = make_topology("ring", workers=9, weights="metropolis")
    with pytest.raises(
        ConfigError, match=r'eigenvalue below -0\.0476, and the smallest here is -0\.293; use weights = "la'
    ):
        network_for(ProxSkip(K=10), ring, 0)
    assert network_for(LED(K=10), ring, 0) is ring
    assert network_for(ProxSkip(K=10), make_topology("ring", workers=9), 0).m == 9


@pytest.mark.parametrize(("kind", "why"), [("svrg", "all of a worker's data"), ("dfedsam", "two gradients on one")])
def test_methods_that_a_loop_from_outside_cannot_run_are_refused(kind: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check_own_loop(make_algorithm(kind))
    check_own_loop(make_algorithm({"kind": "net-fleet", "compress": {"kind": "quantize", "bits": 8}}))
