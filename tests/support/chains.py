"""Random chains of layers, which the native path recognises."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import nn


@st.composite
def chains(draw: Any, image: tuple[int, int, int], outputs: int) -> nn.Module:
    """Up to two convolutions of any shape, then up to two linear layers."""
    shape, layers = image, []
    for _ in range(draw(st.integers(0, 2))):
        out, padding, stride = draw(st.integers(1, 19)), draw(st.integers(0, 2)), draw(st.integers(1, 2))
        kernel = (draw(st.integers(1, min(5, shape[1]))), draw(st.integers(1, min(5, shape[2]))))
        layers.append(nn.Conv2d(shape[0], out, kernel, stride, padding, bias=draw(st.booleans())))
        shape = tuple(layers[-1](torch.zeros(1, *shape)).shape[1:])  # type: ignore[assignment]
        pool = draw(st.integers(1, min(3, *shape[1:])))
        after = [nn.ReLU()] * draw(st.integers(0, 1)) + [nn.MaxPool2d(pool)] * (pool > 1)
        layers += reversed(after) if draw(st.booleans()) else after
        shape = (out, shape[1] // pool, shape[2] // pool)
    width = int(np.prod(shape))
    layers.append(nn.Flatten())
    for _ in range(draw(st.integers(0, 1))):
        hidden = draw(st.integers(1, 40))
        layers += [nn.Linear(width, hidden, bias=draw(st.booleans())), nn.ReLU()]
        width = hidden
    return nn.Sequential(*layers, nn.Linear(width, outputs, bias=draw(st.booleans())))
