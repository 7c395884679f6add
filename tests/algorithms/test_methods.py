"""What each method's paper proves: its iterates, where it converges to, and what it becomes in special cases."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
import torch

from netfleet import ConfigError, Problem, make_topology, simulate
from netfleet.algorithms import ALGORITHMS
from netfleet.problems.synthetic import Logistic, Quadratics
from support import transcripts
from support.fixed_points import EXACT, assert_same_models, build, dense, fixed_point
from support.problems import matrix_mix, rollout

# Rounds of the first group begin with the exchange, so the paper's models after it are W x of ours.
BEFORE_THE_EXCHANGE = [
    ("k-gt", transcripts.k_gt, {"K": 3}),
    ("k-gt", transcripts.k_gt, {"K": 3, "eta_s": 0.7}),
    ("periodical-gt", transcripts.periodical_gt, {"K": 3}),
    ("led", transcripts.led, {"K": 3, "beta": 0.2}),
    ("d2", transcripts.d2, {}),
    ("pd-sgdm", transcripts.pd_sgdm, {"K": 3, "beta": 0.8}),
    ("d-msgd", transcripts.d_msgd, {"K": 3, "beta": 0.8}),
    ("dfedavgm", transcripts.dfedavgm, {"K": 3, "beta": 0.8}),
]
AFTER_THE_ROUND = [
    ("lu-gt", transcripts.lu_gt, {"K": 3}),
    ("dsgt", transcripts.dsgt, {"K": 3}),
    ("qg-dsgdm", transcripts.qg_dsgdm, {"beta": 0.8, "mu": 0.7}),
    ("momentum-tracking", transcripts.momentum_tracking, {"beta": 0.8}),
]


def assert_same(states: list[Any], W: np.ndarray, models: Any) -> None:
    for t, (state, expected) in enumerate(zip(states, models, strict=True)):
        assert np.abs(W @ state.x.numpy() - expected).max() < EXACT, f"round {t}"


@pytest.mark.parametrize(("kind", "paper", "params"), BEFORE_THE_EXCHANGE)
@pytest.mark.parametrize("problem", ["noisy", "logistic"])
def test_the_iterates_are_the_papers_after_each_exchange(
    graph: Any, request: Any, problem: str, kind: str, paper: Any, params: dict[str, Any]
) -> None:
    f, W = request.getfixturevalue(problem), dense(graph)
    states = rollout(build(kind, eta=0.05, **params), f, matrix_mix(W), 8)[1:]
    start = f.start().repeat(f.m, 1).numpy()
    assert_same(states, W, islice(paper(transcripts.gradient_of(f), W, start, 0.05, **params), 8))


@pytest.mark.parametrize(("kind", "paper", "params"), AFTER_THE_ROUND)
@pytest.mark.parametrize("problem", ["noisy", "logistic"])
def test_the_iterates_are_the_papers_after_each_round(
    graph: Any, request: Any, problem: str, kind: str, paper: Any, params: dict[str, Any]
) -> None:
    f, W = request.getfixturevalue(problem), dense(graph)
    states = rollout(build(kind, eta=0.05, **params), f, matrix_mix(W), 8)[1:]
    start = f.start().repeat(f.m, 1).numpy()
    assert_same(states, np.eye(f.m), islice(paper(transcripts.gradient_of(f), W, start, 0.05, **params), 8))


@pytest.mark.parametrize("gossip", [1, 2])
def test_dfedsam_is_its_papers(graph: Any, logistic: Problem, gossip: int) -> None:
    W, params = dense(graph), {"K": 3, "rho": 0.1, "gossip": gossip}
    states = rollout(build("dfedsam", eta=0.05, **params), logistic, matrix_mix(W), 8)[1:]
    start = logistic.start().repeat(6, 1).numpy()
    models = transcripts.dfedsam(transcripts.gradient_of(logistic), W, start, 0.05, **params)
    assert_same(states, np.linalg.matrix_power(W, gossip), islice(models, 8))


EXACT_METHODS = [
    ("net-fleet", {"K": 5}),
    ("gt-sgd", {}),
    ("k-gt", {"K": 5}),
    ("k-gt", {"K": 5, "eta_s": 0.5}),
    ("periodical-gt", {"K": 5}),
    ("lu-gt", {"K": 5}),
    ("led", {"K": 5}),
    ("led", {"K": 5, "beta": 0.1}),
    ("d2", {}),
    ("momentum-tracking", {"beta": 0.5}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "params"), EXACT_METHODS)
def test_corrected_methods_reach_the_optimum_of_heterogeneous_quadratics(
    graph: Any, quadratics: Any, kind: str, params: dict[str, Any]
) -> None:
    last = rollout(build(kind, eta=0.03, **params), quadratics, matrix_mix(dense(graph)), 900)[-1]
    assert (last.x - quadratics.optimum).abs().max() < 1e-11


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "params"), EXACT_METHODS)
def test_corrected_methods_reach_the_optimum_when_the_step_size_falls(
    graph: Any, quadratics: Any, kind: str, params: dict[str, Any]
) -> None:
    falling = {"kind": "step", "start": 0.05, "every": 50, "factor": 0.9}  # several times before they are there
    last = rollout(build(kind, eta=falling, **params), quadratics, matrix_mix(dense(graph)), 800)[-1]
    assert (last.x - quadratics.optimum).abs().max() < 1e-9


BIASED_METHODS = [
    ("ld-sgd", {"K": 5}),
    ("dsgd", {}),
    ("pd-sgdm", {"K": 5, "beta": 0.5}),
    ("d-msgd", {"K": 5, "beta": 0.5}),
    ("dfedavgm", {"K": 5, "beta": 0.5}),
    ("dsgt", {"K": 5}),
    ("qg-dsgdm", {"beta": 0.5, "mu": 0.5}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "params"), BIASED_METHODS)
def test_uncorrected_methods_stop_at_their_biased_fixed_point(
    graph: Any, quadratics: Any, kind: str, params: dict[str, Any]
) -> None:
    method, W = build(kind, eta=0.03, **params), dense(graph)
    limit = rollout(method, quadratics, matrix_mix(W), 800)[-1].x.numpy()
    expected = fixed_point(method, quadratics, W)
    assert np.abs(limit - expected).max() < 1e-9
    assert np.abs(expected - quadratics.optimum.numpy()).max() > 1e-3


@pytest.mark.parametrize(("kind", "params"), EXACT_METHODS)
def test_the_fixed_point_of_corrected_methods_is_the_optimum(
    graph: Any, quadratics: Any, kind: str, params: dict[str, Any]
) -> None:
    rest = fixed_point(build(kind, eta=0.03, **params), quadratics, dense(graph))
    assert np.abs(rest - quadratics.optimum.numpy()).max() < 1e-9


SAME = [
    ("pd-sgdm", {"K": 4, "beta": 0.0}, "ld-sgd", {"K": 4}),
    ("dfedavgm", {"K": 4, "beta": 0.0}, "ld-sgd", {"K": 4}),
    ("dfedsam", {"K": 4, "rho": 0.0}, "ld-sgd", {"K": 4}),
    ("d-msgd", {"K": 4, "beta": 0.0}, "ld-sgd", {"K": 4}),
    ("led", {"K": 1}, "d2", {}),
    ("led", {"K": 1, "beta": 1.0}, "d2", {}),
    ("dsgt", {"K": 1}, "gt-sgd", {}),
    ("momentum-tracking", {"beta": 0.0}, "gt-sgd", {}),
]
ON_THE_EXACT_AVERAGE = [
    ("led", {"K": 4}, "k-gt", {"K": 4}),
]


@pytest.mark.parametrize(("kind", "params", "special", "like"), SAME)
def test_special_cases_agree(
    graph: Any, noisy: Problem, kind: str, params: dict[str, Any], special: str, like: dict[str, Any]
) -> None:
    eta = {"kind": "halve", "start": 0.1, "every": 3}
    assert_same_models(build(kind, eta=eta, **params), build(special, eta=eta, **like), noisy, dense(graph))


@pytest.mark.parametrize(("kind", "params", "special", "like"), ON_THE_EXACT_AVERAGE)
def test_special_cases_agree_on_the_exact_average(
    noisy: Problem, kind: str, params: dict[str, Any], special: str, like: dict[str, Any]
) -> None:
    J = np.full((6, 6), 1 / 6)
    assert_same_models(build(kind, eta=0.1, **params), build(special, eta=0.1, **like), noisy, J)


def test_lu_gt_without_local_steps_is_gt_dsgd(graph: Any, noisy: Problem) -> None:
    W, eta = dense(graph), 0.1
    G = transcripts.gradient_of(noisy)
    X = noisy.start().repeat(6, 1).numpy()
    g = G(X, 0, 0)
    Y = g
    lu_gt = rollout(build("lu-gt", K=1, eta=eta), noisy, matrix_mix(W), 8)
    for t in range(8):  # GT-DSGD: W after the step
        X = W @ (X - eta * Y)
        Y, g = W @ Y + G(X, t, 1) - g, G(X, t, 1)
        assert np.abs(lu_gt[t + 1].x.numpy() - X).max() < EXACT


class Watched:
    """A problem that remembers where its gradients were asked for, and what they were."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.seen = problem, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.problem, name)

    def grad(self, x: torch.Tensor, sample: Any) -> torch.Tensor:
        g = self.problem.grad(x, sample)
        self.seen.append((x.numpy().copy(), g.numpy().copy()))
        return g


