"""What a site's folder says: policy, plan, certificates, record, checkpoint, port; read in the order of a start.

Nothing is written but what every start writes to follow certificates (`revoked.seen-….pem`).
"""

import errno
import socket
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from netfleet.errors import CertificateError, PolicyError, RecordError
from netfleet.privacy.receipts.record import RECORD_FILE, Torn, check_head, missing_lines, read_head, read_record
from netfleet.runs import checkpoint
from netfleet.runs.config import Experiment
from netfleet.sites.costs.rounds import Rounds
from netfleet.sites.costs.speed import SPAN, measure_saving
from netfleet.sites.doctor.findings import Report
from netfleet.sites.doctor.free import free_disk, free_memory, is_writable
from netfleet.sites.network.listening import listening
from netfleet.sites.planning.certificates import Identity, load_identity
from netfleet.sites.planning.folders import (
    LEAVE_FILE,
    RUN_FOLDER,
    Neighbour,
    Site,
    all_neighbours,
    load_site,
    read_site,
)
from netfleet.sites.planning.module_places import make_site_importable
from netfleet.sites.policy.in_force import PolicyInForce, find_policy
from netfleet.sites.policy.peers import SitePeers
from netfleet.sites.policy.revocation import Events
from netfleet.sites.policy.rules import Finding as RuleFinding
from netfleet.sites.policy.start import findings_before_import
from netfleet.sites.runtime.alarms import read_alarms
from netfleet.sites.runtime.membership import read_links


class Machine(NamedTuple):
    """What the checks ask the machine; tests give other answers."""

    free_disk: Callable[[Path], int] = free_disk
    free_memory: Callable[[], int | None] = free_memory
    writable: Callable[[Path], bool] = is_writable
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    saving: Callable[[Rounds, int, Path], float] = measure_saving
    span: float = SPAN  # seconds for which steps are measured


MACHINE = Machine()


class OpenFolder(NamedTuple):
    """A site's folder that can be read; None is what is broken."""

    folder: Path
    site: Site
    neighbours: list[Neighbour]
    in_force: PolicyInForce
    experiment: Experiment | None
    identity: Identity | None
    peers: SitePeers | None


def open_folder(folder: Path, policy: Path | None, report: Report, log: Events, machine: Machine) -> OpenFolder:
    """Read all files of a site, in the order of a start; what is wrong becomes a finding.

    Raises where there is nothing to look at: the folder is not a site's, or its site.toml cannot be read.
    """
    site = read_site(folder)
    in_force, allowed = _policy(folder, policy, report)
    experiment = identity = peers = None
    if allowed:
        with report.catching("plan"):
            site, experiment = load_site(folder)
            report.note("plan", f"run {site.run[:12]}, {experiment.runs()[0].label}, {experiment.rounds} rounds")
    with report.catching("certificate"):
        identity = load_identity(folder, site.name, machine.now())
    neighbours = list(site.neighbours)
    with report.catching("neighbours"):
        neighbours = all_neighbours(folder)
    if identity is not None:
        with report.catching("pins"):
            peers = SitePeers(folder, identity.ca, identity.certificate, log, in_force)
            neighbours = [each for each in neighbours if peers.why_evicted(each.name) is None]
    return OpenFolder(folder, site, neighbours, in_force, experiment, identity, peers)


def _policy(folder: Path, given: Path | None, report: Report) -> tuple[PolicyInForce, bool]:
    """The policy in force, and whether the plan's code may be imported."""
    make_site_importable(folder)
    try:
        in_force = find_policy(folder, given)
    except PolicyError as error:
        with report.catching("policy"):
            raise error
        return PolicyInForce(), False
    before, allowed = len(report.findings), False
    with report.catching("policy"):
        note_rules(findings_before_import(folder, in_force), report)
        allowed = len(report.findings) == before
        report.note("policy", in_force.name if in_force.path else "none: everything is allowed")
    return in_force, allowed


def note_rules(rules: list[RuleFinding], report: Report) -> None:
    """What the policy says."""
    for rule in rules:
        if not rule.holds:
            what = f"rule {rule.rule}: the plan has {rule.has}, the policy allows {rule.allows}"
            report.add("error", "policy", what, rule.remedy)


def check_folder(opened: OpenFolder, report: Report, machine: Machine, runs: bool = False) -> None:
    """What a start would trip over: rights, an earlier end, the record, the checkpoint, missing pins.

    `runs`: the site's process replaces its checkpoints now.
    """
    folder, site = opened.folder, opened.site
    run = folder / RUN_FOLDER
    for path in (folder, run):
        if path.exists() and not machine.writable(path):
            report.add("error", "rights", f"{path} is not writable for this user", "chown or chmod the folder")
    left = folder / LEAVE_FILE
    if left.exists():
        what = f"{site.name} was asked to leave, or has left ({left.name} is there)"
        report.add("warning", "left", what, "netfleet node DIR --rejoin brings it back; else remove the file")
    if (folder / RECORD_FILE).exists():
        with report.catching("record"):
            report.note("record", f"{_check_record(folder)} lines, none is missing or altered")
    for read in (read_alarms, read_links):
        with report.catching("checkpoint"):
            read(folder)
    if checkpoint.exists(run) and not runs:
        with report.catching("checkpoint"):
            for path in run.glob("checkpoint-*.safetensors"):
                checkpoint.verify(path)
            report.note("checkpoint", f"after round {checkpoint.reached(run)}")
    if opened.peers is not None:
        for neighbour in opened.neighbours:
            _check_pin(opened, neighbour, report)


def _check_record(folder: Path) -> int:
    """The number of lines of a site's record, checked as a start does: without signatures, which may be of an authority
    that was renewed since.
    """
    head, lines = read_head(folder), 0
    for line in read_record(folder):
        if isinstance(line, Torn):  # a crash has left it, and a start cuts it off
            break
        check_head(line, head)
        lines += 1
    if lines < head.lines:
        raise RecordError(f"{missing_lines(lines, head)}; restore both files from a backup (docs/sites.md, The record)")
    return lines


def _check_pin(opened: OpenFolder, neighbour: Neighbour, report: Report) -> None:
    """Whether a neighbour is known by its certificate, and whether that one counts."""
    name, identity, peers = neighbour.name, opened.identity, opened.peers
    assert identity is not None
    assert peers is not None
    try:
        if peers.roots(name) == identity.ca and not neighbour.fingerprint:
            what = "has no pinned certificate: the first that shows one of the authority for this name is accepted"
            cure = f"get its certificate from the operator: netfleet pin DIR {name}.pem"
            report.add("warning", "pins", what, cure, name)
    except CertificateError as error:
        what, _, cure = str(error).partition("; ")
        report.add("error", "pins", what, cure or "ask the operator", name)


def check_port(opened: OpenFolder, report: Report) -> bool:
    """Whether the site can listen at its address, if it has one."""
    if not opened.site.listen:
        report.note("port", "none: this site only dials out")
        return True
    try:
        family, where = listening(opened.site.listen)
        with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
            probe.listen(1)
        return True
    except OSError as error:
        causes = {
            errno.EADDRINUSE: ("is used by another program", "stop that program (ss -ltnp), or change listen"),
            errno.EADDRNOTAVAIL: ("is not an address of this machine", 'write listen = "0.0.0.0:PORT"'),
            errno.EACCES: ("needs rights that this user has not", "use a port from 1024 on"),
        }
        why, cure = causes.get(error.errno or 0, (f"cannot be used ({error.strerror})", "change listen"))
        report.add("error", "port", f"listen = {opened.site.listen} {why}", f"{cure} in site.toml")
        return False
