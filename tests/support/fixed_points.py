"""Shared by several tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from netfleet import Algorithm, Problem
from netfleet.algorithms import ALGORITHMS
from netfleet.problems.synthetic import Quadratics
from support.problems import matrix_mix, rollout

EXACT = 1e-12


def build(kind: str, **params: Any) -> Algorithm:
    return ALGORITHMS.build({"kind": kind, **params})


def dense(topology: Any) -> np.ndarray:
    return topology.W().toarray()


def fixed_point(method: Algorithm, problem: Quadratics, W: np.ndarray) -> np.ndarray:
    """Where the models come to rest: with exact gradients a round is an affine map s ↦ M s + c of all that is kept.

    What the map conserves, it keeps from the start.
    """
    mix = matrix_mix(W)
    start = method.init(problem, mix, problem.start().repeat(problem.m, 1))  # type: ignore[arg-type]
    shape = torch.stack(list(start)).shape

    def step(s: np.ndarray) -> np.ndarray:
        state = type(start)(*torch.from_numpy(s.reshape(shape)))
        return torch.stack(list(method.round(problem, mix, 1, state))).numpy().ravel()  # type: ignore[arg-type]

    n = int(np.prod(shape))
    c = step(np.zeros(n))
    gap = np.eye(n) - np.stack([step(unit) - c for unit in np.eye(n)], axis=1)
    U, sizes, _ = np.linalg.svd(gap)
    conserved = U[:, sizes < 1e-10].T  # vᵀ(I − M) = 0
    assert np.abs(conserved @ c).max(initial=0) < 1e-10
    s0 = torch.stack(list(start)).numpy().ravel()
    s = np.linalg.lstsq(np.vstack([gap, conserved]), np.concatenate([c, conserved @ s0]), rcond=None)[0]
    assert np.abs(step(s) - s).max() < 1e-10
    return s.reshape(shape)[0]


def assert_same_models(one: Algorithm, other: Algorithm, problem: Problem, W: np.ndarray) -> None:
    for a, b in zip(*(rollout(m, problem, matrix_mix(W), 10) for m in (one, other)), strict=True):
        assert (a.x - b.x).abs().max() < EXACT
