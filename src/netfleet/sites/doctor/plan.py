"""`netfleet doctor PLAN`: what an operator can check: the folders against each other, certificates, running sites.

The folders of sites are looked at as far as they are on this machine. Data, disk and the links between sites are
checked at each site.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from itertools import combinations
from pathlib import Path

from cryptography import x509

import netfleet
from netfleet.errors import NetfleetError
from netfleet.sites.doctor.findings import LinkResult, Report, sort_findings
from netfleet.sites.doctor.local import MACHINE, Machine
from netfleet.sites.doctor.probe import Diagnosis, probe_with
from netfleet.sites.doctor.resources import check_expiry
from netfleet.sites.operations.status import StatusAnswer, ask_all
from netfleet.sites.planning.certificates import (
    OPERATOR,
    Identity,
    fingerprint,
    load_identity,
    read_certificate,
)
from netfleet.sites.planning.folders import (
    REVOKED_FILE,
    SITE_FILE,
    Site,
    admitted,
    all_neighbours,
    load_plan,
    load_site,
)
from netfleet.sites.policy.peers import KnownPeers
from netfleet.sites.policy.pins import Pins
from netfleet.sites.policy.revocation import RevocationList, read_list

#: Asks sites for their status, and looks why one does not answer; doubles in tests.
AskSites = Callable[[Sequence[Site], Identity, KnownPeers], list[StatusAnswer]]
Diagnose = Callable[[Site], Awaitable[Diagnosis | None]]


def ask_sites(sites: Sequence[Site], identity: Identity, peers: KnownPeers) -> list[StatusAnswer]:
    return ask_all(sites, identity, peers=peers)


def examine_plan(
    folder: Path, ask: AskSites = ask_sites, diagnose: Diagnose | None = None, machine: Machine = MACHINE
) -> Report:
    """Check a plan's folder, or the operator's alone; raises if it is neither."""
    operator = folder / OPERATOR if (folder / OPERATOR).is_dir() else folder
    plan, report = load_plan(operator), Report(folder.resolve().name)
    identity, peers = _identity(operator, report, machine)
    sites = _taking_part([*plan.sites, *admitted(operator)], peers, report)
    report.note("plan", f"run {plan.run[:12]}, {plan.algorithm}, {plan.rounds} rounds, {len(sites)} sites")
    here = {site.name: folder / site.name for site in sites if (folder / site.name / SITE_FILE).is_file()}
    found = _folders(here, plan.run, report)
    for site in sites:
        if site.name in found:
            _check_planned(site, found[site.name], report)
    _check_pairs(found, here, report)
    if identity is not None and peers is not None:
        answers = ask(sites, identity, peers)
        _check_running(answers, {site.name: site for site in sites}, diagnose or probe_with(operator), report)
        _check_certificates(operator, here, sites, answers, report, machine.now())
        _check_lists(operator, here, answers, report)
    report.findings = sort_findings(report.findings)
    return report


def _identity(operator: Path, report: Report, machine: Machine) -> tuple[Identity | None, KnownPeers | None]:
    """The operator's certificate and those that it knows; None is what is broken."""
    identity = peers = None
    with report.catching("certificate", OPERATOR):
        identity = load_identity(operator, OPERATOR, machine.now())
        check_expiry(identity.expires, None, machine.now(), report, OPERATOR)
    with report.catching("pins", OPERATOR):
        peers = None if identity is None else KnownPeers(operator, identity.ca)
    return identity, peers


def _taking_part(sites: Sequence[Site], peers: KnownPeers | None, report: Report) -> list[Site]:
    """Without those that the operator has evicted: nothing of theirs matters any more."""
    evicted = {} if peers is None else {site.name: why for site in sites if (why := peers.why_evicted(site.name))}
    if evicted:
        report.note("evicted", ", ".join(f"{name} ({why})" for name, why in evicted.items()))
    return [site for site in sites if site.name not in evicted]


