"""Inputs from a gradient by division, where the first layer is linear with a bias.

A unit's weight gradient is Σ δ x over the samples of the batch and its bias gradient is Σ δ. If one sample alone has
reached the unit, their quotient is that sample's input (Phong et al. 2018). With ReLU this is common.
"""

import torch
from torch import Tensor

from netfleet.privacy.audit.layers import LinearLayer

#: An input counts as recovered if no value of it is further off than this part of the data's range.
TOLERANCE = 1e-3
#: Units whose bias gradient is a smaller part of the largest one are left out: their quotient is rounding.
_SMALLEST = 1e-6


def quotients(gradient: Tensor, layer: LinearLayer) -> Tensor:
    """The candidates for inputs, one for each unit that anything has reached, `[candidates, inputs]`."""
    bias = layer.biases(gradient)
    reached = bias.abs() > _SMALLEST * bias.abs().max()
    return layer.weights(gradient)[reached] / bias[reached, None]


def distances(candidates: Tensor, originals: Tensor, span: float) -> tuple[Tensor, Tensor]:
    """For each original the largest error of its closest candidate, as a part of the range, and that candidate."""
    if len(candidates) == 0:
        return torch.full((len(originals),), torch.inf, dtype=originals.dtype), torch.zeros_like(originals)
    flat = originals.flatten(1).double()
    least, place = torch.cdist(flat, candidates.double(), p=torch.inf).min(dim=1)
    return least / span, candidates[place].view_as(originals)


def recovered(candidates: Tensor, originals: Tensor, span: float) -> Tensor:
    """Which originals are among the candidates."""
    return distances(candidates, originals, span)[0] < TOLERANCE
