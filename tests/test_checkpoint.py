"""The checkpoint's file: what the library reads of what is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from netfleet import checkpoint
from netfleet.algorithms.net_fleet import NetFleet
from netfleet.engines.loop import Snapshot


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_library_reads_what_is_written(tmp_path: Path, dtype: torch.dtype) -> None:
    x, g = torch.randn(2, 3, 5).to(dtype)
    network = {"age": torch.arange(6).reshape(2, 3), "up": torch.tensor([True, False]), "none": torch.zeros(3, 0)}
    snapshot = Snapshot(state=NetFleet.State(x.T.contiguous().T, g, g), buffers=None, network=network, t=7, bytes=1)
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.save(path, snapshot, "abc")
    found = safetensors.torch.load_file(path)
    assert set(found) == {"x", "y", "g", "network/age", "network/up", "network/none"}
    for name, values in (("x", x), ("y", g), ("g", g), *((f"network/{key}", v) for key, v in network.items())):
        assert found[name].dtype == values.dtype
        assert torch.equal(found[name], values), name
    again = checkpoint.load(path, "abc", NetFleet.State, torch.device("cpu"))
    assert (again.t, again.bytes) == (7, 1)
    assert checkpoint.reached(path) == 7
