"""Algorithm 1 of the paper, line by line, with explicit loops over workers, neighbours and local steps.

It shares nothing with the library but the problem's gradient of one worker at a time.
"""

from __future__ import annotations

import numpy as np
import torch

from netfleet import Problem


def algorithm_1(
    problem: Problem, W: np.ndarray, eta: float, K: int, S: int
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """x_{s,0}, y_{s,0}, g_{s,0} of all workers for s = 0, …, S."""
    m = problem.m
    alone = [problem.at([i]) for i in range(m)]

    def gradient(i: int, x: np.ndarray, s: int, k: int) -> np.ndarray:
        f = alone[i]
        return f.grad(torch.from_numpy(x)[None].clone(), f.sample(s, k))[0].numpy().copy()

    x, y, g = {}, {}, {}
    for i in range(m):  # 1
        x[i] = problem.start().numpy().copy()
        g[i] = gradient(i, x[i], 0, 0)
        y[i] = g[i].copy()
    trajectory = []
    for s in range(S):  # 2
        trajectory.append(tuple(np.stack([v[i] for i in range(m)]) for v in (x, y, g)))
        new_x, new_y, new_g = {}, {}, {}
        for i in range(m):  # 3
            neighbours = [j for j in range(m) if W[i, j] != 0]  # 4 (with i itself)
            x_k = sum(W[i, j] * x[j] for j in neighbours) - eta * y[i]  # 5
            g_k = gradient(i, x_k, s, 1)  # 6
            y_k = sum(W[i, j] * y[j] for j in neighbours) + g_k - g[i]  # 7
            for k in range(1, K):  # 8
                x_k = x_k - eta * y_k  # 9
                g_next = gradient(i, x_k, s, k + 1)  # 10
                y_k = y_k + g_next - g_k  # 11
                g_k = g_next
            new_x[i], new_y[i], new_g[i] = x_k, y_k, g_k  # 13
        x, y, g = new_x, new_y, new_g
    trajectory.append(tuple(np.stack([v[i] for i in range(m)]) for v in (x, y, g)))
    return trajectory
