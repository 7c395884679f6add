"""Sites over real TLS: the simulator's trajectory, through crashes, stops and bad networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from netfleet import Experiment
from netfleet.config import experiment
from netfleet.experiment import run_experiment
from trial import trial

pytestmark = pytest.mark.slow

DIGITS: dict[str, Any] = {
    "rounds": 12,
    "topology": {"kind": "erdos-renyi", "p": 0.5, "workers": 8},
    "problem": {
        "kind": "classification",
        "data": "digits",
        "partition": {"kind": "shards"},
        "model": {"kind": "mlp", "hidden": [16]},
        "batch": 16,
    },
    "algorithms": [{"kind": "net-fleet", "K": 4, "eta": 0.05}],
    "evaluation": {"every": 4},
    "engine": {"dtype": "float64"},
}


def simulated(table: dict[str, Any]) -> torch.Tensor:
    """The models of all workers in the end, in the simulator."""
    settings: Experiment = experiment({**table, "engine": {**table["engine"], "kind": "simulator"}})
    (history,) = run_experiment(settings)
    assert history.final is not None
    return history.final.state.x


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
