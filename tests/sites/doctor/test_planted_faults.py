"""Faults that are planted at a site, one at a time: `netfleet doctor` names each, and finds nothing without them."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tomli_w

from netfleet.cli import main
from netfleet.sites.doctor.probe import Diagnosis
from netfleet.sites.planning import certificates as tls
from netfleet.sites.planning.folders import read_site
from support.doctors import CSV, Hospital, ahead, copied, make_plan_and_data, write_rows
from support.site_memory import run_in_memory


class Fault(NamedTuple):
    """What is done to a healthy site, and the finding that names it."""

    plant: Callable[[Hospital], object]
    level: str
    check: str
    words: str
    about: str = ""


def _policy(**tables: Any) -> Callable[[Hospital], object]:
    return lambda site: (site.folder / "policy.toml").write_text(tomli_w.dumps(tables))


def _other_key(site: Hospital) -> None:
    path = site.folder / "node.key"
    path.write_bytes(tls.key_pem(tls.new_key()))
    path.chmod(0o600)


def _other_authority(site: Hospital) -> None:
    site.certify("s0", 100, tls.new_authority())


def _unpinned(site: Hospital) -> None:
    """s1 was renewed, and s0 has not heard of it."""
    before = (site.folder / "pins" / "s1.pem").read_bytes()
    key = tls.new_key()
    (site.plan / "s1" / "node.key").write_bytes(tls.key_pem(key))
    site.certify("s1", 100)
    (site.folder / "pins" / "s1.pem").write_bytes(before)


def _not_pinned_there(site: Hospital) -> None:
    """s1 has pinned another certificate of s0."""
    made = tls.issue(site.authority, "s0", "127.0.0.1", tls.new_key().public_key())
    (site.plan / "s1" / "pins" / "s0.pem").write_bytes(tls.certificate_pem(made))


def _revoked(site: Hospital) -> None:
    assert main(["revoke", str(site.plan), "s0", "--why", "its laptop was stolen"]) == 0
    (site.folder / "revoked.pem").write_bytes((site.plan / "operator" / "revoked.pem").read_bytes())


def _neighbour_revoked(site: Hospital) -> None:
    assert main(["revoke", str(site.plan), "s2", "--why", "its laptop was stolen"]) == 0
    site.silent["s2"] = None
    (site.folder / "revoked.pem").write_bytes((site.plan / "operator" / "revoked.pem").read_bytes())


def _slow_and_short(site: Hospital) -> None:
    """A time box of a day for each of 20 rounds, of which one was done; the certificate lasts 10 days."""
    site.write_pace(86400.0)
    site.certify("s0", 10)


def _busy_port(site: Hospital) -> None:
    host, _, port = read_site(site.folder).listen.rpartition(":")
    site.held.append(socket.create_server((host, int(port))))


def _moved(site: Hospital) -> None:
    site.change("s1/site.toml", f'address = "{read_site(site.folder).address}"', 'address = "127.0.0.1:9"')
    site.shut_in.add("s1")


def _record(site: Hospital) -> None:
    (site.folder / "receipts.jsonl").write_text('{"number": 1}\n')
    (site.folder / "receipts.head").write_text("{}")


def _half_checkpoint(site: Hospital) -> None:
    run = site.folder / "run"
    run.mkdir()
    (run / "checkpoint.json").write_text('{"run": "')


def _changed_rows(site: Hospital) -> None:
    run = site.folder / "run"
    run.mkdir()
    (run / "rows.json").write_text(json.dumps({"digest": "ab", "rows": 7, "time": "2026-05-03T10:00:00"}))


def _silent(check: str) -> Callable[[Hospital], None]:
    def plant(site: Hospital) -> None:
        site.silent["s1"] = Diagnosis(check, "does not answer, says the probe", "do this")

    return plant


FAULTS = {
    "a key that all can read": Fault(
        lambda site: (site.folder / "node.key").chmod(0o644), "error", "certificate", "every user of this machine"
    ),
    "no key": Fault(lambda site: (site.folder / "node.key").unlink(), "error", "certificate", r"node\.key is missing"),
    "the key of another": Fault(_other_key, "error", "certificate", "the private key is not the certificate's"),
    "a certificate of another authority": Fault(_other_authority, "error", "certificate", "is not signed by"),
    "an expired certificate": Fault(lambda site: site.certify("s0", -3), "error", "certificate", "expired on"),
    "a clock before the certificate": Fault(
        lambda site: setattr(site, "now", site.now - timedelta(days=30)), "error", "certificate", "not valid before"
    ),
    "a certificate that ends too early": Fault(
        _slow_and_short, "error", "certificate", "before the expected end of the training"
    ),
    "a neighbour's certificate that ends soon": Fault(
        lambda site: site.certify("s1", 0.5), "warning", "certificate", "expires on", "s1"
    ),
    "a revoked certificate": Fault(_revoked, "error", "pins", "this site's certificate was revoked"),
    "a neighbour's revoked certificate": Fault(_neighbour_revoked, "error", "pins", "was revoked", "s2"),
    "a revocation list that was changed": Fault(
        lambda site: (site.folder / "revoked.pem").write_text("nonsense"), "error", "pins", "not a list"
    ),
    "a pin of another site": Fault(
        lambda site: (site.folder / "pins" / "s1.pem").write_bytes((site.folder / "pins" / "s2.pem").read_bytes()),
        "error",
        "pins",
        "certificate of s2, expected s1",
    ),
    "no pin": Fault(
        lambda site: (site.folder / "pins" / "s1.pem").unlink(), "warning", "pins", "has no pinned certificate", "s1"
    ),
    "an experiment that was changed": Fault(
        lambda site: site.change("s0/experiment.toml", "eta = 0.05", "eta = 0.06"), "error", "plan", "it was changed"
    ),
    "a rule of the policy": Fault(
        _policy(training={"least_batch": 8}), "error", "policy", r"training\.least_batch: the plan has batch = 4"
    ),
    "a rule about data": Fault(
        _policy(data={"least_rows": 500}), "error", "policy", r"data\.least_rows: the plan has 32 training rows"
    ),
    "a policy that cannot be read": Fault(_policy(trainning={}), "error", "policy", "unknown table or key 'trainning'"),
    "code that nobody has approved": Fault(_policy(code={"approved": True}), "error", "policy", r"code\.approved"),
    "no file with data": Fault(lambda site: (site.place / "s0.csv").unlink(), "error", "data", r"s0\.csv"),
    "a value out of range": Fault(lambda site: write_rows(site.place, 40, 100), "error", "data", "from 0 to 120"),
    "few rows": Fault(lambda site: write_rows(site.place, 12), "warning", "data", "training rows; what it sends"),
    "rows that changed": Fault(_changed_rows, "error", "data", "not those of its last start"),
    "a record that was altered": Fault(_record, "error", "record", "receipts"),
    "a checkpoint that is damaged": Fault(_half_checkpoint, "error", "checkpoint", "is not a checkpoint.*--rejoin"),
    "damaged links": Fault(
        lambda site: (site.folder / "links.json").write_text("{"), "error", "checkpoint", r"links\.json is damaged"
    ),
    "a damaged alarm": Fault(
        lambda site: (site.folder / "alarm.json").write_text(""), "error", "checkpoint", r"alarm\.json is damaged"
    ),
    "an earlier leave": Fault(lambda site: (site.folder / "leave").touch(), "warning", "left", "asked to leave"),
    "a device that is not there": Fault(
        lambda site: site.change("s0/site.toml", 'device = "cpu"', 'device = "cuda:7"'), "error", "data", "cuda:7"
    ),
    "a full disk": Fault(lambda site: setattr(site, "disk", 1000), "error", "disk", r"1\.0 kB free"),
    "no memory": Fault(lambda site: setattr(site, "memory", 100), "error", "memory", "100 bytes of memory free"),
    "a folder that is not writable": Fault(
        lambda site: setattr(site, "writable", False), "error", "rights", "not writable"
    ),
    "a port in use": Fault(_busy_port, "error", "port", "is used by another program"),
    "an address of another machine": Fault(
        lambda site: site.change("s0/site.toml", 'listen = "127.0.0.1', 'listen = "192.0.2.1'),
        "error",
        "port",
        "is not an address of this machine",
    ),
    "a neighbour that is not there": Fault(_silent("refused"), "error", "refused", "does not answer", "s1"),
    "a neighbour that cannot dial in": Fault(
        lambda site: site.shut_in.add("s1"), "warning", "inbound", "cannot dial this site", "s1"
    ),
    "an old address at a neighbour": Fault(_moved, "error", "address", "it dials 127.0.0.1:9", "s1"),
    "a neighbour that shows an unknown certificate": Fault(_unpinned, "error", "pin", "not pinned here", "s1"),
    "a neighbour that has not pinned this site": Fault(_not_pinned_there, "error", "pin", "is not pinned here", "s1"),
    "a neighbour with another plan": Fault(
        lambda site: site.change("s1/site.toml", read_site(site.folder).run, "ab" * 32),
        "error",
        "plan",
        "has another plan: run abababababab",
        "s1",
    ),
    "a neighbour with another version": Fault(
        lambda site: site.answers["s1"].update(version="9.9.9"), "warning", "version", r"netfleet 9\.9\.9", "s1"
    ),
    "a clock that is minutes off": Fault(
        lambda site: site.answers["s1"].update(clock=ahead(600)), "warning", "clock", "10 min ahead of", "s1"
    ),
    "a clock that is hours off": Fault(
        lambda site: site.answers["s2"].update(clock=ahead(-9000)), "error", "clock", "2 h 30 min behind", "s2"
    ),
}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("healthy")
    make_plan_and_data(folder)
    return folder


@pytest.fixture
def site(healthy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hospital]:
    monkeypatch.setenv("NETFLEET_DATA", str(tmp_path))
    made = Hospital(copied(healthy, tmp_path))
    yield made
    for each in made.held:
        each.close()


def test_a_healthy_site_has_no_findings(site: Hospital) -> None:
    report = site.examine()
    assert report.findings == []
    assert [(link.to, link.back) for link in report.links] == [("yes", "yes")] * 2
    assert {result.check for result in report.results} >= {"plan", "data", "disk", "memory", "end", "certificate"}


def test_an_evicted_neighbour_is_no_finding(site: Hospital) -> None:
    site.silent["s2"] = Diagnosis("refused", "refuses the connection", "start it")
    assert main(["evict", str(site.plan), "s2", "--why", "it lies"]) == 0
    report = site.examine()
    assert report.findings == []
    assert [link.name for link in report.links] == ["s1"]


def test_a_site_that_only_dials_out_listens_nowhere(site: Hospital) -> None:
    found = read_site(site.folder)
    site.change("s0/site.toml", f'address = "{found.address}"\nlisten = "{found.listen}"', 'address = ""\nlisten = ""')
    ports = [each.result for each in site.examine().results if each.check == "port"]
    assert ports == ["none: this site only dials out"]


def _alter_the_record(site: Hospital) -> None:
    path = site.folder / "receipts.jsonl"
    path.write_text(path.read_text().replace('"round":3', '"round":4', 1))


def _shorten_the_record(site: Hospital) -> None:
    path = site.folder / "receipts.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def _damage_the_checkpoint(site: Hospital) -> None:
    (path,) = (site.folder / "run").glob("checkpoint-*.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_site_that_has_trained(site: Hospital) -> None:
    """It has a record, checkpoints and a pace, all of them well, until somebody alters them."""
    run_in_memory(site.place / "again", CSV, 3)
    again = Hospital(site.place / "again")
    report = again.examine()
    assert report.findings == []
    assert {"record", "checkpoint", "end"} <= {result.check for result in report.results}
    assert next(each.result for each in report.results if each.check == "end").startswith("0 rounds of")
    for plant, check in (
        (_alter_the_record, "record"),
        (_shorten_the_record, "record"),
        (_damage_the_checkpoint, "checkpoint"),
    ):
        copy = Hospital(copied(again.place, site.place / plant.__name__))
        plant(copy)
        assert [(each.level, each.check) for each in copy.examine().findings] == [("error", check)]


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(site: Hospital, name: str) -> None:
    fault = FAULTS[name]
    fault.plant(site)
    report = site.examine()
    named = [each for each in report.findings if (each.level, each.check, each.about) == fault[1:3] + fault[4:]]
    assert any(_says(str(each), fault.words) for each in named), report.findings
    assert all(each.cure for each in report.findings)
    others = {each.about for each in report.findings} - {fault.about}
    assert not others, report.findings  # nothing is said of those that are well


def _says(text: str, words: str) -> bool:
    return re.search(words, text) is not None