def _folders(here: dict[str, Path], run: str, report: Report) -> dict[str, Site]:
    """The sites whose folders are on this machine and belong to the plan."""
    found = {}
    for name, folder in here.items():
        with report.catching("plan", name):
            site, _ = load_site(folder)
            if site.run != run:
                what = f"has a folder of another plan: run {site.run[:12]}, the operator's is {run[:12]}"
                report.add("error", "plan", what, "take all folders from the same netfleet plan", name)
            else:
                found[name] = site
    if here:
        report.note("folders", f"{', '.join(here)} on this machine; for data, disk and links: netfleet doctor SITE")
    return found


def _check_planned(planned: Site, site: Site, report: Report) -> None:
    """What may be changed in a folder, and then has to be changed at the operator's too."""
    if site.address != planned.address:
        what = f"has the address {site.address} in its site.toml, and {planned.address} in the operator's plan.toml"
        report.add("error", "address", what, "write the same address into both", site.name)


def _check_pairs(found: dict[str, Site], here: dict[str, Path], report: Report) -> None:
    """Sites against each other: addresses, weights, patience, pins, rollbacks."""
    for a, b in combinations(found.values(), 2):
        if a.address and a.address == b.address:
            what = f"has the same address as {b.name}: {a.address}"
            report.add("error", "address", what, "give each site an address of its own", a.name)
    for site in found.values():
        with report.catching("neighbours", site.name):
            for neighbour in all_neighbours(here[site.name]):
                other = found.get(neighbour.name)
                if other is not None:
                    _check_link(site, neighbour.address, neighbour.weight, other, here, report)
    kept = {site.patience for site in found.values()}
    if len(kept) > 1:
        said = ", ".join(f"{site.name} {site.patience:g}" for site in found.values())
        what = f"is not the same at all sites: patience in seconds is {said}"
        report.add("warning", "patience", what, "choose one, or accept that some give up earlier", "plan")
    if len({site.rollbacks for site in found.values()}) > 1:
        _add_rollbacks(found, here, report)


def _add_rollbacks(found: dict[str, Site], here: dict[str, Path], report: Report) -> None:
    """Who was rolled back otherwise than the one that was most often: they refuse each other."""
    most = max(found.values(), key=lambda site: site.rollbacks)
    for site in found.values():
        if site.rollbacks != most.rollbacks:
            what = f"{site.rollbacks}, and {most.name} {most.rollbacks}, so they cannot train together"
            cure, to = f"netfleet node {here[site.name]} --rejoin", most.rollbacks.to
            if site.rollbacks.next(to) == most.rollbacks:
                cure = f"netfleet rollback {here[site.name]} --to {to}, or {cure}"
            report.add("error", "rollbacks", what, cure, site.name)


def _check_link(site: Site, address: str, weight: float, other: Site, here: dict[str, Path], report: Report) -> None:
    """A link as the two ends have it."""
    if address != other.address:
        what = f"has {address} for {other.name}, whose address is {other.address}"
        report.add("error", "address", what, f"correct it in {here[site.name] / SITE_FILE}", site.name)
    back = {each.name: each.weight for each in all_neighbours(here[other.name])}
    if site.name not in back and other.planned and not site.planned:
        what = f"has not agreed to the new site {site.name}: its neighbours.d has no {site.name}.toml"
        report.add("warning", "neighbours", what, f"put {site.name}.toml there", other.name)
    elif back.get(site.name) != weight:
        what = f"has the weight {weight:.6g} for {other.name}, which has {back.get(site.name, 0):.6g} for it"
        report.add("error", "weights", what, "restore both files from the plan", site.name)
    certificate = read_certificate(here[site.name] / "node.pem")
    pinned = Pins(here[other.name], read_certificate(here[other.name] / "ca.pem")).of(site.name)
    if pinned and fingerprint(certificate) not in map(fingerprint, pinned):
        cure = f"netfleet pin {here[other.name]} {here[site.name] / 'node.pem'}"
        report.add("error", "pin", f"has a certificate that {other.name} has not pinned", cure, site.name)


