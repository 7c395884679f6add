"""What a site needs against what there is, and what a start says about its machine."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from netfleet.algorithms.build import make_algorithm
from netfleet.sites.costs.rounds import size_of
from netfleet.sites.doctor.findings import Report
from netfleet.sites.doctor.local import Machine, OpenFolder
from netfleet.sites.doctor.pace import Pace
from netfleet.sites.doctor.resources import check_expiry, quick_findings
from netfleet.sites.network.transport import MemoryNetwork
from netfleet.sites.operations.logs import Log
from netfleet.sites.planning.certificates import load_identity
from netfleet.sites.planning.folders import load_site
from netfleet.sites.policy.in_force import NO_POLICY
from netfleet.sites.runtime.runner import SiteRunner
from support.doctors import Hospital
from support.site_peers import PATH
from support.site_processes import plan_sites

NOW = datetime(2026, 5, 3, tzinfo=UTC)


@pytest.mark.parametrize(
    ("days", "left", "level"),
    [
        (-1, None, "error"),
        (13, None, "warning"),
        (15, None, None),
        (13, timedelta(days=2), None),
        (4, timedelta(days=2), "warning"),
        (1, timedelta(days=2), "error"),
    ],
)
def test_a_certificate_must_last_until_the_expected_end(days: int, left: timedelta | None, level: str | None) -> None:
    report = Report("s0")
    check_expiry(NOW + timedelta(days=days), left, NOW, report)
    assert [finding.level for finding in report.findings] == ([] if level is None else [level])


def test_a_pace_says_how_long_it_takes() -> None:
    assert Pace(10, 3.0, True).left == 30.0


@pytest.fixture
def site(tmp_path: Path) -> Hospital:
    plan_sites(tmp_path, PATH, 3)
    return Hospital(tmp_path)


def runner(site: Hospital, log: Log) -> SiteRunner:
    about = load_site(site.folder)
    transport = MemoryNetwork().transport("s0")
    return SiteRunner(site.folder, *about, load_identity(site.folder, "s0"), log, transport=transport)


@pytest.mark.parametrize(("days", "events"), [(100, []), (5, [("doctor", "error")])])
def test_a_start_logs_what_would_end_the_training_later(
    site: Hospital, days: int, events: list[tuple[str, str]]
) -> None:
    site.certify("s0", days)
    site.write_pace(86400.0)
    stream = io.StringIO()
    started = runner(site, Log("s0", stream, as_json=True))
    started._check_machine(started._problem())
    said = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["event"], line["level"]) for line in said] == events


def test_the_quick_part_looks_at_disk_and_memory(site: Hospital) -> None:
    found, experiment = load_site(site.folder)
    opened = OpenFolder(
        site.folder, found, list(found.neighbours), NO_POLICY, experiment, load_identity(site.folder, "s0"), None
    )
    small = Machine(lambda folder: 10, lambda: 10)
    size = size_of(runner(site, Log("s0", io.StringIO()))._problem())
    method = make_algorithm(experiment.runs()[0].config["algorithm"])
    assert [finding.check for finding in quick_findings(opened, method, size, small)] == ["disk", "memory"]
    assert quick_findings(opened, method, size) == []
