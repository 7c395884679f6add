"""Ways of running a module that leave it as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def averaging_batch_norm(model: nn.Module) -> Iterator[None]:
    """Let every BatchNorm start afresh and take the plain average over the batches that it sees."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Exact values are those of the whole network."""
    layers = [module for module in model.modules() if isinstance(module, nn.modules.dropout._DropoutNd)]
    for layer in layers:
        layer.eval()
    try:
        yield
    finally:
        for layer in layers:
            layer.train()


def without_grad(task: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """Autograd's mode belongs to a thread: switch it off on the thread that runs the task."""

    def run(slot: int, i: int) -> None:
        with torch.no_grad():
            task(slot, i)

    return run
