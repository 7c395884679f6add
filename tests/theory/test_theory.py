"""The theory's functions against hand-worked values and limits, and the theorem against runs."""

from __future__ import annotations

import copy
import math
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from netfleet import ConfigError, EngineConfig, make_topology
from netfleet.algorithms import ALGORITHMS
from netfleet.cli import main
from netfleet.problems.synthetic import NonconvexLogistic, Quadratics
from netfleet.report import theory as report
from netfleet.runs.build import build_problem, build_setting
from netfleet.runs.config import Evaluation
from netfleet.runs.config import experiment as load
from netfleet.runs.history import History
from netfleet.runs.metrics import consensus_error, measure_objective
from netfleet.runs.run import run_experiment
from netfleet.theory import bounds as theory
from netfleet.theory import estimates, predictions, theorems
from netfleet.theory.bounds import Bound, Constants
from netfleet.theory.theorems import dsgd, fedavg, theorem_1
from reproduce.speedup.study import Watched
from support.problems import matrix_mix, need_data, rollout

WORKED = Constants(m=10, lam=0.5, L=2.0, variance=3.0, gap=5.0, spread=7.0)
# Worked on paper with these: m = 4, λ = ½, L = 2, σ² = 6, f(x⁰) − f* = 5, spread 8, and K = 3 unless said otherwise.
PAPER = Constants(m=4, lam=0.5, L=2.0, variance=6.0, gap=5.0, spread=8.0)
COMPLETE = Constants(m=2, lam=0.0, L=1.0, variance=1.0, gap=1.0, spread=1.0)  # and this with K = 1


def terms(found: Bound | None) -> tuple[float, ...]:
    """The terms that a theorem has."""
    assert found is not None
    return tuple(term for term in found if term is not None)


def test_growth_and_C1() -> None:
    assert theory.growth(0.5, 3) == 2  # 1 + 3/2 − 1/2
    assert theory.growth(0.0, 7) == theory.growth(0.9, 1) == 1
    assert theory.C1(0.5, 3) == 144  # 6 · 2 · 3 / (1/4)
    assert theory.C1(0.0, 1) == 6
    assert theory.C1(0.0, 3) == 18  # 6 · 1 · 3
    assert theory.C1(0.5, 1) == 24  # 6 / (1/4)


def test_the_step_size_conditions_are_the_papers() -> None:
    # 1/6; 1/(4·4·9); ½/√(12·2·3·4) = ½/√288; √(½/(24·4·9)); ⅛·4·3/144; √(4·¼/(144·2·9)); ½/(3·2·4·3·4); ¼·2·4/(144·3)
    limits = [1 / 6, 1 / 144, 1 / 1152**0.5, 1 / 1728**0.5, 1 / 96, 1 / 2592**0.5, 1 / 576, 1 / 216]
    assert list(theory.conditions(PAPER, K=3).values()) == pytest.approx(limits)
    assert theory.largest_step(PAPER, K=3) == (pytest.approx(1 / 576), "(1−λ)/(3(1+λK−λ)mKL²)")


def test_the_conditions_on_a_complete_graph_and_without_local_steps() -> None:
    limits = list(theory.conditions(COMPLETE, K=1).values())
    # 1/3; 1/2; 1/√12; 1/√24; 2/144; √(2/144); 1/(3·2); 2/144
    assert limits == pytest.approx([1 / 3, 1 / 2, 1 / 12**0.5, 1 / 24**0.5, 1 / 72, 1 / 72**0.5, 1 / 6, 1 / 72])
    complete = list(theory.conditions(PAPER._replace(lam=0.0), K=3).values())
    # 1 + λK − λ = 1: 1/6; 1/144; 1/√(12·3·4); 1/√(24·4·9); 12/144; √(4/2592); 1/(3·4·3·4); 4/432
    assert complete == pytest.approx([1 / 6, 1 / 144, 1 / 12, 1 / 864**0.5, 1 / 12, 1 / 648**0.5, 1 / 144, 1 / 108])
    single = list(theory.conditions(PAPER, K=1).values())
    # 1/6; 1/16; ½/√48; √(½/96); ⅛·4/144; √(1/288); ½/(3·4·4); ¼·4/144
    assert single == pytest.approx([1 / 6, 1 / 16, 1 / 192**0.5, 1 / 192**0.5, 1 / 288, 1 / 288**0.5, 1 / 96, 1 / 144])


def test_the_factors_of_the_dropped_terms() -> None:
    # η = 1/12, η³ = 1/1728. C_∇f: 1 − 1/6 − 24·144·4·3/1728/(½·4) − 144·4·9/1728/(¼·4) = 1 − 1/6 − 12 − 3
    # C_x: ½ − 24·144·4/144/½ − 2·4·3·4/12 − 144·4·9/144/¼ = ½ − 192 − 8 − 144; C_y: ½ − 6·2·3/(144·½)
    assert theory.descent(PAPER, 1 / 12, 3) == pytest.approx((-85 / 6, -343.5, 0))
    # λ = 0, K = 1, η = 1/2, C₁ = 6. 1 − ½ − 24·6/8/2 − 144/8/2; 1 − 24·6/4 − 2/2 − 144/4; 1 − 6/6
    assert theory.descent(COMPLETE, 0.5, 1) == pytest.approx((-17.5, -72, 0))


