"""Sites in daily life: stopped, watched, asked, started twice."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from netfleet.cli import main
from netfleet.errors import ConfigError, StorageError, TransportError
from netfleet.runs.progress import Live, Quiet
from netfleet.sites.network.outbox import Outbox
from netfleet.sites.network.wait_cause import Cause
from netfleet.sites.operations.local_trial import running_relay
from netfleet.sites.operations.logs import Log
from netfleet.sites.operations.process import _run
from netfleet.sites.operations.status import SUMS, WaitStatus
from netfleet.sites.planning.certificates import load_identity
from netfleet.sites.planning.folders import load_site
from netfleet.sites.runtime.exchange import LINE, NOTE, Waiting
from netfleet.sites.runtime.membership import Membership
from netfleet.sites.runtime.runner import SiteRunner
from netfleet.sites.runtime.status_builder import Sketcher
from support.site_processes import SiteProcesses, free_ports, plan_sites, site_processes
from support.site_settings import QUADRATICS, gap

THREE: dict[str, Any] = {**QUADRATICS, "rounds": 30, "topology": {"kind": "ring", "workers": 3}}


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_all_sites_name_the_one_that_they_wait_for(tmp_path: Path) -> None:
    """On a path s0 – s1 – s2, of which s2 hangs."""
    with site_processes(tmp_path, {**THREE, "rounds": 100_000, "topology": {"kind": "path"}}, 3) as sites:
        sites.start()
        sites.reach(5, *sites.names)
        os.kill(sites.running["s2"].pid, signal.SIGSTOP)

        def causes() -> dict[str, WaitStatus | None]:
            return {status.site: status.wait for status in sites.ask()}

        sites.until(lambda: {wait and (wait.cause, wait.silent) for wait in causes().values()} == {(2, True)})
        waits = causes()
        assert {name: wait and wait.name for name, wait in waits.items()} == {"s0": "site 2", "s1": "s2"}
        os.kill(sites.running["s2"].pid, signal.SIGCONT)
        sites.until(lambda: len(sites.ask()) == 3 and None in causes().values())
        pace = sites.ask()[0]
        assert pace.round_seconds is not None
        assert pace.left_seconds == pytest.approx(pace.round_seconds * (100_000 - pace.round))


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


def waiting_site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Waiting, Membership, Screen, Any, list[Any]]:
    """A site whose clock a test sets, with what it shows and logs."""
    plan = plan_sites(folder, THREE, 3)
    members = Membership(folder / "plan" / "s0", plan.sites[0], 200, Outbox(), lambda who, why: None)
    screen, now, log, said = Screen(), [0.0], Log("s0"), list[Any]()
    monkeypatch.setattr(log, "event", lambda what, **fields: said.append((what, fields)))
    clock = SimpleNamespace(monotonic=lambda: now[0])
    for module in ("exchange", "waits"):
        monkeypatch.setattr(f"netfleet.sites.runtime.{module}.time", clock)
    return Waiting(members, log, screen), members, screen, now, said


def test_a_wait_is_shown_soon_and_logged_later_and_so_is_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, members, screen, now, said = waiting_site(tmp_path, monkeypatch)
    contact = members.contacts[1]
    contact.waiting = "is in round 7"
    with waiting:
        contact.asked, contact.last_heard, contact.cause = 0.0, 0.0, Cause(2, True, 5.0, 1)
        for now[0] in (NOTE / 2, NOTE, LINE, LINE + 1, 3 * LINE):
            waiting.report()
    assert screen.notes[0] == f"waits {NOTE:.0f} s for s1 is in round 7; s2 has been silent for {NOTE + 5:.0f} s"
    assert screen.notes[-1] == ""
    lines = [(what, fields["seconds"], fields["cause"]) for what, fields in said]
    assert lines == [("waiting", 10, "s2"), ("waiting", 30, "s2"), ("waited", 30, "s2")]
    with waiting:  # a short one is not worth a line
        waiting.report()
    assert len(said) == 3


@pytest.mark.parametrize(("silent", "levels"), [(True, {"info", "warning"}), (False, {"info"})])
def test_a_wait_wakes_someone_if_a_site_is_silent_for_long(
    silent: bool, levels: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, members, _, now, said = waiting_site(tmp_path, monkeypatch)
    contact = members.contacts[1]
    contact.waiting = "is in round 7"
    with waiting:
        contact.asked, contact.last_heard, contact.silent = 0.0, 0.0, silent
        for now[0] in range(0, 4000, 5):  # type: ignore[assignment]
            waiting.report()
    logged = [(fields["seconds"], fields["level"]) for what, fields in said if what == "waiting"]
    assert {level for _, level in logged} == levels
    assert {seconds for seconds, level in logged if level == "warning"} <= {600, 1800}
    assert [seconds for seconds, _ in logged] == [10, 30, 90, 270, 600, 1800]


class Failing:
    """A site that an error ends."""

    rejoin = False

    def __init__(self, error: Exception) -> None:
        self.log, self.status, self.error = Log("s0", io.StringIO(), as_json=True), SimpleNamespace(t=7), error

    def run(self, display: object, rejoin: bool) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "raised", "why"),
    [
        (
            OSError(28, "No space left on device", "/srv/x"),
            StorageError,
            "cannot write /srv/x: No space left on device",
        ),
        (ValueError("not a number: 'Ann Doe'"), ValueError, "ValueError in test_operations.py, line "),
        (PermissionError(13, "Permission denied", "/srv/data"), PermissionError, "PermissionError in "),
    ],
)
def test_whatever_ends_a_site_is_a_failed_event(error: Exception, raised: type[Exception], why: str) -> None:
    site = Failing(error)
    with pytest.raises(raised):
        _run(site, False, io.StringIO())  # type: ignore[arg-type]
    line = json.loads(site.log._stream.getvalue())  # type: ignore[attr-defined]
    assert (line["event"], line["level"], line["round"]) == ("failed", "error", 7)
    assert line["why"].startswith(why)
    assert "Ann" not in line["why"]  # logs travel


def test_sketches_add_up_like_the_vectors() -> None:
    vectors = torch.randn(5, 1000, dtype=torch.float64)
    sketches = torch.tensor([Sketcher("ab" * 32)(vector) for vector in vectors], dtype=torch.float64)
    assert sketches.shape == (5, SUMS)
    total = torch.tensor(Sketcher("ab" * 32)(vectors.sum(dim=0)), dtype=torch.float64)
    assert torch.allclose(sketches.sum(dim=0), total)
    assert 0.5 < total.norm() / vectors.sum(dim=0).norm() < 2
    assert not torch.allclose(torch.tensor(Sketcher("cd" * 32)(vectors[0]), dtype=torch.float64), sketches[0])


def test_a_trial_does_not_wait_for_sites_whose_relay_has_ended(tmp_path: Path) -> None:
    (tmp_path / "relay").mkdir()  # without its files

    def until_ended() -> None:
        with running_relay(tmp_path, "127.0.0.1:1") as check:
            while True:
                check()
                time.sleep(0.02)

    with pytest.raises(TransportError, match=r"the relay has ended \(exit code 2\); see .*relay/node\.log"):
        until_ended()
    with running_relay(tmp_path, "") as check:
        check()


@pytest.mark.slow
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
