"""The whole story of a poisoned training, with real processes: alarm, hold, evict, roll back, and the right optimum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from netfleet.cli import main
from netfleet.gradients.paths import Sample
from netfleet.problems.synthetic import Quadratics
from support.receipts import check_records
from support.site_processes import SiteProcesses, site_processes
from support.site_settings import QUADRATICS, check_optimum, gap, optimum, quadratics

pytestmark = pytest.mark.slow

#: s2 sends poison from this round on; s0 and s4 are not its neighbours.
FIRST = 20
TABLE: dict[str, Any] = {
    **QUADRATICS,
    "rounds": 360,
    "topology": {"kind": "ring", "weights": "metropolis"},
    "algorithms": [{"kind": "net-fleet", "K": 2, "eta": 0.05}],
    "evaluation": {"every": 1},
}
HONEST = ["s0", "s1", "s3", "s4"]


def poison() -> None:
    """As if this site's features were a thousand times larger from a round on."""
    honest = Quadratics.grad

    def grad(self: Quadratics, x: Tensor, sample: Sample) -> Tensor:
        return honest(self, x, sample) * (1000.0 if sample.t >= FIRST else 1.0)

    Quadratics.grad = grad  # type: ignore[method-assign]


def hold(sites: SiteProcesses, *names: str) -> None:
    for name in names:
        path = sites.folder / name / "site.toml"
        path.write_text(path.read_text().replace('on_alarm = "continue"', 'on_alarm = "hold"'))


def test_a_poisoned_training_ends_at_the_optimum_of_the_honest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with site_processes(tmp_path, TABLE, 5) as sites:
        hold(sites, "s0", "s3", "s4")  # s1 goes on and takes the poison
        sites.start("s0", "s1", "s3", "s4")
        sites.start("s2", before=poison)
        sites.until(lambda: {s.site for s in sites.ask() if s.state == "holding"} == {"s0", "s3"})
        assert main(["status", str(sites.folder)]) == 0
        shown = capsys.readouterr().out
        assert "s3: alarm (norm of messages of s2, since round 21); nobody has looked yet" in shown
        assert "s0: alarm (norm of messages of s1" in shown
        assert "s1: alarm (norm of messages of s2, since round 21); nobody has looked yet" in shown
        why = "its features are a thousand times too large"
        assert main(["evict", str(sites.folder), "s2", "--why", why]) == 0
        assert sites.wait("s2") == {"s2": 2}
        assert f"the operator has evicted s2 from this training: {why}" in sites.tail("s2")
        sites.until(lambda: bool(sites.events("s3", "released")))  # its only alarm was about s2
        assert [event["round"] for event in sites.events("s3", "evicted")] == [FIRST + 1]
        for name in HONEST:
            assert sites.stop(name) == 0
        capsys.readouterr()
        assert main(["rollback", str(sites.folder), "--to", "16"]) == 0
        assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()[:-1]] == HONEST
        sites.start(*HONEST)
        assert set(sites.wait(*HONEST).values()) == {0}
        assert gap(sites, HONEST) < 1e-12
        check_optimum(sites, HONEST, optimum(quadratics(5), [0, 1, 3, 4]), atol=1e-12)
        check_records(sites.folders())
        assert main(["rollback", str(sites.folder / "s0"), "--to", "352"]) == 0  # but not s1 and s4
        sites.start("s0")
        sites.start("s1")
        sites.until(lambda: any("was rolled back" in event["why"] for event in sites.events("s1", "refused")))
