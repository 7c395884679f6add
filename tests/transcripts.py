"""The methods as their papers write them: all workers' models in one matrix X, in the paper's order of steps.

They share nothing with the library but the problem's gradient; our rounds are cut at another place, keep other
variables, and know only their neighbours. Each yields the models after every exchange (`mixed`) or after every round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from netfleet import Problem

Array = np.ndarray
Gradient = Callable[[Array, int, int], Array]


def gradient_of(problem: Problem) -> Gradient:
    """G(X, t, k): every worker's gradient at its row of X on mini-batch (t, k)."""

    def G(X: Array, t: int, k: int) -> Array:
        return problem.grad(torch.from_numpy(X.copy()), problem.sample(t, k)).numpy().copy()

    return G


def k_gt(G: Gradient, W: Array, X: Array, eta: float, K: int, eta_s: float = 1.0) -> Iterator[Array]:
    C = np.zeros_like(X)
    for t in range(10**9):
        Q = X
        for k in range(1, K + 1):
            Q = Q - eta * (G(Q, t, k) + C)
        Z = (X - Q) / (K * eta)
        C = C - Z + W @ Z
        X = W @ (X - K * eta_s * eta * Z)
        yield X


def periodical_gt(G: Gradient, W: Array, X: Array, eta: float, K: int) -> Iterator[Array]:
    g = G(X, 0, 0)
    C = W @ g - g
    for t in range(10**9):
        g, Q = G(X, t, 1), X
        for k in range(1, K + 1):
            Q = Q - eta * (G(Q, t, k) + C)
        C = W @ (C + g) - g
        X = W @ Q
        yield X


def lu_gt(G: Gradient, W: Array, X: Array, eta: float, K: int) -> Iterator[Array]:
    g = G(X, 0, 0)
    Y = g
    for step in range(10**9):
        mixing = W if step % K == 0 else np.eye(len(W))
        X = mixing @ (X - eta * Y)
        g_next = G(X, step // K, step % K + 1)
        Y, g = mixing @ Y + g_next - g, g_next
        if step % K == K - 1:
            yield X


def dsgt(G: Gradient, W: Array, X: Array, eta: float, K: int) -> Iterator[Array]:
    g = G(X, 0, 0)
    Y = g
    for t in range(10**9):
        X = W @ X - eta * Y
        Y, g = W @ Y + G(X, t, 1) - g, G(X, t, 1)
        for k in range(2, K + 1):
            X = X - eta * G(X, t, k)
        yield X


def led(G: Gradient, W: Array, X: Array, eta: float, K: int, beta: float) -> Iterator[Array]:
    Y = np.zeros_like(X)
    for t in range(10**9):
        phi = X
        for k in range(1, K + 1):
            phi = phi - eta * G(phi, t, k) - beta * Y
        X = W @ phi
        Y = Y + phi - X
        yield X


def d2(G: Gradient, W: Array, X: Array, eta: float) -> Iterator[Array]:
    before, g_before = X, G(X, 0, 1)
    X = W @ (X - eta * g_before)
    yield X
    for t in range(1, 10**9):
        g = G(X, t, 1)
        X, before, g_before = W @ (2 * X - before - eta * (g - g_before)), X, g
        yield X


def pd_sgdm(G: Gradient, W: Array, X: Array, eta: float, K: int, beta: float) -> Iterator[Array]:
    M = np.zeros_like(X)
    for step in range(10**9):
        M = beta * M + G(X, step // K, step % K + 1)
        X = X - eta * M
        if (step + 1) % K == 0:
            X = W @ X
            yield X


def d_msgd(G: Gradient, W: Array, X: Array, eta: float, K: int, beta: float) -> Iterator[Array]:
    U = np.zeros_like(X)
    for step in range(10**9):
        U = beta * U + G(X, step // K, step % K + 1)
        X = X - eta * U
        if (step + 1) % K == 0:
            U, X = W @ U, W @ X
            yield X


def dfedavgm(G: Gradient, W: Array, X: Array, eta: float, K: int, beta: float) -> Iterator[Array]:
    for t in range(10**9):
        before, Y = X, X
        for k in range(1, K + 1):
            Y, before = Y - eta * G(Y, t, k) + beta * (Y - before), Y
        X = W @ Y
        yield X


def dfedsam(G: Gradient, W: Array, X: Array, eta: float, K: int, rho: float, gossip: int) -> Iterator[Array]:
    for t in range(10**9):
        for k in range(1, K + 1):
            g = G(X, t, k)
            ahead = np.stack([X[i] + rho * g[i] / np.linalg.norm(g[i]) for i in range(len(X))])
            X = X - eta * G(ahead, t, k)
        X = np.linalg.matrix_power(W, gossip) @ X
        yield X


def qg_dsgdm(G: Gradient, W: Array, X: Array, eta: float, beta: float, mu: float) -> Iterator[Array]:
    M = np.zeros_like(X)
    for t in range(10**9):
        before = X
        X = W @ (X - eta * (beta * M + G(X, t, 1)))
        M = mu * M + (1 - mu) * (before - X) / eta
        yield X


def momentum_tracking(G: Gradient, W: Array, X: Array, eta: float, beta: float) -> Iterator[Array]:
    U, C = G(X, 0, 0), np.zeros_like(X)
    for t in range(10**9):
        X = W @ X - eta * (U - C)
        C = W @ (C - U) + U
        U = beta * U + G(X, t, 1)
        yield X