def _check_running(answers: Sequence[StatusAnswer], sites: dict[str, Site], diagnose: Diagnose, report: Report) -> None:
    """What runs: one plan, one version; and why a site does not answer. One that is not started is no finding."""
    missing = [answer for answer in answers if answer.status is None]
    reasons = asyncio.run(_reasons([sites[answer.name] for answer in missing], diagnose))
    for answer, reason in zip(missing, reasons, strict=True):
        report.links.append(LinkResult(answer.name, "no", "", None, None, None, "", "not running"))
        if answer.why.startswith("refuses: ") and "doctor" not in answer.why:
            what = answer.why.partition(";")[0]
            report.add("error", "refusal", what, "compare certificate and pins of operator and site", answer.name)
        elif "another version" in answer.why:
            report.add(
                "error", "version", answer.why.partition(";")[0], "install the same version everywhere", answer.name
            )
        elif reason is not None and reason.check not in ("refused", "absent"):
            level = (
                "warning" if reason.check in ("blocked", "route") else "error"
            )  # only sites have to reach each other
            report.add(level, reason.check, reason.what, reason.cure, answer.name)  # type: ignore[arg-type]
    for status in (answer.status for answer in answers if answer.status is not None):
        state = f"{status.state}, round {status.round} of {status.rounds}"
        report.links.append(LinkResult(status.site, "yes", "", None, None, None, status.version, state))
        if status.run != sites[status.site].run:
            what = f"runs another plan: run {status.run[:12]}, the operator's is {sites[status.site].run[:12]}"
            report.add("error", "plan", what, "take all folders from the same netfleet plan", status.site)
        if status.version != netfleet.__version__:
            what = f"runs netfleet {status.version or 'of an earlier version'}, here it is {netfleet.__version__}"
            report.add("warning", "version", what, "install the same version everywhere", status.site)


async def _reasons(sites: Sequence[Site], diagnose: Diagnose) -> list[Diagnosis | None]:
    return list(await asyncio.gather(*map(diagnose, sites)))


def _check_certificates(
    operator: Path,
    here: dict[str, Path],
    sites: Sequence[Site],
    answers: Sequence[StatusAnswer],
    report: Report,
    now: datetime,
) -> None:
    """How long every site's certificate lasts, against the pace of those that run."""
    seconds = [answer.status.left_seconds for answer in answers if answer.status is not None]
    left = max((timedelta(seconds=min(each, 1e9)) for each in seconds if each is not None), default=None)
    pins, ends = Pins(operator, read_certificate(operator / "ca.pem")), []
    for site in sites:
        with report.catching("certificate", site.name):
            if site.name in here and (here[site.name] / "node.key").exists():
                ends.append((load_identity(here[site.name], site.name, now).expires, site.name))
            elif known := pins.of(site.name):
                ends.append((max(each.not_valid_after_utc for each in known), site.name))
            else:
                what = "has no certificate in the operator's folder"
                report.add("warning", "pins", what, f"netfleet pin {operator} its node.pem", site.name)
    for expires, name in ends:
        check_expiry(expires, left, now, report, name)
    if ends:
        first, name = min(ends)
        report.note("certificates", f"the first expires on {first:%Y-%m-%d} ({name}), in {(first - now).days} days")


def _check_lists(operator: Path, here: dict[str, Path], answers: Sequence[StatusAnswer], report: Report) -> None:
    """Whether all sites have the newest revocation list."""
    newest = _list(operator, OPERATOR, report)
    numbers = {name: _list(folder, name, report).number for name, folder in here.items()}
    numbers |= {answer.name: answer.status.revocations for answer in answers if answer.status is not None}
    for name, number in numbers.items():
        if number < newest.number:
            what = f"has revocation list {number or 'none'}, and the newest is {newest.number}"
            report.add("error", "revoked", what, f"copy {operator / REVOKED_FILE} into its folder", name)
    for entry in newest.entries.values():
        path = here.get(entry.name, operator) / "node.pem"
        if entry.name in here and _serial(path) == entry.serial:
            what = f"has a certificate that was {entry}"
            report.add(
                "error", "revoked", what, "give the site a new certificate, and pin it at its neighbours", entry.name
            )


def _list(folder: Path, name: str, report: Report) -> RevocationList:
    try:
        return read_list(folder / REVOKED_FILE, read_certificate(folder / "ca.pem"))
    except NetfleetError as error:
        with report.catching("revoked", name):
            raise error
        return RevocationList()


def _serial(path: Path) -> int:
    found: x509.Certificate = read_certificate(path)
    return found.serial_number
