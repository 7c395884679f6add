"""Faults of a plan, as its operator sees them: `netfleet doctor PLAN` names each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import netfleet
from netfleet.cli import main
from netfleet.errors import ConfigError
from netfleet.sites.doctor.findings import Report
from netfleet.sites.doctor.local import MACHINE
from netfleet.sites.doctor.plan import examine_plan
from netfleet.sites.doctor.probe import Diagnosis
from netfleet.sites.operations.status import SiteStatus, StatusAnswer
from netfleet.sites.planning.folders import Site, read_site
from netfleet.sites.planning.rollbacks import NONE, Pending, Rollbacks, write_rollbacks
from support.doctors import Hospital, copied
from support.site_peers import PATH
from support.site_processes import plan_sites

NOBODY = Diagnosis("refused", "refuses the connection", "start it")


class Operator(Hospital):
    """The operator of s0 - s1 - s2, and what the sites answer."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.running: dict[str, dict[str, Any]] = {}  # sites that answer, with what is special about them
        self.reasons: dict[str, Diagnosis] = {}
        self.whys: dict[str, str] = {}

    def move(self, name: str, address: str) -> None:
        """Change a site's own address in its site.toml."""
        before = read_site(self.plan / name).address
        self.change(f"{name}/site.toml", f'\naddress = "{before}"', f'\naddress = "{address}"')

    def examine(self) -> Report:
        machine = MACHINE._replace(now=lambda: self.now)
        return examine_plan(self.plan, self._ask, self._reason, machine)

    def _ask(self, sites: Sequence[Site], *_: object) -> list[StatusAnswer]:
        return [self._answer(site) for site in sites]

    def _answer(self, site: Site) -> StatusAnswer:
        if site.name not in self.running:
            return StatusAnswer(site.name, None, self.whys.get(site.name, "cannot be reached (Connection refused)"))
        about = site.name, site.number, site.run, "NET-FLEET", "training", 5, 10, 50.0, 0, {}, (), {}, (), 0, 300, ()
        return StatusAnswer(site.name, replace(SiteStatus(*about), **{"version": VERSION, **self.running[site.name]}))

    async def _reason(self, to: Site) -> Diagnosis | None:
        return self.reasons.get(to.name, NOBODY)


VERSION = netfleet.__version__


class Fault(NamedTuple):
    plant: Callable[[Operator], object]
    level: str
    check: str
    about: str
    words: str


def _other_certificate(plan: Operator) -> None:
    """s1 was renewed; its neighbours have not pinned it."""
    pins = {path: path.read_bytes() for path in plan.plan.glob("s*/pins/s1.pem")}
    plan.certify("s1", 100)
    for path, before in pins.items():
        path.write_bytes(before)


def _revoked(plan: Operator) -> None:
    assert main(["revoke", str(plan.plan), "s1", "--why", "stolen"]) == 0
    for name in ("s0", "s1", "s2"):
        (plan.plan / name / "revoked.pem").write_bytes((plan.plan / "operator" / "revoked.pem").read_bytes())


def _old_list(plan: Operator) -> None:
    _revoked(plan)
    (plan.plan / "s2" / "revoked.pem").unlink()


def _roll_back(plan: Operator, **rounds: list[int]) -> None:
    for name, back in rounds.items():
        done = reduce(Rollbacks.next, back, NONE)
        write_rollbacks(plan.plan / name, Pending(done, reached=100))


def _another_plan(plan: Operator) -> None:
    plan_sites(plan.place / "other", {**PATH, "rounds": 11}, 3)
    copied(plan.place / "other" / "plan" / "s2", plan.plan / "s2")


