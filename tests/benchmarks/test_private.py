"""What `netfleet bench private` compares is the same: without noise Opacus's gradients are ours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.private import CLIP, ghost_step, hooks_step
from netfleet.data import Dataset
from netfleet.problems import ModuleProblem
from netfleet.problems.models import MODELS

BATCH = 9


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("make", [hooks_step, ghost_step])
@pytest.mark.parametrize("kind", ["cnn", "mlp"])
def test_opacus_has_the_same_sums_of_clipped_gradients(make: object, kind: str) -> None:
    pytest.importorskip("opacus")
    torch.manual_seed(0)
    x, y = 3 * torch.randn(BATCH, 1, 28, 28), torch.randint(0, 10, (BATCH,))
    model = MODELS.build(kind, inputs=(1, 28, 28), outputs=10)
    f = ModuleProblem(model, Dataset("random", x, y, x, y, classes=10), [np.arange(BATCH)])
    start = f.start()[None]
    ours = f._path.clipped(start, [torch.arange(BATCH)], CLIP)[0]
    gradients = torch.cat([f._path.clipped(start, [torch.tensor([j])], 1e9) for j in range(BATCH)])
    assert gradients.norm(dim=1).min() > CLIP, "no sample would be clipped"
    module = f.module(start[0]).train()
    make(module, BATCH, 0.0)(x, y)  # type: ignore[operator]
    theirs = nn.utils.parameters_to_vector([p.grad for p in module.parameters()]) * BATCH  # type: ignore[misc]
    assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)
