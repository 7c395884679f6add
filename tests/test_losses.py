"""Sites that are lost, leave, come back or come anew: the sum over those who are there stays exact."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from test_node import DIGITS
from torch import Tensor
from trial import Trial, free_ports, trial

from netfleet.cli import main
from netfleet.p2p.status import components, invariant
from netfleet.problems.synthetic import Quadratics

M = 8
QUADRATICS: dict[str, Any] = {
    "rounds": 400,
    "topology": {"kind": "watts-strogatz", "p": 0.0, "workers": M},  # in one piece without any two of them
    "problem": {"kind": "quadratics", "d": 6, "heterogeneity": 3.0},
    "algorithms": [{"kind": "net-fleet", "K": 3, "eta": 0.08}],
    "evaluation": {"every": 100},
    "engine": {"dtype": "float64"},
}
PATIENCE = 2.0


def gap(sites: Trial, names: list[str]) -> float:
    """‖Σ(y − g)‖ over some sites, from their disks."""
    states = [sites.state(name) for name in names]
    return float(torch.stack([state["y"] - state["g"] for state in states]).sum(dim=0).norm())


def optimum(problem: Quadratics, workers: list[int]) -> Tensor:
    A, b = problem.A[workers], problem.b[workers]
    return torch.linalg.solve(A.sum(dim=0), (A @ b[..., None]).sum(dim=0))[:, 0]


def quadratics(workers: int = M) -> Quadratics:
    return Quadratics(workers, d=6, heterogeneity=3.0, seed=0, dtype=torch.float64)


def check_optimum(sites: Trial, names: list[str], expected: Tensor) -> None:
    for name in names:
        assert torch.allclose(sites.model(name)["x"], expected, atol=1e-8), name


def test_two_of_eight_lost_for_good(tmp_path: Path) -> None:
    dice = random.Random(3)
    with trial(tmp_path, QUADRATICS, M, PATIENCE) as sites:
        sites.start()
        victims = dice.sample(sites.names, 2)
        for victim in victims:
            sites.reach(dice.randint(10, 80), victim)
            sites.kill(victim)
        rest = [name for name in sites.names if name not in victims]
        assert set(sites.wait(*rest).values()) == {0}
        assert gap(sites, rest) < 1e-12
        check_optimum(sites, rest, optimum(quadratics(), [int(name[1:]) for name in rest]))
        lost = {event["neighbour"] for name in rest for event in sites.events(name, "lost")}
        assert lost == set(victims)