FAULTS = {
    "an old address at a neighbour": Fault(
        lambda plan: plan.change("s0/site.toml", read_site(plan.plan / "s1").address, "127.0.0.1:9"),
        *("error", "address", "s0", r"has 127\.0\.0\.1:9 for s1"),
    ),
    "a site that has moved": Fault(
        lambda plan: plan.move("s2", "192.0.2.1:9"), "error", "address", "s2", r"in the operator's plan\.toml"
    ),
    "two sites with one address": Fault(
        lambda plan: plan.move("s1", read_site(plan.plan / "s0").address),
        *("error", "address", "s0", "the same address as s1"),
    ),
    "another plan's folder": Fault(_another_plan, "error", "plan", "s2", "a folder of another plan"),
    "a changed experiment": Fault(
        lambda plan: plan.change("s1/experiment.toml", "K = 2", "K = 3"), "error", "plan", "s1", "it was changed"
    ),
    "another patience": Fault(
        lambda plan: plan.change("s1/site.toml", "patience = 0.0", "patience = 60.0"),
        *("warning", "patience", "plan", "s1 60"),
    ),
    "a site that was left out of a rollback": Fault(
        lambda plan: _roll_back(plan, s0=[64], s1=[64]), "error", "rollbacks", "s2", "was not rolled back, and s"
    ),
    "a site that was rolled back to another round": Fault(
        lambda plan: _roll_back(plan, s0=[64], s1=[32], s2=[64]), "error", "rollbacks", "s1", "once to round 32"
    ),
    "an unpinned certificate": Fault(_other_certificate, "error", "pin", "s1", "that s0 has not pinned"),
    "a certificate that ends soon": Fault(
        lambda plan: plan.certify("s2", 5), "warning", "certificate", "s2", "expires on"
    ),
    "an expired operator": Fault(
        lambda plan: setattr(plan, "now", datetime.now(UTC) + timedelta(days=400)),
        *("error", "certificate", "operator", "expired on"),
    ),
    "a certificate that ends before the training": Fault(
        lambda plan: (plan.certify("s2", 5), plan.running.update(s0={"left_seconds": 1e6})),
        *("error", "certificate", "s2", "before the expected end"),
    ),
    "a revoked site": Fault(_revoked, "error", "revoked", "s1", "a certificate that was revoked"),
    "an old revocation list": Fault(_old_list, "error", "revoked", "s2", "has revocation list none"),
    "a proxy": Fault(
        lambda plan: plan.reasons.update(s1=Diagnosis("authority", "shows a certificate of another authority", "do")),
        *("error", "authority", "s1", "another authority"),
    ),
    "a firewall": Fault(
        lambda plan: plan.reasons.update(s1=Diagnosis("blocked", "does not answer", "open the port")),
        *("warning", "blocked", "s1", "does not answer"),
    ),
    "a site that does not know the operator": Fault(
        lambda plan: plan.whys.update(s1="refuses: neither operator nor neighbour"),
        *("error", "refusal", "s1", "neither operator"),
    ),
    "a site of another run": Fault(
        lambda plan: plan.running.update(s1={"run": "ab" * 32}), "error", "plan", "s1", "runs another plan"
    ),
    "another version": Fault(
        lambda plan: plan.running.update(s1={"version": "9.9"}), "warning", "version", "s1", r"runs netfleet 9\.9"
    ),
}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("healthy")
    plan_sites(folder, PATH, 3)
    return folder


@pytest.fixture
def plan(healthy: Path, tmp_path: Path) -> Operator:
    return Operator(copied(healthy, tmp_path))


@pytest.mark.parametrize("running", [(), ("s0", "s1", "s2")])
def test_a_healthy_plan_has_no_findings(plan: Operator, running: tuple[str, ...]) -> None:
    plan.running = {name: {} for name in running}
    report = plan.examine()
    assert report.findings == []
    assert [link.to for link in report.links] == ["yes" if running else "no"] * 3


def test_folders_without_keys_and_on_other_machines_are_no_findings(plan: Operator) -> None:
    """The operator has deleted the keys after they were copied, or the whole folders."""
    (plan.plan / "s0" / "node.key").unlink()
    (plan.plan / "s1").rename(plan.place / "elsewhere")
    assert plan.examine().findings == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(plan: Operator, name: str) -> None:
    fault = FAULTS[name]
    fault.plant(plan)
    found = plan.examine().findings
    named = [each for each in found if (each.level, each.check, each.about) == fault[1:4]]
    assert named, found
    assert any(re.search(fault.words, each.what) for each in named), found


def test_an_evicted_site_is_no_finding(plan: Operator) -> None:
    """Its neighbours were rolled back since, and its certificate is revoked."""
    assert main(["evict", str(plan.plan), "s2", "--why", "it lies"]) == 0
    _roll_back(plan, s0=[64], s1=[64])
    report = plan.examine()
    assert report.findings == []
    assert [link.name for link in report.links] == ["s0", "s1"]


def test_what_to_do_about_rollbacks_depends_on_what_is_missing(plan: Operator) -> None:
    _roll_back(plan, s0=[64, 32], s1=[64])
    cures = {each.about: each.cure for each in plan.examine().findings}
    assert re.match(r"netfleet rollback .*s1 --to 32, or netfleet node .*s1 --rejoin", cures["s1"])
    assert re.match(r"netfleet node .*s2 --rejoin", cures["s2"])
    _roll_back(plan, s1=[64, 32], s2=[64, 32])
    assert plan.examine().findings == []


def test_the_command(plan: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody runs: the operator sees so, and it is no error."""
    assert main(["doctor", str(plan.plan), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [each["state"] for each in said["neighbours"]] == ["not running"] * 3
    assert main(["doctor", str(plan.plan / "operator")]) == 0
    assert "operator: no findings" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="is not the operator's folder"):
        examine_plan(plan.place)
