"""Sites in daily life: stopped, watched, asked, started twice."""

from __future__ import annotations

import io
import json
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from netfleet.cli import main
from netfleet.errors import ConfigError
from netfleet.runs.progress import Live, Quiet
from netfleet.sites.network.outbox import Outbox
from netfleet.sites.operations.logs import Log
from netfleet.sites.operations.status import SUMS
from netfleet.sites.planning.certificates import load_identity
from netfleet.sites.planning.folders import load_site
from netfleet.sites.runtime.exchange import LINE, NOTE, Waiting
from netfleet.sites.runtime.membership import Membership
from netfleet.sites.runtime.runner import SiteRunner
from netfleet.sites.runtime.status_builder import Sketcher
from support.site_processes import SiteProcesses, free_ports, site_processes
from support.site_settings import QUADRATICS, gap

pytestmark = pytest.mark.slow

THREE: dict[str, Any] = {**QUADRATICS, "rounds": 30, "topology": {"kind": "ring", "workers": 3}}


def test_a_site_stops_on_sigterm_and_goes_on_and_one_that_does_not_run_can_leave(tmp_path: Path, capfd: Any) -> None:
    with site_processes(tmp_path, THREE, 3) as sites:
        sites.start(hold={"s0": 10})
        sites.reach(10, *sites.names)
        for name in ("s1", "s2"):
            assert sites.stop(name) == 0
            (event,) = sites.events(name, "stopped")
            assert event["round"] == sites.round(name) < THREE["rounds"]
        (sites.folder / "s2" / "leave").touch()  # what `netfleet leave` does first
        sites.start("s1", "s2")
        sites.release()
        assert set(sites.wait().values()) == {0}
        assert sites.round("s1") == THREE["rounds"] > sites.round("s2")
        assert gap(sites, ["s0", "s1"]) < 1e-12
        assert main(["leave", str(sites.folder / "s0")]) == 2
        assert "there is nothing to leave" in capfd.readouterr().err


def test_a_folder_is_run_by_one_process(tmp_path: Path) -> None:
    with site_processes(tmp_path, {**THREE, "rounds": 5}, 3) as sites:
        sites.start("s0")
        sites.until(lambda: bool(sites.events("s0", "started")))
        first = sites.running["s0"]
        sites.start("s0")
        assert sites.wait("s0") == {"s0": 2}
        assert "already run by another process" in sites.tail("s0")
        sites.running["s0"] = first
        sites.start("s1", "s2")
        assert set(sites.wait().values()) == {0}


def scrape(port: int) -> dict[str, str]:
    """The numbers that Prometheus reads, by their names."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def test_status_over_all_sites_and_from_one_and_for_prometheus(tmp_path: Path, capsys: Any) -> None:
    (port,) = free_ports(1)
    with site_processes(tmp_path, {**THREE, "rounds": 100_000}, 3) as sites:
        sites.start("s0", options=("--metrics", f"127.0.0.1:{port}"))
        sites.start("s1", "s2")
        sites.reach(5, *sites.names)
        sites.until(lambda: float(scrape(port)["netfleet_round"]) >= 5)  # the checkpoint is there before the status
        numbers = scrape(port)
        assert float(numbers["netfleet_rounds"]) == 100_000
        assert float(numbers['netfleet_neighbour_lost{neighbour="s1"}']) == 0
        assert float(numbers['netfleet_sent_bytes_total{neighbour="s2"}']) > 0
        assert float(numbers['netfleet_measured{name="loss"}']) > 0
        assert main(["status", str(sites.folder)]) == 0
        text = capsys.readouterr().out
        assert "over 3 sites, where" in text
        assert main(["status", str(sites.folder / "s0")]) == 0
        assert "sites tell only the operator" in capsys.readouterr().out
        assert main(["status", str(sites.folder), "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert set(answer["sites"]) == {"s0", "s1", "s2"}
        assert answer["invariant"]["norm"] < 1e-12 * max(answer["invariant"]["of"], 1)
        assert answer["components"] == [["s0", "s1", "s2"]]
        link = answer["sites"]["s0"]["neighbours"][0]
        assert link["lag"] <= 1
        assert link["sent"] > 1000 < link["received"]
        sites.kill("s1")
        assert main(["status", str(sites.folder / "operator"), "--json"]) == 1
        assert "error" in json.loads(capsys.readouterr().out)["sites"]["s1"]


@pytest.mark.parametrize("words", ["node nowhere", "leave nowhere", "status nowhere", "up nowhere"])
def test_a_wrong_folder_is_a_clear_error(words: str, capsys: Any) -> None:
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("netfleet: error: ")
    assert "Traceback" not in error


class Screen(Quiet):
    """A display that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_wait_is_shown_soon_and_logged_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with site_processes(tmp_path, THREE, 3) as sites:
        site = sites.plan.sites[0]
        members = Membership(sites.folder / "s0", site, 200, Outbox(), lambda who, why: None)
    lines: list[str] = []
    screen, now = Screen(), [0.0]
    log = Log("s0")
    monkeypatch.setattr(log, "event", lambda what, **fields: lines.append(f"{what} {fields['neighbours']}"))
    monkeypatch.setattr("netfleet.sites.runtime.exchange.time.monotonic", lambda: now[0])
    waiting = Waiting(members, log, screen)
    members.contacts[1].waiting = "is in round 7"
    with waiting:
        for now[0] in (NOTE / 2, NOTE, LINE, LINE + 1, 3 * LINE):
            waiting.report()
    assert screen.notes[0] == f"waits {NOTE:.0f} s for s1 is in round 7"
    assert screen.notes[-1] == ""
    assert lines == ["waiting s1 is in round 7"] * 2


def test_sketches_add_up_like_the_vectors() -> None:
    vectors = torch.randn(5, 1000, dtype=torch.float64)
    sketches = torch.tensor([Sketcher("ab" * 32)(vector) for vector in vectors], dtype=torch.float64)
    assert sketches.shape == (5, SUMS)
    total = torch.tensor(Sketcher("ab" * 32)(vectors.sum(dim=0)), dtype=torch.float64)
    assert torch.allclose(sketches.sum(dim=0), total)
    assert 0.5 < total.norm() / vectors.sum(dim=0).norm() < 2
    assert not torch.allclose(torch.tensor(Sketcher("cd" * 32)(vectors[0]), dtype=torch.float64), sketches[0])


def test_trials_leave_nothing_behind(tmp_path: Path) -> None:
    with site_processes(tmp_path, THREE, 3) as sites:
        sites.start()
    assert isinstance(sites, SiteProcesses)
    assert all(process.exitcode is not None for process in sites.running.values())


def test_a_failure_before_the_first_round_is_said_as_it_is(tmp_path: Path) -> None:
    """A display that has not begun has nothing to end."""
    with site_processes(tmp_path, THREE, 3) as sites:
        folder = sites.folder / "s0"
        site, settings = load_site(folder)
        host, port = site.listen.rsplit(":", 1)
        runner = SiteRunner(folder, site, settings, load_identity(folder, "s0"), Log("s0", io.StringIO()))
        taken, live = socket.create_server((host, int(port))), Live(Console(file=io.StringIO()))
        with taken, live, pytest.raises(ConfigError, match="cannot listen"):
            runner.run(live)
