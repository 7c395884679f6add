"""Every registered algorithm keeps every promise; a new one gets all of these by being registered."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import torch

from netfleet import Algorithm, ConfigError, Mix, Topology, algorithms, make_topology
from netfleet.algorithms import ALGORITHMS, State
from netfleet.engines.loop import Counted
from netfleet.problems.synthetic import Quadratics
from netfleet.runs.metrics import tracking_error
from support.conformance import assert_close, check_engines_agree, check_lone_runs, run
from support.problems import digits_problem, matrix_mix, methods, rollout

every_method = pytest.mark.parametrize("method", methods())


@every_method
def test_without_mixing_a_stacked_run_is_m_lone_runs(method: Algorithm, noisy: Any) -> None:
    check_lone_runs(method, noisy)


@every_method
def test_relabelling_the_workers_permutes_the_result(method: Algorithm, noisy: Any, graph: Topology) -> None:
    order = [3, 0, 5, 1, 4, 2]
    W = graph.W().toarray()
    plain = rollout(method, noisy, matrix_mix(W), 5)[-1]
    relabelled = rollout(method, noisy.at(order), matrix_mix(W[np.ix_(order, order)]), 5)[-1]
    assert_close(relabelled, type(plain)(*(part[order] for part in plain)), 1e-12)


@every_method
def test_the_simulator_equals_the_in_memory_peers(method: Algorithm, noisy: Any) -> None:
    check_engines_agree(method, noisy, "erdos-renyi")


@pytest.mark.parametrize("kind", ["one-peer-exponential", "random-matching"])
@pytest.mark.parametrize("name", ["net-fleet", "gt-sgd", "dfedsam"])  # by how often and how much they exchange
def test_the_simulator_equals_the_in_memory_peers_on_graphs_that_vary(name: str, noisy: Any, kind: str) -> None:
    check_engines_agree(ALGORITHMS.build({"kind": name, "eta": 0.05}), noisy, kind)


def each_on_one_model(*others: str) -> list[Any]:
    """Every method on the MLP, and NET-FLEET on other models: how a gradient is computed is not the method's."""
    more = [pytest.param(ALGORITHMS.build("net-fleet"), model, id=f"net-fleet-{model}") for model in others]
    return [*(pytest.param(*param.values, "mlp", id=param.id) for param in methods()), *more]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "model"), each_on_one_model("cnn"))
def test_the_simulator_equals_one_thread_per_worker_on_digits(method: Algorithm, model: str, ring: Topology) -> None:
    problem = digits_problem(5, model)
    ours, theirs = run("simulator", method, problem, ring, 3), run("threads", method, problem, ring, 3)
    assert_close(ours.snapshots[-1].state, theirs.snapshots[-1].state, 1e-5)


@pytest.mark.parametrize(("method", "model"), each_on_one_model("cnn", "softmax"))
def test_results_are_bit_identical_for_any_number_of_threads(method: Algorithm, model: str, ring: Topology) -> None:
    one = run("simulator", method, digits_problem(5, model, threads=1), ring, threads=1).snapshots[-1].state
    for threads in (2, 3):
        many = run("simulator", method, digits_problem(5, model, threads=threads), ring, threads=threads)
        for name, a, b in zip(one._fields, one, many.snapshots[-1].state, strict=True):
            assert torch.equal(a, b), name


@every_method
def test_a_replayed_round_is_bit_identical(method: Algorithm, logistic: Any, graph: Topology) -> None:
    mix = matrix_mix(graph.W().toarray())
    states = rollout(method, logistic, mix, 4)
    again = method.round(logistic, mix, 2, states[2])  # type: ignore[arg-type]
    for a, b in zip(again, states[3], strict=True):
        assert torch.equal(a, b)


@every_method
def test_one_worker_is_enough(method: Algorithm) -> None:
    problem = Quadratics(1, d=3, dtype=torch.float64)
    last = run("simulator", method, problem, make_topology("ring", workers=1), 200).snapshots[-1]
    assert (last.state.x[0] - problem.optimum).norm() < 1e-3  # exact gradients: every method is gradient descent
    assert last.bytes == 0


@every_method
def test_identical_workers_agree_and_reach_the_optimum(method: Algorithm, graph: Topology) -> None:
    problem = Quadratics(6, d=3, dtype=torch.float64)
    problem.A[:], problem.b[:] = problem.A[0], problem.b[0]
    last = rollout(method, problem, matrix_mix(graph.W().toarray()), 400)[-1]
    assert (last.x - last.x.mean(0)).abs().max() < 1e-12
    assert (last.x - problem.b[0]).abs().max() < 1e-3


@every_method
def test_what_a_tracking_method_conserves_stays_zero(method: Algorithm, noisy: Any, graph: Any) -> None:
    for state in rollout(method, noisy, matrix_mix(graph.W().toarray()), 20):
        error = tracking_error(state)
        if error is None:
            pytest.skip(f"{method.title} does not track gradients")
        assert error < 1e-11


@every_method
@pytest.mark.slow
def test_every_tensor_of_a_round_is_on_the_problems_device(method: Algorithm) -> None:
    # Torch's "meta" device computes nothing, but refuses to mix devices as an accelerator does.
    problem = Quadratics(6, d=3)
    problem.A, problem.b, problem.device = problem.A.to("meta"), problem.b.to("meta"), torch.device("meta")
    f, mix = Counted(problem), matrix_mix(torch.empty(6, 6, device="meta"))
    state = method.init(f, mix, torch.empty(6, 3, device="meta"))  # type: ignore[arg-type]
    for t in range(2):
        state = method.round(f, mix, t, state)  # type: ignore[arg-type]
    assert all(part.device.type == "meta" for part in state)


@every_method
def test_hyper_parameters_are_frozen_and_cited(method: Algorithm) -> None:
    assert dataclasses.is_dataclass(method)
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.eta = 1.0  # type: ignore[misc]
    assert "@" in method.citation
    assert "year" in method.citation
    assert not re.search(r"\{['\"]\w\}", method.citation), "an accent lost its backslash"
    assert method.assumes in ("none", "bounded dissimilarity", "bounded gradients", "none stated")
    assert method.State._fields[0] == "x"  # type: ignore[attr-defined]


def test_every_registered_method_can_be_imported_from_one_place() -> None:
    exported = {getattr(algorithms, name) for name in algorithms.__all__} - {ALGORITHMS, Algorithm, Mix, State}
    exported -= {algorithms.with_local, algorithms.with_outer}
    assert exported == {ALGORITHMS[kind] for kind in ALGORITHMS}


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@pytest.mark.parametrize("eta", [0.0, -0.1, float("nan"), float("inf")])
def test_a_step_size_that_is_not_positive_is_refused(name: str, eta: float) -> None:
    with pytest.raises(ConfigError, match="step size must be a finite number above 0"):
        ALGORITHMS.build({"kind": name, "eta": eta})


@every_method
def test_the_step_size_follows_its_schedule(method: Algorithm, quadratics: Any, graph: Topology) -> None:
    mix = matrix_mix(graph.W().toarray())
    halving = dataclasses.replace(method, eta={"kind": "halve", "start": 0.05, "every": 2})
    constant = dataclasses.replace(method, eta=0.05)
    ours, theirs = rollout(halving, quadratics, mix, 3), rollout(constant, quadratics, mix, 3)
    assert torch.equal(ours[2].x, theirs[2].x)
    assert not torch.equal(ours[3].x, theirs[3].x)