def test_the_bound_is_the_papers() -> None:
    # η = 1/576, S = 12: SKη = 1/16, C₁η²·8/(16·3) = 144/576²/6 = 1/13824, so 32 · (5 + 1/13824);
    # 3·2·6/(576·4); 72·6/(576·¼·4); 72·2·6/(576·⅛·3·4)
    found = theory.bound(PAPER, 1 / 576, 3, 12)
    assert terms(found) == pytest.approx((160 + 1 / 432, 1 / 64, 3 / 4, 1))
    assert found.total == pytest.approx(160 + 1 / 432 + 1 / 64 + 7 / 4)


def test_the_bound_on_a_complete_graph_and_without_local_steps() -> None:
    # η = 1/72, S = 72: SKη = 1, C₁η²/4 = 6/(4·5184) = 1/3456; 3/144; 72/144; 72/144
    assert terms(theory.bound(COMPLETE, 1 / 72, 1, 72)) == pytest.approx((2 + 1 / 1728, 1 / 48, 1 / 2, 1 / 2))
    # λ = 0, K = 3, C₁ = 18, η = 1/72, S = 24: 18/5184/(4·3) = 1/3456; the last term falls as 1/K
    assert terms(theory.bound(COMPLETE, 1 / 72, 3, 24)) == pytest.approx((2 + 1 / 1728, 1 / 48, 1 / 2, 1 / 6))
    # λ = ½, K = 1, C₁ = 24: 24/5184/4 = 1/864; 72/144/¼; 72/144/⅛
    assert terms(theory.bound(COMPLETE._replace(lam=0.5), 1 / 72, 1, 72)) == pytest.approx((2 + 1 / 432, 1 / 48, 2, 4))


@pytest.mark.parametrize(
    ("lam", "K", "expected"),
    [  # Σ‖xᵢ − x̄‖² = Σ‖yᵢ − ȳ‖² = 2, m² = 4, η² = ¼
        (0.0, 1, 2.25),  # C₁ = 6: 1 + (2 + 6/4·2)/4
        (0.5, 1, 4.5),  # C₁ = 24: 1 + (2 + 24/4·2)/4
        (0.0, 3, 1 + 11 / 12),  # C₁ = 18: 1 + (2 + 18/4·2)/12
        (0.5, 3, 1 + 74 / 12),  # C₁ = 144: 1 + (2 + 144/4·2)/12
    ],
)
def test_the_potential_is_the_papers(lam: float, K: int, expected: float) -> None:
    x, y = torch.tensor([[0.0, 5.0], [2.0, 5.0]]), torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    assert theory.potential(1.0, x, y, eta=0.5, K=K, lam=lam) == pytest.approx(expected)


def test_the_metric_is_the_papers() -> None:
    # ‖(3, 4)‖² + 2² · (1 + 1)/2
    assert theory.metric(25.0, torch.tensor([[0.0, 5.0], [2.0, 5.0]]), L=2.0) == 29


def test_the_corollary() -> None:
    assert theory.corollary(m=5, S=1000) == (2, pytest.approx(0.05))  # 10/5; √(5/2000) = √(1/400)
    assert theory.corollary(m=10, S=1000, scale=2.0) == (1, pytest.approx(0.2))  # 10/10; 2√(10/1000)
    assert theory.corollary(m=64, S=64) == (1, 1.0)  # 4/64 is below 1; √(64/64)
    assert theory.corollary(m=4, S=16, K=4) == (4, 0.25)  # √(4/64)


@pytest.mark.parametrize(
    ("c", "K", "S", "eta"),
    [
        # λ = 0, K = 1, no spread: the noise terms are (3/2 + 36 + 36)η = 73.5η, the first 147/(Sη): η = √(2/S)
        (COMPLETE._replace(gap=73.5, spread=0.0), 1, 20_000, 0.01),
        # λ = ½, K = 3: (9 + 432 + 576)η = 1017η and 2·1525.5/(3Sη) = 1017/(Sη): η = √(1/S)
        (PAPER._replace(gap=1525.5, spread=0.0), 3, 10**6, 0.001),
        # λ = ½, K = 1: (9 + 432 + 72·6/(⅛·4))η = 1305η and 2·652.5/(Sη): η = √(1/S)
        (PAPER._replace(gap=652.5, spread=0.0), 1, 10**6, 0.001),
    ],
)
def test_best_step_and_rounds_by_hand(c: Constants, K: int, S: int, eta: float) -> None:
    theorem = theorem_1(c, K)
    assert theorem.best_step(S) == pytest.approx(eta)
    least = 2 * c.gap / (S * K * eta) * 2  # both parts are equal where their sum is least
    promised = theorem.promise(S)
    assert promised is not None
    assert promised.total == pytest.approx(least)
    assert theorem.rounds_to(least * (1 + 1e-8)) == S
    assert theorem.best_step(2) == theorem.largest == theory.largest_step(c, K)[0], "few rounds: as large as may be"


def test_a_start_at_a_minimum_needs_no_step() -> None:
    """The spread remains, and its term falls to 0 with η, as the noise does."""
    still = PAPER._replace(gap=0.0)
    for theorem in (theorem_1(still, 3), dsgd(still), fedavg(still, 3)):
        assert theorem.best_step(10) == 0
        assert theorem.promise(10) is None
        assert theorem.rounds_to(1e-9) == 1
    nothing = still._replace(variance=0.0, spread=0.0)
    assert theorem_1(nothing, 3).best_step(10) == pytest.approx(1 / 576)


def test_a_bound_that_holds_already_takes_one_round() -> None:
    theorem = theorem_1(PAPER, 3)
    promised = theorem.promise(1)
    assert promised is not None
    assert theorem.rounds_to(promised.total) == theorem.rounds_to(math.inf) == 1


