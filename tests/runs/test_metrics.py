"""What is measured at an evaluation, against the formulas."""

from __future__ import annotations

import pytest
import torch

from netfleet.algorithms.ld_sgd import LDSGD
from netfleet.algorithms.net_fleet import NetFleet
from netfleet.runs import metrics


@pytest.mark.parametrize("block", [1, 3, 100])
def test_large_models_are_measured_block_by_block(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_BLOCK", block)
    x, y, g = torch.randn(3, 4, 10)
    expected = (x.double() - x.double().mean(dim=0)).square().sum() / 4
    torch.testing.assert_close(metrics.consensus_error(x), expected)
    tracking = (y.double() - g.double()).sum(dim=0).norm()
    torch.testing.assert_close(metrics.tracking_error(NetFleet.State(x, y, g)), tracking)
    assert metrics.tracking_error(LDSGD.State(x)) is None
