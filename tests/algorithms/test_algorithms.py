"""The four methods against the paper's pseudo-code, closed forms and invariants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from netfleet import Problem, make_topology
from netfleet.algorithms import DSGD, GTSGD, LDSGD, NetFleet
from netfleet.problems.synthetic import Logistic, Quadratics
from support.oracle import algorithm_1
from support.problems import digits_problem, matrix_mix, rollout

EXACT = 1e-12


def dense(topology: Any) -> np.ndarray:
    return topology.W().toarray()


def largest_gap(states: list[Any], trajectory: list[Any]) -> float:
    assert len(states) == len(trajectory)
    return max(
        np.abs(ours.numpy() - theirs).max()
        for state, row in zip(states, trajectory, strict=True)
        for ours, theirs in zip(state, row, strict=True)
    )


@pytest.mark.parametrize("K", [1, 2, 5])
def test_net_fleet_is_algorithm_1_on_noisy_quadratics(graph: Any, noisy: Problem, K: int) -> None:
    states = rollout(NetFleet(K=K, eta=0.1), noisy, matrix_mix(dense(graph)), 8)
    assert largest_gap(states, algorithm_1(noisy, dense(graph), 0.1, K, 8)) < EXACT


def test_net_fleet_is_algorithm_1_on_mini_batches(graph: Any, logistic: Problem) -> None:
    states = rollout(NetFleet(K=3, eta=0.2), logistic, matrix_mix(dense(graph)), 8)
    assert largest_gap(states, algorithm_1(logistic, dense(graph), 0.2, 3, 8)) < EXACT


def test_net_fleet_is_algorithm_1_on_a_network_of_real_digits() -> None:
    topology = make_topology("ring", workers=4, weights="metropolis")
    problem = digits_problem(4, dtype=torch.float64)
    states = rollout(NetFleet(K=3, eta=0.1), problem, matrix_mix(dense(topology)), 4)
    assert largest_gap(states, algorithm_1(problem, dense(topology), 0.1, 3, 4)) < EXACT


@given(m=st.integers(1, 7), K=st.integers(1, 4), seed=st.integers(0, 50), eta=st.floats(0.01, 0.3))
@settings(max_examples=25, deadline=None)
def test_net_fleet_is_algorithm_1_on_any_graph(m: int, K: int, seed: int, eta: float) -> None:
    topology = make_topology("erdos-renyi", workers=m, seed=seed)
    problem = Quadratics(m, d=3, sigma=1.0, seed=seed, dtype=torch.float64)
    states = rollout(NetFleet(K=K, eta=eta), problem, matrix_mix(dense(topology)), 4)
    trajectory = algorithm_1(problem, dense(topology), eta, K, 4)
    scale = 1 + max(np.abs(part).max() for row in trajectory for part in row)
    assert largest_gap(states, trajectory) < EXACT * scale


def test_net_fleet_with_one_local_step_is_gt_sgd(graph: Any, noisy: Problem) -> None:
    mix = matrix_mix(dense(graph))
    ours = rollout(NetFleet(K=1, eta=0.1), noisy, mix, 10)
    theirs = rollout(GTSGD(eta=0.1), noisy, mix, 10)
    for a, b in zip(ours, theirs, strict=True):
        for left, right in zip(a, b, strict=True):
            assert torch.equal(left, right)


@pytest.mark.parametrize("k", range(1, 6))
def test_the_sum_of_y_is_the_sum_of_g_at_each_step(graph: Any, noisy: Problem, k: int) -> None:
    # A round with K = k is the first k local steps of a round with a larger K.
    for state in rollout(NetFleet(K=k, eta=0.1), noisy, matrix_mix(dense(graph)), 6):
        assert torch.allclose(state.y.sum(0), state.g.sum(0), rtol=0, atol=EXACT)


def test_with_one_worker_net_fleet_is_plain_sgd() -> None:
    problem = Quadratics(1, d=3, sigma=1.0, seed=5, dtype=torch.float64)
    last = rollout(NetFleet(K=3, eta=0.1), problem, matrix_mix(np.ones((1, 1))), 4)[-1]
    x = problem.start()[None]
    g = problem.grad(x, problem.sample(0, 0))
    for t in range(4):
        for k in range(1, 4):
            x = x - 0.1 * g
            g = problem.grad(x, problem.sample(t, k))
    assert torch.allclose(last.x, x, rtol=0, atol=EXACT)


def test_net_fleet_reaches_the_optimum_of_heterogeneous_quadratics_at_a_linear_rate(
    graph: Any, quadratics: Any
) -> None:
    states = rollout(NetFleet(K=5, eta=0.03), quadratics, matrix_mix(dense(graph)), 600)
    errors = np.array([(s.x - quadratics.optimum).norm().item() for s in states])
    assert errors[-1] < EXACT
    falling = np.log(errors[50:300:50])  # well above rounding
    slopes = np.diff(falling)
    assert slopes.max() < 0
    assert slopes.max() - slopes.min() < 0.2 * abs(slopes.mean())  # a straight line in the logarithm


def biased_fixed_point(problem: Quadratics, W: np.ndarray, eta: float, K: int, *, gradient_first: bool) -> np.ndarray:
    """The fixed point of one round of local gossip SGD with exact gradients, an affine map of all models at once."""
    m, d = problem.m, problem.d
    A, b = problem.A.numpy(), problem.b.numpy()
    blocks = np.zeros((m * d, m * d))
    for i in range(m):
        blocks[i * d : (i + 1) * d, i * d : (i + 1) * d] = eta * A[i]
    pull = np.concatenate([eta * A[i] @ b[i] for i in range(m)])
    spread = np.kron(W, np.eye(d))
    if gradient_first:  # x -> W x − η g(x)
        M, c = spread - blocks, pull
    else:  # x -> (x − η g(x)) K times after W
        M, c = spread, np.zeros(m * d)
        for _ in range(K):
            M, c = M - blocks @ M, c - blocks @ c + pull
    return np.linalg.solve(np.eye(m * d) - M, c).reshape(m, d)


@pytest.mark.parametrize(
    ("method", "gradient_first"), [(LDSGD(K=5, eta=0.03), False), (DSGD(eta=0.03), True)], ids=["ld-sgd", "dsgd"]
)
def test_local_sgd_stops_at_its_biased_fixed_point(
    graph: Any, quadratics: Any, method: Any, gradient_first: bool
) -> None:
    limit = rollout(method, quadratics, matrix_mix(dense(graph)), 3000)[-1].x.numpy()
    expected = biased_fixed_point(
        quadratics, dense(graph), 0.03, getattr(method, "K", 1), gradient_first=gradient_first
    )
    assert np.abs(limit - expected).max() < 1e-10
    bias = np.linalg.norm(expected.mean(0) - quadratics.optimum.numpy())
    assert bias > 1e3 * np.abs(limit - expected).max()


def test_net_fleet_reaches_the_optimum_of_logistic_regression(graph: Any) -> None:
    problem = Logistic(6, d=4, samples=20, batch=0, seed=2, dtype=torch.float64)
    last = rollout(NetFleet(K=5, eta=0.1), problem, matrix_mix(dense(graph)), 1500)[-1]
    assert (last.x - problem.optimum).norm() < 1e-10