@pytest.mark.parametrize("S", [10, 10**4, 10**8])
def test_the_best_step_size_is_best(S: int) -> None:
    eta, limit = theorem_1(WORKED, 4).best_step(S), theory.largest_step(WORKED, 4)[0]
    assert 0 < eta <= limit
    best = theory.bound(WORKED, eta, 4, S).total
    assert all(
        best <= theory.bound(WORKED, other, 4, S).total + 1e-12 for other in np.geomspace(limit / 1e4, limit, 50)
    )


def test_rounds_to_a_target_are_the_fewest() -> None:
    theorem = theorem_1(WORKED, 4)
    S = theorem.rounds_to(0.1)
    assert theory.bound(WORKED, theorem.best_step(S), 4, S).total <= 0.1
    assert theory.bound(WORKED, theorem.best_step(S - 1), 4, S - 1).total > 0.1


def test_for_small_targets_twice_the_workers_need_half_the_rounds() -> None:
    """Once the noise dominates, rounds fall as 1/m: the linear speedup that the title promises."""
    few, many = (theorem_1(WORKED._replace(m=m, spread=0.0), 1).rounds_to(1e-5) for m in (8, 16))
    assert few / many == pytest.approx(2, rel=0.01)


NAN = float("nan")


@pytest.mark.parametrize(
    "change",
    [{"lam": 1.0}, {"lam": -0.1}, {"lam": NAN}, {"m": 0}, {"L": 0.0}, {"L": NAN}, {"L": math.inf}, {"variance": -1.0}]
    + [{name: NAN} for name in ("variance", "gap", "spread", "heterogeneity")],
)
def test_constants_that_no_problem_has_are_refused(change: dict[str, Any]) -> None:
    (value,) = change.values()
    calls: list[Callable[[Constants], Any]] = [
        Constants.checked,
        lambda c: theory.conditions(c, 3),
        lambda c: theory.bound(c, 0.1, 3, 4),
        lambda c: theory.descent(c, 0.1, 3),
        lambda c: theorem_1(c, 3),
        dsgd,
        lambda c: fedavg(c, 3),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=rf"the theory needs .* got .*{re.escape(repr(value))}"):
            call(PAPER._replace(**change))


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: theory.growth(0.5, 0), "K to be at least 1, got K = 0"),
        (lambda: theory.C1(1.0, 3), "0 <= λ < 1"),
        (lambda: theory.conditions(PAPER, 0), "K = 0"),
        (lambda: theory.bound(PAPER, 0.1, 3, 0), "S = 0"),
        (lambda: theory.bound(PAPER, 0.0, 3, 1), "η = 0.0"),
        (lambda: theory.bound(PAPER, NAN, 3, 1), "η = nan"),
        (lambda: theory.descent(PAPER, -1.0, 3), "η = -1.0"),
        (lambda: theory.potential(1.0, torch.ones(2, 1), torch.ones(2, 1), eta=0.0, K=1, lam=0.0), "η = 0.0"),
        (lambda: theorem_1(PAPER, 3).best_step(0), "S = 0"),
        (lambda: theory.corollary(0, 10), "m = 0"),
        (lambda: theory.corollary(4, -8), "S = -8"),
        (lambda: theory.corollary(4, 10, K=-2), "K = -2"),
        (lambda: theory.corollary(4, 10, scale=-1.0), "scale = -1.0"),
        (lambda: dsgd(PAPER).bound(-0.1, 3), "η = -0.1"),
        (lambda: dsgd(PAPER).bound(0.1, 0), "S = 0"),
        (lambda: fedavg(PAPER, 0), "K = 0"),
        (lambda: fedavg(PAPER, 3, eta_g=0.0), "η_g = 0.0"),
    ],
)
def test_what_no_run_has_is_refused(call: Callable[[], Any], what: str) -> None:
    with pytest.raises(ConfigError, match=f"the theory needs .*{re.escape(what)}"):
        call()


@pytest.mark.parametrize("eps", [0.0, -1.0, NAN])
def test_a_target_of_nothing_is_refused(eps: float) -> None:
    with pytest.raises(ConfigError, match="above 0, got ε"):
        theorem_1(WORKED, 4).rounds_to(eps)


def test_a_target_out_of_reach_is_refused() -> None:
    for theorem in (theorem_1(WORKED, 4), dsgd(WORKED), fedavg(WORKED, 4)):
        with pytest.raises(ConfigError, match=r"ε = 1e-200 would take more than 10\^18 rounds"):
            theorem.rounds_to(1e-200)


def averaged_metric(problem: Quadratics, K: int, eta: float, W: np.ndarray, S: int) -> float:
    """The left-hand side of Theorem 1: NET-FLEET asks for a gradient at each x_{s,k}, in order."""
    watched = Watched(problem, stride=1)
    last = rollout(ALGORITHMS.build({"kind": "net-fleet", "K": K, "eta": eta}), watched.problem, matrix_mix(W), S)[-1].x
    slope = measure_objective(problem, last.mean(dim=0), 0)["grad_norm2"]
    beyond = theory.metric(slope, last, problem.smoothness)  # x_{S,0} does not count
    return (watched.total - beyond) / (watched.count - 1)


