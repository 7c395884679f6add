"""The outer step: DiLoCo on the exact average, its kin on a graph, and which methods stay exact with it."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from netfleet import ConfigError, Topology
from netfleet.algorithms import with_local, with_outer
from netfleet.algorithms.build import algorithm_label, algorithm_table, make_algorithm, resolve_algorithm
from netfleet.algorithms.outer import Nesterov
from netfleet.problems.synthetic import Quadratics
from netfleet.runs.metrics import tracking_error
from netfleet.sites.runtime.neighbourhood import why_fixed
from support.conformance import check_engines_agree, check_lone_runs
from support.fixed_points import fixed_point
from support.problems import matrix_mix, methods, rollout

MODELS = [param for param in methods() if param.values[0].exchanges_models]
TRACKING = [param for param in MODELS if param.values[0].exact_with != "none" and param.values[0].conserves]


@pytest.mark.parametrize("method", MODELS)
def test_with_rate_1_and_no_momentum_it_is_averaging(method: Any, noisy: Quadratics, graph: Topology) -> None:
    W = matrix_mix(np.full((6, 6), 1 / 6) if method.server else graph.W().toarray())
    averaged, same = (rollout(m, noisy, W, 6) for m in (method, with_outer(method, Nesterov(momentum=0, rate=1))))
    for a, b in zip(averaged, same, strict=True):
        assert (a.x - b.x).abs().max() < 1e-12


def test_on_the_exact_average_it_is_diloco(noisy: Quadratics) -> None:
    """The inner optimizer AdamW with its own state at each worker, the outer one torch's Nesterov."""
    method = with_outer(with_local(make_algorithm({"kind": "fedavg", "K": 4, "eta": 0.02}), "adamw"))
    states = rollout(method, noisy, matrix_mix(np.full((6, 6), 1 / 6)), 5)
    theta = torch.nn.Parameter(noisy.start())
    outer = torch.optim.SGD([theta], lr=0.7, momentum=0.9, nesterov=True)
    copies = [torch.nn.Parameter(noisy.start()) for _ in range(6)]
    inner = [torch.optim.AdamW([copy], lr=0.02) for copy in copies]
    for t in range(5):
        for i, (copy, optimizer) in enumerate(zip(copies, inner, strict=True)):
            copy.data.copy_(theta.data)
            for k in range(1, 5):
                copy.grad = noisy.at([i]).grad(copy.detach()[None], noisy.at([i]).sample(t, k))[0]
                optimizer.step()
        theta.grad = theta.detach() - torch.stack([copy.detach() for copy in copies]).mean(0)
        outer.step()
        assert (states[t + 1].x - theta.detach()).abs().max() < 1e-12


@pytest.mark.parametrize("method", TRACKING)
def test_methods_that_track_gradients_stay_exact(method: Any, quadratics: Quadratics, graph: Topology) -> None:
    outer = with_outer(method.with_eta(0.02))
    W = graph.W().toarray()
    assert np.abs(fixed_point(outer, quadratics, W) - quadratics.optimum.numpy()).max() < 1e-8
    last = rollout(
        with_outer(method.with_eta(0.02), {"kind": "nesterov", "momentum": 0.3}), quadratics, matrix_mix(W), 600
    )
    assert (last[-1].x - quadratics.optimum).abs().max() < 1e-6  # and get there
    error = tracking_error(last[-1])
    assert error is not None
    assert error < 1e-11


@pytest.mark.parametrize("kind", ["net-fleet", "fedavg", "k-gt"])
def test_an_outer_step_keeps_the_promises_of_a_method(kind: str, noisy: Quadratics) -> None:
    method = with_outer(make_algorithm({"kind": kind, "K": 3, "eta": 0.02}))
    check_lone_runs(method, noisy)
    check_engines_agree(method, noisy, "erdos-renyi")


def test_what_is_conserved_is_fed_by_the_argument_behind_the_change() -> None:
    method = with_outer(make_algorithm("net-fleet"))
    assert method.conserves == ("y", 2)
    assert why_fixed(method) is None


def test_an_outer_step_survives_its_table_and_pickle() -> None:
    table = resolve_algorithm({"kind": "k-gt", "outer": "nesterov", "local": "momentum"})
    assert table["outer"] == {"kind": "nesterov", "momentum": 0.9, "rate": 0.7}
    method = make_algorithm(table)
    assert algorithm_table(method) == table
    assert pickle.loads(pickle.dumps(method)) == method
    assert method.title == algorithm_label(table) == "K-GT, momentum, outer nesterov"


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "learns from differences": ("led", "nesterov", "does more with an exchange"),
    "sends differences": ("scaffold", "nesterov", "does more with an exchange"),
    "two exchanges": ({"kind": "dfedsam", "gossip": 2}, "nesterov", "does more with an exchange"),
    "momentum": ("k-gt", {"kind": "nesterov", "momentum": 1.0}, r"outer: momentum, the momentum, must lie in \[0, 1\)"),
    "rate": ("k-gt", {"kind": "nesterov", "rate": -1}, "outer: rate must be a finite number above 0"),
    "an unknown kind": ("k-gt", "nestrov", "did you mean 'nesterov'"),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_cannot_have_an_outer_step_is_refused(case: str) -> None:
    kind, outer, words = REFUSED[case]
    with pytest.raises(ConfigError, match=words):
        with_outer(make_algorithm(kind), outer)
