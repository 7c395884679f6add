"""Workers that count by their weights: the shares, what a worker computes, and where every method then ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import netfleet as nf
from netfleet import ConfigError
from netfleet.algorithms import ALGORITHMS
from netfleet.problems.site_weights import site_weights
from netfleet.problems.synthetic import Logistic, Quadratics
from netfleet.runs.metrics import measure_objective
from support.fixed_points import build, dense, fixed_point
from support.problems import digits_problem, matrix_mix, rollout

SIZES = [100, 300, 9400, 500, 1700, 800]
SHARES = np.array(SIZES) / sum(SIZES)


@pytest.mark.parametrize(
    ("spec", "sizes", "expected"),
    [
        ("equal", [1, 5], [0.5, 0.5]),
        ("rows", [1, 3], [0.25, 0.75]),
        ({"kind": "rows", "cap": 0.5}, [1, 1, 8], [0.25, 0.25, 0.5]),
        (
            {"kind": "rows", "cap": 0.4},
            [1, 7, 92],
            [0.2, 0.4, 0.4],
        ),  # what the first leaves puts the second over the cap
        ({"kind": "rows", "cap": 0.5}, [1, 9], [0.5, 0.5]),
        ([2, 6], [1, 1], [0.25, 0.75]),
    ],
)
def test_shares(spec: Any, sizes: list[int], expected: list[float]) -> None:
    assert site_weights(spec, sizes) == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("row", r"unknown site weights 'row' \(did you mean 'rows'\?\)"),
        ([1, 2], "has 2 numbers for 3 workers; give one for each"),
        ([1, 2, 0], r"a positive number for each worker, got \[1, 2, 0\]"),
        ([], r"got \[\]"),
        (3, r"must be \"equal\", \"rows\", a table with a kind, or a positive number for each worker, got 3"),
        ({"kind": "rows", "cap": 0.2}, r"cap is a share from 1/3 \(of 3 workers\) to 1, got 0.2"),
        ({"kind": "rows", "most": 0.2}, "has no parameter 'most'"),
    ],
)
def test_weights_that_make_no_sense(spec: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Quadratics(3).weighted(spec)
    with pytest.raises(ConfigError, match=words):
        nf.simulate("dsgd", topology="ring", workers=3, problem={"kind": "quadratics", "weights": spec}, rounds=1)


@pytest.mark.parametrize("model", ["mlp", "cnn", "softmax"])
def test_a_worker_computes_its_function_times_its_weight(model: str) -> None:
    plain = digits_problem(4, model, dtype=torch.float64, l2=0.1, partition={"kind": "dirichlet", "alpha": 1.0})
    problem, shares = plain.weighted("rows"), np.array(plain.sizes) / sum(plain.sizes)
    scale = torch.tensor(4 * shares)[:, None]
    x = plain.start() + 0.1 * torch.randn(4, plain.d, dtype=torch.float64)
    assert torch.allclose(problem.grad(x, problem.sample(1, 2)), scale * plain.grad(x, plain.sample(1, 2)))
    assert torch.allclose(problem.full_grad(x), scale * plain.full_grad(x))
    assert torch.allclose(problem.at([2, 0]).full_grad(x[[2, 0]]), (scale * plain.full_grad(x))[[2, 0]])
    value, gradient = problem.objective(x[0])
    alone = [plain.at([i]).objective(x[0]) for i in range(4)]
    assert value.item() == pytest.approx(sum(p * f[0].item() for p, f in zip(shares, alone, strict=True)))
    assert torch.allclose(gradient, sum(p * f[1] for p, f in zip(shares, alone, strict=True)))  # type: ignore[arg-type]


def test_an_estimate_of_the_weighted_objective_is_unbiased() -> None:
    plain = digits_problem(5, "softmax", dtype=torch.float64, partition={"kind": "dirichlet", "alpha": 1.0})
    problem, x = plain.weighted([1, 2, 3, 4, 50]), plain.start()
    exact, drawn = measure_objective(problem, x, 0), []
    for problem.seed in range(150):
        drawn.append(measure_objective(problem, x, 300))
    for name in ("train_loss", "grad_norm2"):
        values = np.array([record[name] for record in drawn])
        assert abs(values.mean() - exact[name]) < 4 * values.std() / np.sqrt(len(values))


def test_rows_of_one_size_change_nothing() -> None:
    history, other = (
        nf.simulate("net-fleet", topology="ring", workers=4, problem={"kind": "logistic", "weights": weights}, rounds=3)
        for weights in ("equal", "rows")
    )
    assert history.last["distance2"] == pytest.approx(other.last["distance2"], rel=1e-5)


@pytest.mark.parametrize("problem", [Quadratics(6, d=4, dtype=torch.float64), Logistic(6, d=4, dtype=torch.float64)])
def test_the_optimum_is_that_of_the_weighted_objective(problem: Any) -> None:
    weighted = problem.weighted(SIZES)
    assert weighted.objective(weighted.optimum)[1].norm() < 1e-13
    assert (weighted.optimum - problem.optimum).norm() > 1e-2
    assert weighted.smoothness == pytest.approx(6 * SHARES.max() * problem.smoothness)
    parts = [problem.at([i]).full_grad(weighted.optimum[None])[0] for i in range(6)]
    assert sum(p * part for p, part in zip(SHARES, parts, strict=True)).norm() < 1e-13


def test_a_problem_without_weights_says_so() -> None:
    class Own(Quadratics):
        with_shares = nf.Problem.with_shares

    with pytest.raises(ConfigError, match=r"Own has no weights of workers; multiply its gradients and values by m pᵢ"):
        Own(3).weighted("rows")
    assert isinstance(Own(3).weighted("equal"), Own)


EXACT = [
    ("net-fleet", {"K": 5}),
    ("gt-sgd", {}),
    ("k-gt", {"K": 5}),
    ("periodical-gt", {"K": 5}),
    ("lu-gt", {"K": 5}),
    ("led", {"K": 5}),
    ("d2", {}),
    ("momentum-tracking", {"beta": 0.5}),
]
SERVER = ["parallel-sgd", "scaffold", "vrl-sgd", "scaffnew", "svrg", "spider"]


def weighted_optimum(problem: Quadratics) -> np.ndarray:
    """(Σ pᵢAᵢ)⁻¹ Σ pᵢAᵢbᵢ."""
    A, b = problem.A.numpy(), problem.b.numpy()
    return np.linalg.solve(np.einsum("m,mij->ij", SHARES, A), np.einsum("m,mij,mj->i", SHARES, A, b))


@pytest.mark.parametrize(("kind", "params"), EXACT)
def test_methods_that_reach_the_optimum_rest_at_the_weighted_one(
    graph: Any, quadratics: Any, kind: str, params: dict[str, Any]
) -> None:
    rest = fixed_point(build(kind, eta=0.01, **params), quadratics.weighted(SIZES), dense(graph))
    assert np.abs(rest - weighted_optimum(quadratics)).max() < 1e-9


@pytest.mark.parametrize("kind", [*(kind for kind, _ in EXACT), *SERVER])
def test_methods_that_reach_the_optimum_reach_the_weighted_one(quadratics: Any, kind: str) -> None:
    local = {"K": 3} if hasattr(ALGORITHMS[kind], "K") else {"beta": 0.3} if kind == "momentum-tracking" else {}
    last = nf.simulate(
        {"kind": kind, "eta": 0.05, **local},
        topology=nf.make_topology("complete", workers=6, weights={"kind": "laplacian", "factor": 0.9}),
        problem=quadratics.weighted(SIZES),
        rounds=1500,
        evaluation={"every": 1500},
    ).final
    assert last is not None
    assert (last.state.x - torch.from_numpy(weighted_optimum(quadratics))).abs().max() < 1e-12


@pytest.mark.parametrize("kind", ["net-fleet", "led", "fedavg"])
def test_engines_agree_on_a_weighted_problem(kind: str) -> None:
    problem = Quadratics(6, d=4, sigma=0.5, dtype=torch.float64).weighted(SIZES)
    given: dict[str, Any] = {"topology": "ring", "problem": problem, "rounds": 5, "evaluation": {"every": 1}}
    ours, theirs = (nf.simulate(kind, **given, engine={"kind": engine}).records for engine in ("simulator", "threads"))
    for a, b in zip(ours, theirs, strict=True):
        for name in ("loss", "grad_norm2", "consensus_error", "distance2", "worker_loss_mean"):
            assert a[name] == pytest.approx(b[name], rel=1e-9, abs=1e-12)


def test_fedavg_rests_where_the_weighted_pulls_are_in_balance(quadratics: Any) -> None:
    problem, eta, K = quadratics.weighted(SIZES), 0.02, 3
    A, b = (6 * SHARES)[:, None, None] * quadratics.A.numpy(), quadratics.b.numpy()
    pull = [np.eye(4) - np.linalg.matrix_power(np.eye(4) - eta * A[i], K) for i in range(6)]
    expected = np.linalg.solve(sum(pull), sum(p @ b[i] for i, p in enumerate(pull)))
    J = np.full((6, 6), 1 / 6)
    assert np.abs(fixed_point(build("fedavg", K=K, eta=eta), problem, J) - expected).max() < 1e-9


def test_dsgd_rests_at_the_weighted_biased_point(graph: Any, quadratics: Any) -> None:
    """(I − W) x + η m pᵢ Aᵢ (xᵢ − bᵢ) = 0 for all workers together."""
    problem, W, eta = quadratics.weighted(SIZES), dense(graph), 0.01
    A, b = (6 * SHARES)[:, None, None] * quadratics.A.numpy(), quadratics.b.numpy()
    whole = np.kron(np.eye(6) - W, np.eye(4))
    for i in range(6):
        whole[4 * i : 4 * i + 4, 4 * i : 4 * i + 4] += eta * A[i]
    expected = np.linalg.solve(whole, eta * np.einsum("mij,mj->mi", A, b).ravel()).reshape(6, 4)
    rest = fixed_point(build("dsgd", eta=eta), problem, W)
    assert np.abs(rest - expected).max() < 1e-8
    assert np.abs(rest.mean(0) - weighted_optimum(quadratics)).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["net-fleet", "k-gt"])
def test_scaled_functions_need_fewer_rounds_than_a_reversible_matrix(kind: str) -> None:
    """Both are exact. Each at its best step size, with sizes from 100 to 9,400; the choice in site_weights.py."""
    sizes, m = np.geomspace(100, 9400, 8), 8
    shares, plain = sizes / sizes.sum(), Quadratics(8, d=4, seed=1, dtype=torch.float64)
    W = dense(nf.make_topology("ring", workers=m, weights="metropolis"))
    reversible = np.where(W > 0, np.minimum(W, W.T * shares / shares[:, None]), 0)
    np.fill_diagonal(reversible, 0)
    reversible += np.diag(1 - reversible.sum(1))
    assert np.allclose(shares @ reversible, shares)
    scaled = plain.weighted(sizes.tolist())

    def rounds(problem: Any, matrix: np.ndarray, average: np.ndarray, eta: float) -> float:
        states = rollout(build(kind, K=5, eta=eta), problem, matrix_mix(matrix), 600)
        gaps = [(torch.from_numpy(average) @ state.x - scaled.optimum).norm().item() for state in states]
        return next((t for t, gap in enumerate(gaps) if gap < 1e-8), np.inf)

    etas = (0.006, 0.0125, 0.025, 0.05)
    ours = min(rounds(scaled, W, np.full(m, 1 / m), eta) for eta in etas)
    theirs = min(rounds(plain, reversible, shares, eta) for eta in etas)
    assert ours < min(theirs, 600)


def test_worker_means_count_by_the_weights() -> None:
    problem = digits_problem(3, "softmax").weighted([1, 1, 8])
    history = nf.simulate("dsgd", topology="ring", problem=problem, rounds=2, evaluation={"every": 2})
    assert history.final is not None
    scores = problem.evaluate(history.final.state.x, workers=(0, 1, 2))
    expected = (scores.accuracy * torch.tensor([0.1, 0.1, 0.8])).sum().item()
    assert history.last["worker_accuracy_mean"] == pytest.approx(expected)