FAMILY = [
    ("net-fleet", lambda g: g[-1], 0),
    ("lu-gt", lambda g: g[-1], 0),
    ("periodical-gt", lambda g: g[0], 0),
    ("k-gt", lambda g: g.mean(0), 0),
    ("led", lambda g: g.mean(0), 1),
]


@pytest.mark.parametrize(("kind", "chosen", "pull"), FAMILY, ids=[row[0] for row in FAMILY])
def test_the_correction_is_refreshed_as_the_table_of_the_family_says(
    graph: Any, noisy: Problem, kind: str, chosen: Any, pull: int
) -> None:
    K, eta, W, f = 4, 0.05, dense(graph), Watched(noisy)
    method, mix = build(kind, K=K, eta=eta), matrix_mix(W)
    state, rounds = method.init(f, mix, f.start().repeat(6, 1)), []  # type: ignore[arg-type]
    for t in range(8):
        f.seen.clear()
        state = method.round(f, mix, t, state)  # type: ignore[arg-type]
        x, g = (np.stack(part) for part in zip(*f.seen, strict=True))  # [K, m, d]
        c = (x[:-1] - x[1:]) / eta - g[:-1]  # x ← x − η (g + c)
        assert np.abs(c - c[0]).max() < EXACT / eta, "one correction in all of a round's steps"
        rounds.append((x[0], g, c[0]))
    assert np.abs(rounds[-1][2].sum(0)).max() < EXACT / eta
    for (x, g, c), (_, _, after) in pairwise(rounds):
        refreshed = W @ (c + chosen(g)) - chosen(g) + pull * (x - W @ x) / (K * eta)
        assert np.abs(after - refreshed).max() < EXACT / eta


