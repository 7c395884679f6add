"""Shared by several tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from netfleet import Experiment
from netfleet.problems.synthetic import Quadratics
from netfleet.runs.config import experiment
from netfleet.runs.run import run_experiment
from netfleet.sites.network.rate_limit import RateLimit
from support.site_processes import SiteProcesses

DIGITS: dict[str, Any] = {
    "rounds": 12,
    "topology": {"kind": "erdos-renyi", "p": 0.5, "workers": 8},
    "problem": {
        "kind": "classification",
        "data": "digits",
        "partition": {"kind": "shards"},
        "model": {"kind": "mlp", "hidden": [16]},
        "batch": 16,
    },
    "algorithms": [{"kind": "net-fleet", "K": 4, "eta": 0.05}],
    "evaluation": {"every": 4},
    "engine": {"dtype": "float64"},
}


def simulated(table: dict[str, Any]) -> torch.Tensor:
    """The models of all workers in the end, in the simulator."""
    settings: Experiment = experiment({**table, "engine": {**table["engine"], "kind": "simulator"}})
    (history,) = run_experiment(settings)
    assert history.final is not None
    return history.final.state.x


def under_way(limit: RateLimit, name: str) -> int:
    """How many requests of a caller are being served."""
    return limit._accounts[name].under_way if name in limit._accounts else 0


M = 4


QUADRATICS: dict[str, Any] = {
    "rounds": 90,
    "topology": {"kind": "ring", "workers": M, "weights": "metropolis"},
    "problem": {"kind": "quadratics", "d": 6, "mu": 1.0, "L": 1.5, "heterogeneity": 3.0},
    "algorithms": [{"kind": "net-fleet", "K": 4, "eta": 0.05}],
    "evaluation": {"every": 50},
    "engine": {"dtype": "float64"},
}


def gap(sites: SiteProcesses, names: list[str]) -> float:
    """‖Σ(y − g)‖ over some sites, from their disks."""
    states = [sites.state(name) for name in names]
    return float(torch.stack([state["y"] - state["g"] for state in states]).sum(dim=0).norm())


def optimum(problem: Quadratics, workers: list[int]) -> Tensor:
    A, b = problem.A[workers], problem.b[workers]
    return torch.linalg.solve(A.sum(dim=0), (A @ b[..., None]).sum(dim=0))[:, 0]


def quadratics(workers: int = M) -> Quadratics:
    return Quadratics(workers, d=6, mu=1.0, L=1.5, heterogeneity=3.0, seed=0, dtype=torch.float64)


def check_optimum(sites: SiteProcesses, names: list[str], expected: Tensor, atol: float = 1e-4) -> None:
    """All of these sites are near it; without the ledger they would be off by 0.1 and more."""
    for name in names:
        assert torch.allclose(sites.model(name)["x"], expected, rtol=0, atol=atol), name
