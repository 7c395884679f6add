"""Runs all sites of a plan on one machine, for a trial: each in its own process, as it would run at its site; and the
relay.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from netfleet.errors import TransportError
from netfleet.runs.history import describe
from netfleet.runs.progress import in_words
from netfleet.sites.operations.status import SiteStatus, ask_all
from netfleet.sites.planning.certificates import Identity
from netfleet.sites.planning.folders import Site
from netfleet.sites.relay.settings import RELAY_FOLDER

LOG_FILE, OPTIONS = "node.log", ("--log", "json", "--linger", "10")
#: Seconds between two questions to the sites, and for which they have time to stop.
INTERVAL, STOP = 1.0, 20.0


def up(folder: Path, sites: Sequence[Site], operator: Identity, console: Console) -> list[str]:
    """Start them and wait for them; returns the names of those that failed. Each writes to its own `node.log`."""
    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    progress = Progress(*columns, console=console, disable=not console.is_terminal)
    relay = sites[0].relay if (folder / RELAY_FOLDER).is_dir() else ""
    with running_relay(folder, relay) as check, _started(folder, sites) as running, progress:
        bars = {site.name: progress.add_task(site.name, total=None, note="starts") for site in sites}
        while not _all_ended(running.values(), INTERVAL):
            check()
            for answer in ask_all(sites, operator, INTERVAL):
                if answer.status is not None:
                    _show(answer.status, progress, bars[answer.name])
        for name, process in running.items():
            if process.returncode == 0:
                progress.update(bars[name], completed=progress.tasks[bars[name]].total)
            else:
                progress.update(bars[name], note=f"ended with exit code {process.returncode}; see {LOG_FILE}")
        return [name for name, process in running.items() if process.returncode]


def _all_ended(processes: Iterable[subprocess.Popen[bytes]], seconds: float) -> bool:
    until = time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(max(until - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            return False
    return True


def _show(status: SiteStatus, progress: Progress, bar: TaskID) -> None:
    waits = [] if status.wait is None else [f"waits {in_words(status.wait.seconds)} for {status.wait.name}"]
    measured = [describe(dict(status.record))] if status.record else []
    progress.update(bar, completed=status.round, total=status.rounds, note="  ".join(measured + waits))


@contextlib.contextmanager
def running_relay(folder: Path, address: str) -> Iterator[Callable[[], None]]:
    """The plan's relay, if it has one; it ends with the context. Gives a check that raises if it has ended before."""
    if not address:
        yield lambda: None
        return
    command = [sys.executable, "-m", "netfleet", "relay", str(folder / RELAY_FOLDER), "--log", "json"]
    with (
        open(folder / RELAY_FOLDER / LOG_FILE, "ab") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as relay,
    ):

        def check() -> None:
            if relay.poll() is not None:  # sites without an address would wait for it
                raise TransportError(f"the relay has ended (exit code {relay.poll()}); see {log.name}")

        try:
            yield check
        finally:
            relay.terminate()


@contextlib.contextmanager
def _started(folder: Path, sites: Sequence[Site]) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """One process for each site; none outlives the context."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    share = max((os.cpu_count() or 1) // len(sites), 1)
    environment = {"OMP_NUM_THREADS": str(share), **os.environ}  # they share the machine's cores
    try:
        for site in sites:
            command = [sys.executable, "-m", "netfleet", "node", str(folder / site.name), *OPTIONS]
            with open(folder / site.name / LOG_FILE, "ab") as log:
                running[site.name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        yield running
    finally:
        for process in running.values():
            process.terminate()
        _all_ended(running.values(), STOP)
        for process in running.values():
            process.kill()
            process.wait()