def test_periodical_gt_without_further_local_steps_is_gt_dsgd(graph: Any, noisy: Problem) -> None:
    W, eta = dense(graph), 0.1
    G = transcripts.gradient_of(noisy)
    X = noisy.start().repeat(6, 1).numpy()
    g = G(X, 0, 1)
    Y = W @ G(X, 0, 0) + g - G(X, 0, 0)  # the tracker has been through one exchange
    states = rollout(build("periodical-gt", K=1, eta=eta), noisy, matrix_mix(W), 8)[1:]
    for t, state in enumerate(states):  # GT-DSGD: W after the step
        assert np.abs(state.y.numpy() - Y).max() < EXACT
        X = W @ (X - eta * Y)
        assert np.abs(W @ state.x.numpy() - X).max() < EXACT
        Y, g = W @ Y + G(X, t + 1, 1) - g, G(X, t + 1, 1)


def test_k_gt_is_net_fleets_family(graph: Any, quadratics: Any) -> None:
    # With exact gradients near the optimum all local gradients of a round agree, so do the corrections: −∇fᵢ(x*).
    wanted = -quadratics.full_grad(quadratics.optimum.expand(6, -1))
    mix = matrix_mix(dense(graph))
    fleet = rollout(build("net-fleet", K=4, eta=0.03), quadratics, mix, 800)[-1]
    assert (fleet.y - fleet.g - wanted).abs().max() < 1e-10
    for kind in ("k-gt", "led"):
        assert (rollout(build(kind, K=4, eta=0.03), quadratics, mix, 800)[-1].c - wanted).abs().max() < 1e-10


def test_tracking_methods_reach_the_optimum_of_logistic_regression(graph: Any) -> None:
    problem = Logistic(6, d=4, samples=20, batch=0, seed=2, dtype=torch.float64)
    for kind in ("k-gt", "led", "lu-gt", "periodical-gt"):
        last = rollout(build(kind, K=5, eta=0.1), problem, matrix_mix(dense(graph)), 500)[-1]
        assert (last.x - problem.optimum).norm() < 1e-10, kind


