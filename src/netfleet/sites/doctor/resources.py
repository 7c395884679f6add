"""What a site needs of its data, its machine and its time, against what there is."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from rich.filesize import decimal

from netfleet.algorithms.base import Algorithm
from netfleet.algorithms.build import make_algorithm
from netfleet.problems.base import Problem
from netfleet.runs import checkpoint
from netfleet.runs.progress import in_words
from netfleet.sites.costs.rounds import QUICK, ModelSize, Rounds, rounds_of, size_of
from netfleet.sites.costs.sizes import Sizes, sizes_of
from netfleet.sites.doctor.findings import Finding, Report, sort_findings
from netfleet.sites.doctor.local import MACHINE, Machine, OpenFolder, note_rules
from netfleet.sites.doctor.pace import Pace, measured_pace, pace_so_far
from netfleet.sites.planning.certificates import SOON, read_certificate
from netfleet.sites.planning.folders import RUN_FOLDER
from netfleet.sites.policy.pins import Pins
from netfleet.sites.runtime.data_check import check_rows_of, inspect_data

#: A certificate must last this much longer than the training is expected to take, and as long again.
SPARE = timedelta(days=1)
RENEW = "renew it (docs/sites.md, Renewing certificates)"


def check_data(opened: OpenFolder, report: Report) -> Problem | None:
    """The contract, the policy's rules about data, and whether the rows are those of the last start."""
    if opened.experiment is None:
        return None
    data = None
    with report.catching("data"):
        data = inspect_data(opened.site, opened.experiment, opened.in_force)
        note_rules(data.rules, report)
        for why in data.doubts:
            report.add("warning", "data", why, "train with more rows or smaller batches, or accept it")
        if data.facts is not None:
            classes = f" of {data.facts.classes} classes" if data.facts.classes else ""
            report.note("data", f"{data.facts.rows} training rows{classes}")
        elif data.problem is None:
            report.note("data", "not checked: a loop of the site's own has it")
        check_rows_of(opened.folder, opened.site, data)
    return None if data is None else data.problem


def check_resources(opened: OpenFolder, made: Rounds, report: Report, machine: Machine) -> Sizes:
    """Disk and memory for the rounds that are left."""
    assert opened.experiment is not None
    rounds, run = opened.experiment.rounds, opened.folder / RUN_FOLDER
    done = checkpoint.reached(run) if checkpoint.exists(run) and not report.has("checkpoint") else 0
    sizes = sizes_of(made, len(opened.neighbours), rounds - done, opened.site.keep)
    there = sum(dict(map(_size, run.rglob("checkpoint-*.safetensors"))).values())
    needed, free = max(sizes.disk - there, sizes.checkpoint), machine.free_disk(opened.folder)
    report.note("disk", f"{decimal(needed)} needed, {decimal(free)} free; a checkpoint has {decimal(sizes.checkpoint)}")
    if free < needed:
        what = f"the disk of {opened.folder} has {decimal(free)} free, and the training needs {decimal(needed)}"
        report.add("error", "disk", what, "free some space, or move the folder to a larger disk")
    memory = machine.free_memory()
    if memory is not None:
        report.note("memory", f"{decimal(sizes.memory)} needed at least, {decimal(memory)} free")
        if memory < sizes.memory:
            what = f"the machine has {decimal(memory)} of memory free, and a round needs {decimal(sizes.memory)}"
            report.add("error", "memory", what, "end other programs, or use a machine with more memory")
    return sizes


def _size(path: Path) -> tuple[int, int]:
    """A file's number and its bytes: checkpoints that are kept are links. A site that runs may have replaced it."""
    try:
        found = path.stat()
        return found.st_ino, found.st_size
    except FileNotFoundError:
        return 0, 0


def check_time(opened: OpenFolder, pace: Pace | None, report: Report, machine: Machine) -> None:
    """Whether the certificates of this site and of its neighbours last until the expected end."""
    left, now, identity = None, machine.now(), opened.identity
    if pace is not None:
        left = timedelta(seconds=min(pace.left, 1e9))
        how = "as until now" if pace.known else "if no neighbour computes more slowly"
        report.note("end", f"{pace.rounds} rounds of {pace.seconds:.2g} s: in {in_words(pace.left)}, {how}")
    if identity is None:
        return
    report.note("certificate", f"until {identity.expires:%Y-%m-%d}, {(identity.expires - now).days} days")
    check_expiry(identity.expires, left, now, report)
    with report.catching("pins"):
        pins = Pins(opened.folder, read_certificate(opened.folder / "ca.pem"))
        for neighbour in opened.neighbours:
            if pinned := pins.of(neighbour.name):
                last = max(each.not_valid_after_utc for each in pinned)
                if last < identity.expires:
                    check_expiry(last, left, now, report, neighbour.name)


def check_expiry(expires: datetime, left: timedelta | None, now: datetime, report: Report, about: str = "") -> None:
    """A finding where a certificate ends before the training, or soon after the expected end."""
    whose = "has a certificate (or authority) that" if about else "this site's certificate, or its authority's,"
    if now > expires:
        report.add("error", "certificate", f"{whose} expired on {expires:%Y-%m-%d %H:%M} UTC", RENEW, about)
        return
    what = f"{whose} expires on {expires:%Y-%m-%d %H:%M} UTC"
    if left is not None and expires < now + left:
        report.add("error", "certificate", f"{what}, before the expected end of the training", RENEW, about)
    elif expires < now + (SOON if left is None else 2 * left + SPARE):
        report.add("warning", "certificate", what, RENEW, about)


class Computed(NamedTuple):
    """Bytes of a message (0: not known), and the pace without exchanges (None: not known)."""

    message: int
    pace: Pace | None


def check_machine(opened: OpenFolder, report: Report, machine: Machine) -> Computed:
    """Data, disk, memory and the pace, for which the plan's code is imported and the data read."""
    before = len(report.findings)
    problem, experiment = check_data(opened, report), opened.experiment
    if experiment is None or any(each.level == "error" for each in report.findings[before:]):
        return Computed(0, None)
    pace = pace_so_far(opened.folder / RUN_FOLDER, experiment)
    if problem is None:
        return Computed(0, pace)
    algorithm = make_algorithm(experiment.runs()[0].config["algorithm"])
    made = rounds_of(algorithm, size_of(problem), experiment.rounds, limits=QUICK)
    sizes = check_resources(opened, made, report, machine)
    if pace is None:
        writes = not report.has("rights") and not report.has("disk")
        save = machine.saving(made, len(opened.neighbours), opened.folder) if writes else 0.0
        pace = measured_pace(problem, algorithm, made, experiment, save, machine.span)
    return Computed(sizes.message, pace)


def quick_findings(
    opened: OpenFolder, algorithm: Algorithm, size: ModelSize, machine: Machine = MACHINE
) -> list[Finding]:
    """What `netfleet node` checks at its start beyond what it raises: numbers only, no network and no waiting."""
    report, experiment = Report(opened.site.name), opened.experiment
    assert experiment is not None
    made = rounds_of(algorithm, size, experiment.rounds, limits=QUICK)
    check_resources(opened, made, report, machine)
    if (pace := pace_so_far(opened.folder / RUN_FOLDER, experiment)) is not None:
        check_time(opened, pace, report, machine)
    return sort_findings(report.findings)
