"""Sites over real TLS: the simulator's trajectory, through crashes, stops and bad networks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.site_settings import DIGITS, simulated
from support.site_trial import trial

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-5)])
def test_eight_sites_end_where_the_simulator_does(tmp_path: Path, dtype: str, tolerance: float) -> None:
    table = {**DIGITS, "engine": {"dtype": dtype}}
    expected = simulated(table)
    with trial(tmp_path, table, 8) as sites:
        sites.start()
        assert set(sites.wait().values()) == {0}
        for i, name in enumerate(sites.names):
            found = torch.cat([values.flatten() for values in sites.model(name).values()])
            assert (found - expected[i]).abs().max() <= tolerance
            assert [record["round"] for record in sites.history(name)] == [0, 4, 8, 12]