@pytest.mark.parametrize("kind", sorted(ALGORITHMS))
def test_a_step_size_of_zero_is_no_step_or_refused_at_once(kind: str) -> None:
    spec = {"kind": kind, "eta": {"kind": "cosine", "start": 0.05, "rounds": 3}}
    if ALGORITHMS[kind].divides_by_eta:  # type: ignore[attr-defined]
        with pytest.raises(ConfigError, match="divides by the step size, which is 0 in round 3"):
            simulate(spec, problem="quadratics", workers=4, rounds=6)
    else:
        assert simulate(spec, problem="quadratics", workers=4, rounds=6).last["round"] == 6


@pytest.mark.parametrize("kind", ["d2", "led", "proxskip"])
def test_weights_under_which_a_method_diverges_are_refused(kind: str) -> None:
    torus = make_topology("torus", workers=16, weights="metropolis")
    assert torus.least_eigenvalue == pytest.approx(np.linalg.eigvalsh(dense(torus)).min())
    with pytest.raises(
        ConfigError, match=r"has an eigenvalue below -0\.\d+, and the smallest here is -0\.6; use weights"
    ):
        simulate(kind, topology=torus, problem="quadratics", rounds=2)
    with pytest.raises(ConfigError, match="needs symmetric weights"):
        simulate(kind, topology="one-peer-exponential", workers=8, problem="quadratics", rounds=2)


@pytest.mark.parametrize("weights", ["laplacian", "metropolis"])
@pytest.mark.parametrize("K", [1, 3])
def test_the_largest_step_of_leds_correction_is_where_it_is_refused(K: int, weights: str) -> None:
    torus = make_topology("torus", workers=16, weights=weights)
    most = min(1.0, 2 * (1 + torus.least_eigenvalue) / (1 - torus.least_eigenvalue) / K)
    problem = Quadratics(16, d=2, dtype=torch.float64)
    problem.A[:] = 0  # nothing but the correction moves the models
    problem.b[:] = 0

    def spread(beta: float) -> float:
        mix, c = matrix_mix(dense(torus)), torch.from_numpy(np.random.default_rng(0).standard_normal((16, 2)))
        method = build("led", K=K, beta=beta)
        state = method.State(torch.zeros_like(c), c - c.mean(0))
        for t in range(1000):
            state = method.round(problem, mix, t, state)  # type: ignore[arg-type]
        return state.x.abs().max().item()

    assert spread(0.9 * most) < 1e-6
    assert simulate({"kind": "led", "K": K, "beta": most}, topology=torus, problem="quadratics", rounds=1)
    if 1.05 * most <= 1:
        assert spread(1.05 * most) > 1e3
        with pytest.raises(ConfigError, match=rf"lower beta from {1.05 * most:.3g}\d* to at most {most:.3g}, or leave"):
            simulate({"kind": "led", "K": K, "beta": 1.05 * most}, topology=torus, problem="quadratics", rounds=1)


@pytest.mark.parametrize("kind", sorted(name for name in ALGORITHMS if hasattr(ALGORITHMS[name], "K")))
@pytest.mark.parametrize("K", [0, -3, 2.5])
def test_fewer_than_one_local_step_is_refused(kind: str, K: Any) -> None:
    with pytest.raises(ConfigError, match="K"):
        build(kind, K=K)


@pytest.mark.parametrize(
    ("kind", "params", "words"),
    [
        ("pd-sgdm", {"beta": 1.0}, r"beta, the momentum, must lie in \[0, 1\), got 1.0"),
        ("d-msgd", {"beta": -0.1}, "beta, the momentum"),
        ("dfedavgm", {"beta": 1.5}, "beta, the momentum"),
        ("momentum-tracking", {"beta": 1.0}, "beta, the momentum"),
        ("qg-dsgdm", {"mu": 1.0}, "mu, the momentum"),
        ("k-gt", {"eta_s": 0.0}, "eta_s must be a finite number above 0, got 0.0"),
        ("led", {"beta": 1.5}, "beta, LED's step along the correction"),
        ("led", {"beta": 0.0}, r"must lie in \(0, 1\], got 0.0; leave it out for 1/K, or use ld-sgd"),
        ("dfedsam", {"rho": -1.0}, "rho >= 0"),
        ("dfedsam", {"rho": float("inf")}, "a finite rho >= 0 .* got rho = inf"),
        ("dfedsam", {"rho": float("nan")}, "a finite rho >= 0 .* got rho = nan"),
        ("dfedsam", {"gossip": 0}, "gossip >= 1"),
    ],
)
def test_bad_hyper_parameters_are_refused(kind: str, params: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(kind, **params)
