"""Sites end where the simulator does, over real TLS and in memory, and end as soon as all are done."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from netfleet.problems.synthetic import Quadratics
from netfleet.sites.runtime import join_leave
from support.site_memory import run_in_memory
from support.site_processes import site_processes
from support.site_settings import DIGITS, QUADRATICS, M, simulated

RING: dict[str, Any] = {**DIGITS, "rounds": 5, "topology": {"kind": "ring", "workers": 3}}


@pytest.mark.slow
def test_eight_sites_end_where_the_simulator_does(tmp_path: Path) -> None:
    expected = simulated(DIGITS)
    with site_processes(tmp_path, DIGITS, 8) as sites:
        sites.start()
        assert set(sites.wait().values()) == {0}
        for i, name in enumerate(sites.names):
            found = torch.cat([values.flatten() for values in sites.model(name).values()])
            assert (found - expected[i]).abs().max() <= 1e-10
            assert [record["round"] for record in sites.history(name)] == [0, 4, 8, 12]


@pytest.mark.parametrize(
    ("table", "tolerance"),
    [
        ({**DIGITS, "engine": {"dtype": "float32"}}, 1e-5),
        (
            {
                **RING,
                "algorithms": [{"kind": "net-fleet", "K": 2, "eta": 0.05, "compress": {"kind": "quantize", "bits": 8}}],
            },
            1e-10,
        ),
        ({**RING, "algorithms": [{"kind": "dfedsam", "K": 2, "eta": 0.05, "gossip": 2}]}, 1e-10),
        ({**RING, "algorithms": [{"kind": "k-gt", "K": 2, "eta": 0.05}]}, 1e-10),
        ({**RING, "problem": {**RING["problem"], "weights": [1, 2, 5]}}, 1e-10),
        ({**RING, "algorithms": [{"kind": "k-gt", "K": 2, "eta": 0.05, "local": "adamw", "outer": "nesterov"}]}, 1e-10),
    ],
    ids=["eight sites, float32", "compressed", "several exchanges", "another tracking method", "weights", "AdamW"],
)
def test_sites_in_memory_end_where_the_simulator_does(tmp_path: Path, table: dict[str, Any], tolerance: float) -> None:
    expected = simulated(table)
    histories = run_in_memory(tmp_path, table, len(expected))
    for i, history in enumerate(histories):
        assert history.final is not None
        assert (history.final.state.x[0] - expected[i]).abs().max() <= tolerance
        assert history.records[-1]["round"] == table["rounds"]


def test_sites_end_as_soon_as_all_are_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each neighbour knows from a request or from an answer; nobody waits for the other of the two."""
    monkeypatch.setattr(join_leave, "INFORM", 10_000.0)
    histories = run_in_memory(tmp_path, {**QUADRATICS, "rounds": 5}, M)  # does not return if a site waits
    assert [history.rounds for history in histories] == [5] * M


def test_sites_stay_for_a_slow_neighbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a neighbour that does not answer is left after `linger` seconds."""
    grad = Quadratics.grad

    def slow(*arguments: Any) -> torch.Tensor:
        if threading.current_thread().name == "s0":
            time.sleep(0.1)
        return grad(*arguments)

    monkeypatch.setattr(Quadratics, "grad", slow)
    run_in_memory(tmp_path, {**QUADRATICS, "rounds": 3}, M, linger=0.05)
    logs = [(tmp_path / "plan" / f"s{i}" / "node.log").read_text() for i in range(M)]
    assert all("finished" in log and "unfinished" not in log for log in logs)
