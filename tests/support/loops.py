"""Ordinary training loops of a user, with a torch optimizer or one of netfleet."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()


@functools.cache
def batches(count: int = 12) -> list[tuple[Tensor, Tensor]]:
    """The batches of a DataLoader."""
    numbers = torch.Generator().manual_seed(1)
    x = torch.randn(4 * count, 3, generator=numbers, dtype=torch.float64)
    return list(DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True).sin()), batch_size=4))


def error(model: Callable[..., Any], batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def train(model: nn.Module, optimizer: Any, after: Callable[[], object] = lambda: None, count: int = 12) -> None:
    """The loop that everybody writes; `after` each step."""
    for batch in batches(count):
        error(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        after()


def same(ours: nn.Module, theirs: nn.Module) -> bool:
    """Whether two models have the same parameters to rounding errors."""
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    return all(torch.allclose(a, b, rtol=0, atol=1e-13) for a, b in pairs)