@settings(max_examples=25, deadline=None)
@given(
    graph=st.sampled_from(["ring", "complete", "star", "path", "erdos-renyi"]),
    m=st.integers(2, 12),
    K=st.integers(1, 6),
    share=st.floats(0.01, 1),
    L=st.floats(0.05, 20),
    heterogeneity=st.floats(0, 30),
    S=st.integers(1, 60),
    seed=st.integers(0, 10**6),
)
def test_exact_gradients_stay_below_theorem_1(
    graph: str, m: int, K: int, share: float, L: float, heterogeneity: float, S: int, seed: int
) -> None:
    topology = make_topology(graph, workers=m, seed=seed)
    problem = Quadratics(m, d=3, mu=L / 4, L=L, heterogeneity=heterogeneity, seed=seed, dtype=torch.float64)
    value, _ = problem.objective(problem.start())
    least, _ = problem.objective(problem.optimum)
    slopes = problem.full_grad(problem.start().repeat(m, 1))
    spread = (m * consensus_error(slopes)).item()
    c = Constants(m, topology.lam, L, 0.0, (value - least).item(), spread).checked()
    eta = share * theory.largest_step(c, K)[0]
    assert averaged_metric(problem, K, eta, topology.W().toarray(), S) <= theory.bound(c, eta, K, S).total


def test_the_smoothness_of_quadratics_is_found() -> None:
    problem = Quadratics(4, d=6, mu=0.5, L=3.0, heterogeneity=2.0, dtype=torch.float64)
    each = estimates.smoothness(problem, iterations=300, tolerance=1e-6)
    average = estimates.mean_smoothness(problem, iterations=300, tolerance=1e-6)
    assert each.value == pytest.approx(3.0, rel=1e-6)
    assert each.error < 1e-4
    assert average.value == pytest.approx(np.linalg.norm(problem.A.mean(0).numpy(), 2), rel=1e-6)


def test_few_iterations_say_how_far_they_are() -> None:
    problem = Quadratics(3, d=6, dtype=torch.float64)
    rough = estimates.smoothness(problem, iterations=3)
    eigenvalues = np.linalg.eigvalsh(problem.A.numpy()).ravel()
    assert rough.error > 1e-3
    assert np.abs(eigenvalues - rough.value).min() <= rough.error


def test_the_variance_of_mini_batches_is_found() -> None:
    problem = Quadratics(4, d=6, sigma=0.7, dtype=torch.float64)
    found = estimates.variance(problem, draws=400)
    assert 0 < found.error < 0.05
    assert abs(found.value - 0.49) < 5 * found.error


def test_the_largest_of_many_equal_variances_is_not_overstated() -> None:
    problem = Quadratics(64, d=2, sigma=1.0, dtype=torch.float64)
    found = estimates.variance(problem, draws=16)
    assert abs(found.value - 1) < 4 * found.error
    *_, largest = re.findall(r"[0-9.]+", found.how)
    assert float(largest) > 1.4, "as the largest of the workers' estimates would be"


def test_a_gap_without_an_optimum_lies_between_what_descent_finds_and_the_value() -> None:
    problem = Quadratics(4, d=6, heterogeneity=1.0, dtype=torch.float64)
    exact = estimates.gap(problem, L=2.0).value
    problem.optimum = None
    found = estimates.gap(problem, L=2.0)
    assert found.value - found.error == pytest.approx(exact, rel=1e-6)
    assert exact < found.value


def test_heterogeneity_is_exact() -> None:
    problem = Quadratics(4, d=6, heterogeneity=2.0, dtype=torch.float64)
    slopes = -torch.einsum("mij,mj->mi", problem.A, problem.b)
    assert estimates.heterogeneity(problem).value == pytest.approx(slopes.var(dim=0, correction=0).sum().item())
    assert estimates.heterogeneity(Quadratics(1, d=3)).value == 0


def test_the_smoothness_of_a_network_is_below_what_a_step_shows() -> None:
    """Of a model on data, where nothing is known: no direction has more curvature than the estimate says."""
    problem = build_problem(
        {"kind": "classification", "data": "digits", "model": {"kind": "mlp", "hidden": [16]}, "partition": "iid"},
        workers=3,
        seed=0,
        engine=EngineConfig(),
    )
    each, average = estimates.smoothness(problem), estimates.mean_smoothness(problem)
    x, v = problem.start().repeat(3, 1), torch.randn(3, problem.d)
    v = v / v.norm(dim=1, keepdim=True)
    slopes = (problem.full_grad(x + 1e-2 * v) - problem.full_grad(x)).norm(dim=1) / 1e-2
    assert slopes.max().item() <= each.value + each.error
    assert 0 < average.value <= each.value + each.error


def test_a_survey_takes_what_is_known() -> None:
    problem = Quadratics(6, d=4, L=2.0, sigma=0.5, dtype=torch.float64)
    found = estimates.survey(problem).constants(6, 0.5)
    assert (found.m, found.lam, found.L, found.variance) == (6, 0.5, 2.0, 0.25)
    assert found.spread == pytest.approx(6 * found.heterogeneity + 5 * 0.25)


EXPERIMENT = """
name = "theory"
rounds = 6
[topology]
kind = "ring"
workers = 4
[problem]
kind = "quadratics"
d = 3
sigma = 0.5
[evaluation]
every = 2
full_every = 2
[[algorithms]]
kind = "net-fleet"
K = 2
eta = 0.05
[[algorithms]]
kind = "net-fleet"
label = "small"
K = 2
eta = 1e-5
[[algorithms]]
kind = "dsgd"
eta = 0.001
[[algorithms]]
kind = "fedavg"
K = 2
eta = 0.5
[[algorithms]]
kind = "led"
K = 2
eta = 0.01
"""


