"""Methods with a server: the exact average, some workers at a time."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from netfleet import Algorithm, ConfigError, Problem, make_topology, simulate
from netfleet.algorithms import ALGORITHMS
from netfleet.engines import Job, make_engine
from netfleet.problems.synthetic import Logistic
from netfleet.randomness import generator
from netfleet.runs.build import network_for
from netfleet.topology.server import CentralServer
from support import transcripts
from support.fixed_points import EXACT, assert_same_models, build, fixed_point
from support.problems import Memory, digits_problem, matrix_mix, rollout

J = np.full((6, 6), 1 / 6)
SERVER_METHODS = sorted(name for name in ALGORITHMS if ALGORITHMS[name].server)  # type: ignore[attr-defined]


def run(method: Algorithm, problem: Problem, rounds: int, engine: str = "simulator", seed: int = 0) -> list[Any]:
    memory = Memory()
    network = network_for(method, make_topology("ring", workers=problem.m), seed)
    make_engine(engine).run(Job(problem, network, method, rounds, memory, None, 1))
    return memory.snapshots


def everyone(t: int) -> list[int]:
    return list(range(6))


def assert_models(snapshots: list[Any], models: Any, W: np.ndarray | None = None) -> None:
    for snapshot, expected in zip(snapshots[1:], models, strict=True):
        x = snapshot.state.x.numpy()
        assert np.abs((x if W is None else W @ x) - expected).max() < EXACT


@pytest.mark.parametrize("problem", ["noisy", "logistic"])
def test_fedavg_is_its_papers(request: Any, problem: str) -> None:
    f = request.getfixturevalue(problem)
    start = f.start().repeat(6, 1).numpy()
    G = transcripts.gradient_of(f)
    assert_models(run(build("fedavg", K=3, eta=0.1), f, 6), islice(transcripts.fedavg(G, start, 0.1, 3, everyone), 6))


@pytest.mark.parametrize("participation", [1.0, 0.5, 0.2])
def test_generalized_fedavg_is_its_papers(noisy: Problem, participation: float) -> None:
    method = build("generalized-fedavg", K=3, eta=0.1, eta_g=1.3, participation=participation)
    chosen = CentralServer(6, participation, seed=4).chosen
    start, G = noisy.start().repeat(6, 1).numpy(), transcripts.gradient_of(noisy)
    assert_models(run(method, noisy, 6, seed=4), islice(transcripts.fedavg(G, start, 0.1, 3, chosen, 1.3), 6))


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("problem", ["noisy", "logistic"])
def test_scaffold_is_its_papers(request: Any, problem: str, option: str, participation: float) -> None:
    f = request.getfixturevalue(problem)
    method = build("scaffold", K=3, eta=0.1, eta_g=0.8, option=option, participation=participation)
    chosen = CentralServer(6, participation, seed=4).chosen
    start, G = f.start().repeat(6, 1).numpy(), transcripts.gradient_of(f)
    assert_models(run(method, f, 6, seed=4), islice(transcripts.scaffold(G, start, 0.1, 3, chosen, 0.8, option), 6))


def test_vrl_sgd_is_its_papers(noisy: Problem) -> None:
    start, G = noisy.start().repeat(6, 1).numpy(), transcripts.gradient_of(noisy)
    assert_models(run(build("vrl-sgd", K=3, eta=0.1), noisy, 6), islice(transcripts.vrl_sgd(G, start, 0.1, 3), 6), J)


@pytest.mark.parametrize("kind", ["scaffnew", "proxskip"])
def test_proxskip_is_its_papers(noisy: Problem, graph: Any, kind: str) -> None:
    def steps(t: int) -> list[int]:
        return list(range(1, int(generator("proxskip", 2, t).geometric(1 / 4)) + 1))

    assert len({len(steps(t)) for t in range(8)}) > 2
    W = J if kind == "scaffnew" else graph.W().toarray()
    start, G = noisy.start().repeat(6, 1).numpy(), transcripts.gradient_of(noisy)
    states = rollout(build(kind, K=4, eta=0.1), noisy, matrix_mix(W), 8)[1:]
    for state, expected in zip(states, transcripts.proxskip(G, W, start, 0.1, 1 / 4, steps), strict=False):
        assert np.abs(W @ state.x.numpy() - expected).max() < EXACT


def test_svrg_and_spider_are_their_papers(logistic: Any) -> None:
    start, G = logistic.start().repeat(6, 1).numpy(), transcripts.gradient_of(logistic)

    def full(X: np.ndarray) -> np.ndarray:
        return logistic.full_grad(torch.from_numpy(X.copy())).numpy()

    svrg, spider = build("svrg", K=2, eta=0.1, period=3), build("spider", eta=0.1, period=3)
    assert_models(run(svrg, logistic, 8), islice(transcripts.svrg(G, full, start, 0.1, 2, 3), 8))
    assert_models(run(spider, logistic, 8), islice(transcripts.spider(G, full, start, 0.1, 3), 8))


CORRECTED = [
    ("parallel-sgd", {}),
    ("scaffold", {"K": 5}),
    ("scaffold", {"K": 5, "option": "I"}),
    ("scaffold", {"K": 5, "participation": 0.5}),
    ("scaffold", {"K": 5, "option": "I", "participation": 0.34}),
    ("vrl-sgd", {"K": 5}),
    ("scaffnew", {"K": 5}),
    ("svrg", {"K": 5}),
    ("spider", {}),
]


@pytest.mark.parametrize(("kind", "params"), CORRECTED)
def test_corrected_methods_reach_the_optimum_of_heterogeneous_quadratics(
    quadratics: Any, kind: str, params: dict[str, Any]
) -> None:
    last = run(build(kind, eta=0.1, **params), quadratics, 500)[-1].state
    assert (last.x - quadratics.optimum).abs().max() < 1e-10


def test_proxskip_reaches_the_optimum_over_a_graph(graph: Any, quadratics: Any) -> None:
    last = rollout(build("proxskip", K=5, eta=0.06), quadratics, matrix_mix(graph.W().toarray()), 1500)[-1]
    assert (last.x - quadratics.optimum).abs().max() < 1e-10


@pytest.mark.parametrize(("kind", "params"), [("fedavg", {"K": 5}), ("generalized-fedavg", {"K": 5, "eta_g": 1.5})])
def test_fedavg_stops_at_its_biased_fixed_point(quadratics: Any, kind: str, params: dict[str, Any]) -> None:
    # x* of FedAvg solves Σᵢ (I − (I − ηAᵢ)ᴷ)(x − bᵢ) = 0, whatever the step size of the server.
    A, b, eta = quadratics.A.numpy(), quadratics.b.numpy(), 0.03
    pull = [np.eye(4) - np.linalg.matrix_power(np.eye(4) - eta * A[i], 5) for i in range(6)]
    expected = np.linalg.solve(sum(pull), sum(p @ b[i] for i, p in enumerate(pull)))
    method = build(kind, eta=eta, **params)
    limit = run(method, quadratics, 800)[-1].state.x.numpy()
    assert np.abs(limit - expected).max() < 1e-11
    assert np.abs(fixed_point(method, quadratics, J) - expected).max() < 1e-9
    assert np.abs(expected - quadratics.optimum.numpy()).max() > 1e-3


def test_variance_reduction_reaches_the_optimum_with_mini_batches_where_sgd_does_not() -> None:
    problem = Logistic(6, d=4, samples=20, batch=3, seed=2, dtype=torch.float64)

    def distance(kind: str, **params: Any) -> float:
        last = run(build(kind, eta=0.4, **params), problem, 600)[-1].state
        return (last.x[0] - problem.optimum).norm().item()

    assert distance("svrg") < 1e-10
    assert distance("spider") < 1e-10
    assert distance("parallel-sgd") > 1e-3


SAME = [
    ("scaffold", {"K": 1}, "parallel-sgd", {}),
    ("scaffold", {"K": 1, "option": "I"}, "parallel-sgd", {}),
    ("generalized-fedavg", {"K": 4, "eta_g": 1.0}, "fedavg", {"K": 4}),
    ("fedavg", {"K": 1}, "parallel-sgd", {}),
    ("vrl-sgd", {"K": 4}, "led", {"K": 4}),
]


@pytest.mark.parametrize(("kind", "params", "special", "like"), SAME)
def test_special_cases_agree(
    noisy: Problem, kind: str, params: dict[str, Any], special: str, like: dict[str, Any]
) -> None:
    eta = {"kind": "halve", "start": 0.1, "every": 3}
    assert_same_models(build(kind, eta=eta, **params), build(special, eta=eta, **like), noisy, J)


@pytest.mark.parametrize("kind", ["k-gt", "led", "vrl-sgd"])
def test_tracking_on_the_exact_average_is_scaffold(noisy: Problem, kind: str) -> None:
    # SCAFFOLD's rounds end with the exchange, the others' begin with it.
    scaffold = rollout(build("scaffold", K=4, eta=0.1), noisy, matrix_mix(J), 10)
    theirs = rollout(build(kind, K=4, eta=0.1), noisy, matrix_mix(J), 10)
    for a, b in zip(scaffold, theirs, strict=True):
        assert (a.x - b.x.mean(0)).abs().max() < EXACT


def test_k_gt_and_scaffold_agree_with_any_step_of_the_server(noisy: Problem) -> None:
    scaffold = rollout(build("scaffold", K=4, eta=0.1, eta_g=1.7), noisy, matrix_mix(J), 10)
    k_gt = rollout(build("k-gt", K=4, eta=0.1, eta_s=1.7), noisy, matrix_mix(J), 10)
    for a, b in zip(scaffold, k_gt, strict=True):
        assert (a.x - b.x.mean(0)).abs().max() < 1e-11


def test_ld_sgd_on_the_exact_average_is_fedavg(noisy: Problem) -> None:
    ours, theirs = (rollout(build(kind, K=4, eta=0.1), noisy, matrix_mix(J), 10) for kind in ("ld-sgd", "fedavg"))
    for a, b in zip(ours, theirs, strict=True):
        assert (a.x.mean(0) - b.x).abs().max() < EXACT


def test_svrg_with_a_snapshot_in_every_round_is_gradient_descent(logistic: Any) -> None:
    x = logistic.start()[None]
    for snapshot in run(build("svrg", K=1, period=1, eta=0.1), logistic, 5)[1:]:
        x = x - 0.1 * logistic.full_grad(x.expand(6, -1)).mean(0)
        assert (snapshot.state.x - x).abs().max() < EXACT


@pytest.mark.parametrize("kind", SERVER_METHODS)
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_the_simulator_equals_one_thread_per_worker_over_a_server(
    noisy: Problem, kind: str, participation: float
) -> None:
    params = {"participation": participation} if hasattr(ALGORITHMS[kind], "participation") else {}
    method = build(kind, eta=0.05, **params)
    ours, theirs = run(method, noisy, 5), run(method, noisy, 5, "threads")
    for a, b in zip(ours, theirs, strict=True):
        assert (a.bytes, a.samples) == (b.bytes, b.samples)
        for left, right in zip(a.state, b.state, strict=True):
            assert (left - right).abs().max() < EXACT


def test_who_sits_out_costs_nothing_and_keeps_what_it_has(noisy: Problem) -> None:
    method = build("scaffold", K=3, eta=0.1, participation=0.34)
    network = CentralServer(6, 0.34, seed=0)
    snapshots = run(method, noisy, 20)
    seen = set()
    for t in range(20):
        before, after = snapshots[t].state, snapshots[t + 1].state
        assert len(network.chosen(t)) == 2
        for i in range(6):
            assert torch.equal(before.v_i[i], after.v_i[i]) == (i not in network.chosen(t))
        assert (after.x == after.x[0]).all()
        seen |= set(network.chosen(t))
    assert seen == set(range(6))
    assert snapshots[-1].samples == 20 * 2 * 3
    assert snapshots[-1].bytes == 20 * (2 * 2) * 2 * noisy.d * 8  # rounds, messages, vectors, entries of 8 bytes


def test_partial_participation_trains_a_network_with_running_statistics() -> None:
    class Net(torch.nn.Sequential):
        def __init__(self) -> None:
            super().__init__(
                torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 10)
            )

    with torch.random.fork_rng():
        torch.manual_seed(0)
        problem = digits_problem(4, Net(), batch_norm="local", dtype=torch.float64)
    method = build("fedavg", K=2, eta=0.1, participation=0.5)
    network = CentralServer(4, 0.5, seed=0)
    ours, theirs = run(method, problem, 3), run(method, problem, 3, "threads")
    assert (ours[-1].buffers - theirs[-1].buffers).abs().max() < EXACT
    for t in range(3):
        moved = (ours[t + 1].buffers != ours[t].buffers).any(dim=1)
        assert moved.nonzero()[:, 0].tolist() == network.chosen(t)


def test_every_worker_has_the_servers_model_to_the_bit(noisy: Problem) -> None:
    for kind in ("fedavg", "scaffold", "svrg", "spider", "parallel-sgd"):
        x = run(build(kind, eta=0.05), noisy, 4)[-1].state.x
        assert (x == x[0]).all(), kind


def test_a_server_method_runs_beside_the_others() -> None:
    history = simulate("fedavg", topology="ring", problem="quadratics", workers=8, rounds=3)
    assert history.last["bytes"] == 3 * 16 * 10 * 4
    assert history.last["consensus_error"] == 0


@pytest.mark.parametrize("kind", ["fedavg", "generalized-fedavg", "scaffold"])
@pytest.mark.parametrize("share", [0.0, 1.5, -1.0])
def test_a_share_of_the_workers_that_is_none_is_refused(kind: str, share: float) -> None:
    with pytest.raises(ConfigError, match="participation, the share of workers that take part in a round"):
        build(kind, participation=share)


@pytest.mark.parametrize("kind", ["svrg", "spider"])
def test_a_period_of_no_rounds_is_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match="period, in rounds, must be at least 1, got 0"):
        build(kind, period=0)
