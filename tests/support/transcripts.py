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


# Methods with a server: one model x, and a loop over the workers that it chose.

Chosen = Callable[[int], list[int]]


def fedavg(G: Gradient, X: Array, eta: float, K: int, chosen: Chosen, eta_g: float = 1.0) -> Iterator[Array]:
    x, m = X[0], len(X)
    for t in range(10**9):
        Y = np.tile(x, (m, 1))
        for k in range(1, K + 1):
            Y = Y - eta * G(Y, t, k)
        x = x + eta_g * sum(Y[i] - x for i in chosen(t)) / len(chosen(t))
        yield np.tile(x, (m, 1))


def scaffold(
    G: Gradient, X: Array, eta: float, K: int, chosen: Chosen, eta_g: float = 1.0, option: str = "II"
) -> Iterator[Array]:
    x, m = X[0], len(X)
    c, c_i = np.zeros_like(x), np.zeros_like(X)
    for t in range(10**9):
        Y = np.tile(x, (m, 1))
        for k in range(1, K + 1):
            Y = Y - eta * (G(Y, t, k) - c_i + c)
        at_x = G(np.tile(x, (m, 1)), t, K + 1)
        dx, dc = np.zeros_like(x), np.zeros_like(x)
        new = c_i.copy()
        for i in chosen(t):
            new[i] = at_x[i] if option == "I" else c_i[i] - c + (x - Y[i]) / (K * eta)
            dx, dc = dx + (Y[i] - x) / len(chosen(t)), dc + (new[i] - c_i[i]) / len(chosen(t))
        x, c, c_i = x + eta_g * dx, c + len(chosen(t)) / m * dc, new
        yield np.tile(x, (m, 1))


def vrl_sgd(G: Gradient, X: Array, eta: float, K: int) -> Iterator[Array]:
    delta = np.zeros_like(X)
    for t in range(10**9):
        for k in range(1, K + 1):
            X = X - eta * (G(X, t, k) - delta)
        mean = np.tile(X.mean(0), (len(X), 1))
        delta, X = delta + (mean - X) / (K * eta), mean
        yield X


def proxskip(G: Gradient, W: Array, X: Array, eta: float, p: float, steps: Chosen) -> Iterator[Array]:
    h = np.zeros_like(X)
    for t in range(10**9):
        for k in steps(t):
            ahead = X - eta * (G(X, t, k) - h)
            X = W @ ahead if k == steps(t)[-1] else ahead
            h = h + p / eta * (X - ahead)
        yield X


def svrg(G: Gradient, full: Callable[[Array], Array], X: Array, eta: float, K: int, period: int) -> Iterator[Array]:
    for t in range(10**9):
        if t % period == 0:
            snapshot, mu = X, full(X).mean(0)
        Y = X
        for k in range(1, K + 1):
            Y = Y - eta * (G(Y, t, k) - G(snapshot, t, k) + mu)
        X = np.tile(Y.mean(0), (len(X), 1))
        yield X


def spider(G: Gradient, full: Callable[[Array], Array], X: Array, eta: float, period: int) -> Iterator[Array]:
    before, v = X, np.zeros_like(X[0])
    for t in range(10**9):
        v = full(X).mean(0) if t % period == 0 else v + (G(X, t, 1) - G(before, t, 1)).mean(0)
        X, before = X - eta * v, X
        yield X