def test_the_command_prints_constants_step_sizes_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    arguments = ["theory", str(tmp_path / "e.toml"), "--out", str(tmp_path / "out")]
    assert main([*arguments, "--only"]) == 0
    assert not (tmp_path / "out").exists()
    said = capsys.readouterr().out
    c = estimates.survey(Quadratics(4, d=3, sigma=0.5)).constants(4, make_topology("ring", workers=4).lam)
    largest, binds = theory.largest_step(c, 2)
    assert f"η = 0.05 is {0.05 / largest:.3g} times the largest that Theorem 1 (K = 2) admits" in said
    assert f"{binds} binds" in said
    assert all(condition in said for condition in theory.conditions(c, 2)), "all eight are printed"
    assert re.search(rf"{re.escape(binds)} +│ {largest:.3g} binds", said), "and the binding one is marked"
    found = theory.bound(c, 1e-5, 2, 6)
    for name, value in (*zip(("start", "noise", "graph", "local"), found, strict=False), ("sum", found.total)):
        assert re.search(rf"│ {name} +│ [^│]+│ {re.escape(f'{value:.3g}')} ", said), "of the second method"
    assert "small: η = 1e-05 does not exceed the largest" in said
    assert "DSGD: η = 0.001 does not exceed the largest that Lian" in said
    assert f"FedAvg: η = 0.5 is {0.5 / fedavg(c, 2).largest:.3g} times the largest that Yang" in said
    assert "ζ² at x⁰" in said
    assert "LED: no theorem for this: netfleet has none for the method" in said
    assert f"{theory.bound(c, theorem_1(c, 2).best_step(1), 2, 1).total:.3g}" in said, "the predicted values"
    slope = Quadratics(4, d=3).objective(torch.zeros(3))[1].square().sum().item()
    assert f"{theorem_1(c, 2).rounds_to(0.01 * slope):,}, " in said
    assert f"{dsgd(c).rounds_to(0.01 * slope):,}, " in said
    assert main(arguments) == 0
    assert (tmp_path / "out" / "theory.png").stat().st_size > 10_000
    assert main(arguments) == 0, "a second time it takes the runs that are there"


def explained(table: str, *changes: str) -> predictions.Explained:
    experiment = load(tomllib.loads(table) | tomllib.loads("\n".join(changes)))
    return predictions.explain(experiment, build_setting(experiment, experiment.seeds[0]))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ('topology = {kind = "one-peer-hypercube", workers = 4}', "W changes from round to round"),
        ('topology = {kind = "one-peer-exponential", workers = 4}', "W changes from round to round"),
        ("network = {loss = 0.1}", "messages or workers fail"),
        ('[[algorithms]]\nkind = "net-fleet"\neta = {kind = "halve", start = 0.1, every = 2}', "the step size changes"),
        ('[[algorithms]]\nkind = "fedavg"\nparticipation = 0.5', "not everyone takes part"),
    ],
)
def test_there_is_no_theorem_for_what_the_papers_do_not_have(change: str, why: str) -> None:
    first = explained(EXPERIMENT, change).predictions[0]
    assert first.theorem is None
    assert f"no theorem for this: {why}" in first.sentence


def test_it_says_whose_constants_they_are() -> None:
    several = explained(EXPERIMENT, "seeds = [3, 5]")
    assert any("constants are those of seed 3" in sentence for sentence, _ in report.notes(several))
    assert not any("constants" in sentence for sentence, _ in report.notes(explained(EXPERIMENT)))


def test_a_server_has_its_theorem_whatever_the_graph_does() -> None:
    found = explained(EXPERIMENT, 'topology = {kind = "one-peer-hypercube", workers = 4}').predictions
    assert [p.label for p in found if p.theorem] == ["FedAvg"]


VIOLATING = """
name = "long"
rounds = 8000
topology = {kind = "complete", workers = 4}
problem = {kind = "quadratics", d = 3}
evaluation = {every = 4000, full_every = 4000}
engine = {dtype = "float64"}
[[algorithms]]
kind = "net-fleet"
K = 1
eta = 0.008
"""


def test_few_evaluations_do_not_make_a_violation() -> None:
    """The file asks for three evaluations, whose plain mean is a third of ‖∇f(x⁰)‖², far above the promise."""
    found = explained(VIOLATING)
    assert found.experiment.evaluation.every == 20  # 8,000 / 400, and less than 1/(ηL) = 62
    assert found.experiment.evaluation.full(20, 8000)
    (history,) = run_experiment(found.experiment)
    (p,) = found.predictions
    seen = predictions.measured([history], p.quantity, found.L, p.K)
    promised = p.values([int(t) for t in seen.x])
    assert (seen.mean <= list(promised.values())).all()
    assert seen.mean[-1] > promised[8000] / 10, "it is not below by much: descent on a quadratic attains half of it"


def test_a_file_that_evaluates_oftener_is_left_to_it() -> None:
    assert explained(EXPERIMENT, "evaluation = {every = 1}", "rounds = 4000").experiment.evaluation.every == 1
    assert explained(
        EXPERIMENT, "evaluation = {gradient = false}", "rounds = 4000"
    ).experiment.evaluation == Evaluation(every=10)


