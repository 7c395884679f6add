"""Inputs from a gradient by optimisation: a batch is looked for whose gradient has the same direction.

Cosine similarity, total variation where inputs are images, Adam (Geiping et al. 2020). It needs nothing of the model
but its gradient, so it works where division does not.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from netfleet import randomness
from netfleet.gradients.replica import Loss, outputs_of

#: From this PSNR on an input counts as recovered: a root mean square error of a tenth of the range.
RECOVERED = 20.0
#: A better PSNR is not told from this one.
_BEST = 80.0
#: How much total variation counts, and the first step size as a part of the range.
_VARIATION, _RATE = 1e-4, 0.2


@dataclass(frozen=True)
class Target:
    """What is known before the search: the model and the loss, the labels, and the range of the inputs."""

    model: nn.Module
    loss: Loss
    gradient: Tensor  # [d]
    targets: Tensor  # [batch]
    shape: tuple[int, ...]
    low: float
    high: float


def invert(target: Target, steps: int, seed: int, victim: int) -> Tensor:
    """A batch whose gradient points where the target's does, `[batch, …]`."""
    start = torch.rand(len(target.targets), *target.shape, generator=randomness.torch_generator("audit", seed, victim))
    guess = (target.low + (target.high - target.low) * start).to(_dtype(target)).requires_grad_()
    optimizer = torch.optim.Adam([guess], lr=_RATE * (target.high - target.low))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    wanted = target.gradient.to(guess.dtype)
    for _ in range(steps):
        optimizer.zero_grad()
        (_mismatch(target, guess, wanted) + _VARIATION * _variation(guess)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            guess.clamp_(target.low, target.high)
    return guess.detach()


def _dtype(target: Target) -> torch.dtype:
    return next(target.model.parameters()).dtype


def _mismatch(target: Target, guess: Tensor, wanted: Tensor) -> Tensor:
    parameters = [p for p in target.model.parameters() if p.requires_grad]
    loss = target.loss(outputs_of(target.model, guess), target.targets).mean()
    found = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters, create_graph=True)])
    return 1 - torch.nn.functional.cosine_similarity(found, wanted, dim=0, eps=1e-12)


def _variation(guess: Tensor) -> Tensor:
    """The mean difference between neighbouring pixels; 0 for inputs that are no images."""
    if guess.dim() != 4:
        return guess.new_zeros(())
    return guess.diff(dim=2).abs().mean() + guess.diff(dim=3).abs().mean()


class Matched(NamedTuple):
    """Originals beside the guesses that are closest to them, each guess used once."""

    places: Tensor  # of the originals; where there are more of them than guesses, the closest
    guesses: Tensor  # [places, …]
    psnr: Tensor  # [places]


def match(guesses: Tensor, originals: Tensor, span: float) -> Matched:
    """The assignment with the least squared error; `span` is the range of the data."""
    apart = torch.cdist(originals.flatten(1).double(), guesses.flatten(1).double())
    error = apart.square().numpy() / math.prod(originals.shape[1:])
    rows, columns = linear_sum_assignment(error)
    psnr = np.clip(10 * np.log10(span**2 / np.maximum(error[rows, columns], 1e-30)), None, _BEST)
    return Matched(torch.from_numpy(rows), guesses[torch.from_numpy(columns)], torch.from_numpy(psnr))