def test_each_theorem_is_compared_with_what_it_bounds() -> None:
    values = {p.label: p.quantity for p in explained(EXPERIMENT).predictions}
    assert values["NET-FLEET"] == values["small"] == theorems.METRIC
    assert (values["DSGD"], values["FedAvg"]) == (theorems.GRADIENT, theorems.LEAST_GRADIENT)
    records = [{"round": t, "consensus_error": 1.0, "grad_norm2": g} for t, g in ((0, 4.0), (1, 2.0), (3, 6.0))]
    records.insert(1, {"round": 0, "consensus_error": 1.0, "grad_norm2": None})

    def after(quantity: theorems.Quantity, K: int = 1) -> list[float]:
        return predictions.measured([History({}, records=records)], quantity, 2.0, K).mean.tolist()

    # ‖∇f‖² in rounds 0, 1, 2 is 4, 2, 4 (linear between 2 and 6); of two steps in a round 4, 3, 2, 3, 4, 5.
    assert after(theorems.GRADIENT) == pytest.approx([4, 10 / 3])
    assert after(theorems.GRADIENT, K=2) == pytest.approx([7 / 2, 21 / 6])
    assert after(theorems.METRIC) == pytest.approx([4 + 4, 10 / 3 + 4])
    assert after(theorems.LEAST_GRADIENT) == [4, 2]


def test_the_least_is_that_of_the_mean_over_seeds() -> None:
    """E min is below min E, and the theorem bounds the latter."""
    runs = [
        History({}, records=[{"round": t, "consensus_error": 0.0, "grad_norm2": g} for t, g in enumerate(values)])
        for values in ((1.0, 9.0, 5.0), (9.0, 1.0, 5.0))
    ]
    assert predictions.measured(runs, theorems.LEAST_GRADIENT, 1.0, 1).mean.tolist() == [5, 5]


@pytest.mark.parametrize(("factor", "words"), [(1.2, "1.2 times"), (1.0004, "just above"), (24301.2, "24,301 times")])
def test_a_factor_is_not_rounded_to_one(factor: float, words: str) -> None:
    assert predictions.times(factor) == words


def test_the_bytes_are_those_that_are_sent() -> None:
    found = explained(EXPERIMENT, "rounds = 3")
    for run, p in zip(run_experiment(found.experiment), found.predictions, strict=True):
        if p.theorem:
            assert run.last["bytes"] == 3 * p.size


def test_dsgds_bound_is_its_papers() -> None:
    # η = 1/48: 18η²mL²/(1−λ)² = 18·4·4/2304 = 1/8, D₂ = 7/8, D₁ = ½ − 1/16·8/7 = 3/7. Times 7/3:
    # 3/(48/48) = 3; (1/48)·3/8 = 1/128; 4·3/2304/(¾·7/8) = 1/126; 9·4·7/2304/(¼·7/8) = ½
    c = Constants(m=4, lam=0.5, L=1.0, variance=3.0, gap=3.0, heterogeneity=7.0)
    found = dsgd(c).bound(1 / 48, 48)
    assert terms(found) == pytest.approx((7, 7 / 384, 1 / 54, 7 / 6))
    assert found is not None
    assert found.total == pytest.approx(7 + 7 / 384 + 1 / 54 + 7 / 6)
    # a complete graph: λ = 0, η = 1/24, as before but 4·3/576/(7/8) = 1/42 and 9·4·7/576/(7/8) = ½
    assert terms(dsgd(c._replace(lam=0.0)).bound(1 / 24, 24)) == pytest.approx((7, 7 / 192, 1 / 18, 7 / 6))
    # one worker: η = 1/12, (1/12)·3/2 = 1/8; 3/144·8/7 = 1/42; 9·7/144·8/7 = ½
    assert terms(dsgd(c._replace(lam=0.0, m=1)).bound(1 / 12, 12)) == pytest.approx((7, 7 / 24, 1 / 18, 7 / 6))


@given(m=st.integers(1, 100), lam=st.floats(0, 0.999), L=st.floats(1e-3, 1e3))
def test_dsgds_largest_step_size_is_where_its_bound_ends(m: int, lam: float, L: float) -> None:
    c = Constants(m, lam, L, gap=1.0)
    limit = dsgd(c).largest
    assert limit == pytest.approx((1 - lam) / (6 * L * m**0.5))
    assert dsgd(c).bound(limit * (1 - 1e-9), 1) is not None
    assert dsgd(c).bound(limit * (1 + 1e-9), 1) is None
    assert limit * L < 1


def test_dsgds_best_step_size_and_rounds_by_hand() -> None:
    # Without noise and heterogeneity ηD₁ is to be largest: with u = (η/limit)², √u(1−u)/(2−u) is where u² − 5u + 2 = 0,
    # u = (5−√17)/2 = 0.4384. For m = 4, λ = ½, L = 1 the limit is 1/24 and ηD₁ = 0.6622·0.5616/1.5616/24 = 1/100.79.
    c = Constants(m=4, lam=0.5, L=1.0, gap=1.0)
    assert dsgd(c).best_step(10) == pytest.approx(((5 - 17**0.5) / 2) ** 0.5 / 24, rel=1e-6)
    assert dsgd(c).rounds_to(1.0) == 101
    assert dsgd(c._replace(lam=0.0)).rounds_to(1.0) == 51  # the limit is twice that


def test_fedavgs_bound_is_its_papers() -> None:
    # η = 1/20, K = 2: c = ½ − 15·4/400 = 0.35; 7/(2·100/20) = 0.7; 7/(20·8); 5·2·7/800 = 0.0875; 15·4·7/400 = 1.05
    c = Constants(m=4, lam=0.0, L=1.0, variance=7.0, gap=7.0, heterogeneity=7.0)
    found = fedavg(c, 2).bound(1 / 20, 100)
    assert terms(found) == pytest.approx((2, 1 / 8, 1 / 4, 3))
    assert found is not None
    assert found.total == pytest.approx(5.375)
    assert terms(fedavg(c, 2, eta_g=2.0).bound(1 / 20, 100)) == pytest.approx((1, 1 / 4, 1 / 4, 3))
    assert fedavg(c._replace(lam=0.9), 2).bound(1 / 20, 100) == found, "a server has no λ"
    # K = 1, η = 1/10: c as before; 7/(100/10); 7/(10·8); 5·7/200 = 0.175; 15·7/100 = 1.05
    assert terms(fedavg(c, 1).bound(1 / 10, 100)) == pytest.approx((2, 1 / 4, 1 / 2, 3))


@pytest.mark.parametrize(("K", "eta_g", "limit"), [(2, 1.0, 1 / 16), (2, 16.0, 1 / 32), (1, 8.0, 1 / 8)])
def test_fedavgs_largest_step_size_is_where_its_bound_ends(K: int, eta_g: float, limit: float) -> None:
    c = Constants(m=4, lam=0.0, L=1.0, gap=1.0)
    theorem = fedavg(c, K, eta_g)
    assert theorem.largest == pytest.approx(limit)
    assert theorem.bound(limit, 1) is not None
    assert theorem.bound(limit * (1 + 1e-9), 1) is None


def test_fedavgs_best_step_size_and_rounds_by_hand() -> None:
    # Without noise and heterogeneity η(½ − 15K²L²η²) is largest at 45K²L²η² = ½, η = 1/(√90 KL), where it is
    # η/3: the bound is 3√90/S = 28.46/S, whatever K.
    c = Constants(m=4, lam=0.0, L=1.0, gap=1.0)
    for K in (1, 3):
        assert fedavg(c, K).best_step(10) == pytest.approx(1 / (90**0.5 * K), rel=1e-6)
        assert fedavg(c, K).rounds_to(1.0) == 29


@pytest.mark.parametrize("S", [1, 100, 10**6, 10**12])
def test_the_best_step_sizes_of_the_baselines_are_best(S: int) -> None:
    c = Constants(m=4, lam=0.5, L=1.0, variance=2.0, gap=3.0, heterogeneity=0.5)
    for theorem in (dsgd(c), fedavg(c, 5)):
        others = np.geomspace(theorem.largest / 1e8, theorem.largest * (1 - 1e-9), 300)
        found = [theorem.bound(eta, S) for eta in (theorem.best_step(S), *others)]
        best, *rest = (b.total for b in found if b is not None)
        assert len(rest) == 300
        assert best <= min(rest) * (1 + 1e-12)


class Moments:
    """Exact first and second moments of NET-FLEET on quadratics, whose rounds are affine in state and noise.

    Cov = C Cᵀ is kept as C, so that for a quadratic q E q(z) = q(μ) + Σᵢ [q(μ + cᵢ) + q(μ − cᵢ) − 2 q(μ)] / 2.
    """

    def __init__(self, problem: Quadratics, W: np.ndarray, K: int, eta: float, sigma: float) -> None:
        self.problem, self.mix, self.K = problem, matrix_mix(W), K
        self.method: Any = ALGORITHMS.build({"kind": "net-fleet", "K": K, "eta": eta})
        self.shape = (problem.m, problem.d)
        self.scale = sigma / problem.d**0.5  # of each component of the noise
        self.calls: list[torch.Tensor] = []
        self.noise = torch.zeros(K, *self.shape, dtype=torch.float64)
        self.watched: Any = copy.copy(problem)
        self.watched.grad = self._grad
        first = self._flat(self._init(torch.zeros(1, *self.shape, dtype=torch.float64)))
        columns = [self._flat(self._init(unit)) - first for unit in self._units(1)]
        self.mean, self.factor = first, torch.stack(columns, dim=1) * self.scale

    def _grad(self, x: torch.Tensor, sample: Any) -> torch.Tensor:
        self.calls.append(x.clone())
        return self.problem.full_grad(x) + self.noise[len(self.calls) - 1]

    def _init(self, noise: torch.Tensor) -> Any:
        self.calls, self.noise = [], noise
        return self.method.init(self.watched, self.mix, self.problem.start().repeat(self.problem.m, 1))

    def _units(self, steps: int) -> torch.Tensor:
        n = steps * self.problem.m * self.problem.d
        return torch.eye(n, dtype=torch.float64).reshape(n, steps, *self.shape)

    def _flat(self, state: Any) -> torch.Tensor:
        return torch.stack(list(state)).flatten()

    def step(self, flat: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The state after a round, and the models x_{s,0}, …, x_{s,K−1} of it."""
        self.calls, self.noise = [], noise
        state = self.method.State(*flat.reshape(-1, *self.shape))
        after = self.method.round(self.watched, self.mix, 0, state)
        return self._flat(after), torch.stack([state.x, *self.calls[:-1]])

    def round(self, metric: Any) -> float:
        """Go on by a round; the expected sum of a quadratic function of the models at its K steps."""
        none = torch.zeros(self.K, *self.shape, dtype=torch.float64)
        mean, models = self.step(self.mean, none)
        sides = [self.step(self.mean + c, none) for c in self.factor.T]
        sides += [self.step(self.mean, unit * self.scale) for unit in self._units(self.K)]
        expected = sum(metric(x) for x in models)
        for _, moved in sides:
            away = moved - models
            expected += sum(
                (metric(x + a) + metric(x - a) - 2 * metric(x)) / 2 for x, a in zip(models, away, strict=True)
            )
        self.mean, self.factor = mean, _shorter(torch.stack([after - mean for after, _ in sides], dim=1))
        return float(expected)

    def expected(self, quadratic: Any) -> float:
        """E q of the state."""
        at = quadratic(self.mean.reshape(-1, *self.shape))
        total = at
        for c in self.factor.T:
            up, down = ((self.mean + sign * c).reshape(-1, *self.shape) for sign in (1, -1))
            total += (quadratic(up) + quadratic(down) - 2 * at) / 2
        return float(total)


def _shorter(factor: torch.Tensor) -> torch.Tensor:
    """A square factor of the same covariance."""
    return torch.linalg.qr(factor.T, mode="r")[1].T.contiguous() if factor.shape[1] > factor.shape[0] else factor


@settings(max_examples=8, deadline=None)
@given(
    graph=st.sampled_from(["ring", "complete", "star", "erdos-renyi"]),
    m=st.integers(2, 4),
    K=st.integers(1, 4),
    share=st.floats(0.01, 1),
    L=st.floats(0.1, 5),
    sigma=st.floats(0, 10),
    heterogeneity=st.floats(0, 10),
    seed=st.integers(0, 10**6),
)
@pytest.mark.slow
def test_in_expectation_the_potential_falls_and_theorem_1_holds(
    graph: str, m: int, K: int, share: float, L: float, sigma: float, heterogeneity: float, seed: int
) -> None:
    topology, S = make_topology(graph, workers=m, seed=seed), 12
    problem = Quadratics(m, d=2, mu=L / 4, L=L, heterogeneity=heterogeneity, seed=seed, dtype=torch.float64)
    value, least = (problem.objective(x)[0].item() for x in (problem.start(), problem.optimum))
    zeta2 = consensus_error(problem.full_grad(problem.start().repeat(m, 1))).item()
    c = Constants(m, topology.lam, L, sigma**2, value - least, m * zeta2 + (m - 1) * sigma**2).checked()
    eta = share * theory.largest_step(c, K)[0]
    moments = Moments(problem, topology.W().toarray(), K, eta, sigma)

    def metric(x: torch.Tensor) -> float:
        return theory.metric(measure_objective(problem, x.mean(dim=0), 0)["grad_norm2"], x, L)

    def potential(state: torch.Tensor) -> float:
        value = problem.objective(state[0].mean(dim=0))[0].item()
        return theory.potential(value, state[0], state[1], eta=eta, K=K, lam=c.lam)

    noise = theory.bound(c._replace(gap=0.0, spread=0.0), eta, K, 1).total * eta * K / 2
    before, metrics = moments.expected(potential), []
    for _ in range(S):
        metrics.append(moments.round(metric))
        after = moments.expected(potential)
        assert after <= before - eta / 2 * metrics[-1] + noise + 1e-12 * abs(before)
        before = after
    assert sum(metrics) / (S * K) <= theory.bound(c, eta, K, S).total


def test_the_moments_are_those_of_many_runs() -> None:
    topology, sigma = make_topology("ring", workers=3), 2.0
    problem = Quadratics(3, d=2, dtype=torch.float64, seed=4)
    W = topology.W().toarray()
    moments = Moments(problem, W, 2, 0.1, sigma)
    for _ in range(3):
        moments.round(lambda x: 0.0)
    states = []
    for seed in range(400):
        noisy = Quadratics(3, d=2, sigma=sigma, dtype=torch.float64, seed=4)
        noisy.seed = seed
        states.append(torch.stack(list(rollout(moments.method, noisy, matrix_mix(W), 3)[-1])).flatten())
    seen = torch.stack(states)
    spread = (moments.factor @ moments.factor.T).diagonal()
    assert ((seen.mean(dim=0) - moments.mean).abs() < 5 * (spread / 400).sqrt()).all()
    np.testing.assert_allclose(seen.var(dim=0), spread, rtol=0.4)


@pytest.mark.parametrize("partition", ["iid", {"kind": "shards", "per_worker": 1}])
def test_what_is_known_of_nonconvex_logistic_regression(partition: Any) -> None:
    need_data("a9a")
    data = "support.problems:some_of_a9a"
    problem = NonconvexLogistic(8, data, partition=partition, batch=5, alpha=0.3, dtype=torch.float64)
    x = torch.randn(problem.d, dtype=torch.float64).requires_grad_()
    (slope,) = torch.autograd.grad(problem.values(x.expand(8, -1)).mean(), x)
    torch.testing.assert_close(slope, problem.objective(x.detach())[1])
    assert estimates.smoothness(problem).value <= problem.smoothness * (1 + 1e-6)  # type: ignore[operator]
    assert estimates.variance(problem).value <= problem.variance  # type: ignore[operator]
    few, full = problem.grad(x.detach().repeat(8, 1), problem.sample(0, 1)), problem.full_grad(x.detach().repeat(8, 1))
    assert few.shape == full.shape == (8, 123)


def test_nonconvex_logistic_regression_wants_two_classes() -> None:
    with pytest.raises(ConfigError, match=r"two classes.*digits with 10 classes"):
        NonconvexLogistic(4, data="digits")


def test_curvatures_of_both_signs_do_not_confuse_the_power_iteration() -> None:
    problem = Quadratics(2, d=3, dtype=torch.float64)
    problem.A = torch.diag(torch.tensor([2.0, -2.0, 0.5], dtype=torch.float64)).repeat(2, 1, 1)
    each, average = estimates.smoothness(problem), estimates.mean_smoothness(problem)
    for found in (each, average):
        assert found.value == pytest.approx(2, rel=1e-3)
        assert found.error < 0.05
