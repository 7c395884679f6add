"""All sites of a plan on one machine, for a trial: each a process of its own, exactly as it would run at its site."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from netfleet.runs.progress import describe
from netfleet.sites.operations.status_client import ask_all, whom
from netfleet.sites.planning.folders import Site
from netfleet.sites.planning.identity import Identity

LOG_FILE = "node.log"
#: Seconds between two looks at the sites, and for which they have time to stop.
LOOK, STOP = 1.0, 20.0


def up(folder: Path, sites: Sequence[Site], operator: Identity, options: Sequence[str], console: Console) -> list[str]:
    """Start them and wait for them; returns the names of those that failed. Each writes to its own `node.log`."""
    with _started(folder, sites, options) as running, _bars(sites, console) as (progress, bars):
        while any(process.poll() is None for process in running.values()):
            time.sleep(LOOK)
            for said in ask_all(whom(sites), operator, LOOK):
                if said.table is not None:
                    progress.update(bars[said.whom.name], **_words(said.table))
        for name, process in running.items():
            if process.returncode == 0:
                progress.update(bars[name], completed=progress.tasks[bars[name]].total)
            else:
                progress.update(bars[name], note=f"ended with exit code {process.returncode}; see {LOG_FILE}")
        return [name for name, process in running.items() if process.returncode]


def _words(table: dict[str, Any]) -> dict[str, Any]:
    """A site's answer as its bar shows it."""
    waits = [f"waits for {link['name']}" for link in table["neighbours"] if link["waiting"]]
    measured = [describe(table["record"])] if table["record"] else []
    return {"completed": table["round"], "total": table["rounds"], "note": "  ".join(measured + waits[:2])}


@contextlib.contextmanager
def _started(folder: Path, sites: Sequence[Site], options: Sequence[str]) -> Iterator[dict[str, Any]]:
    """One process for each site; whatever happens, none is left behind."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for site in sites:
            command = [sys.executable, "-m", "netfleet", "node", str(folder / site.name), "--log", "json", *options]
            with open(folder / site.name / LOG_FILE, "ab") as log:
                running[site.name] = subprocess.Popen(command, stdout=log, stderr=log, env=_environment(len(sites)))
        yield running
    finally:
        for process in running.values():
            process.terminate()
        until = time.monotonic() + STOP
        for process in running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.1))
            process.kill()
            process.wait()


def _environment(sites: int) -> dict[str, str]:
    """They share the machine's cores."""
    share = max((os.cpu_count() or 1) // sites, 1)
    return {"OMP_NUM_THREADS": str(share), **os.environ}


@contextlib.contextmanager
def _bars(sites: Sequence[Site], console: Console) -> Iterator[tuple[Progress, dict[str, Any]]]:
    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield progress, {site.name: progress.add_task(site.name, total=None, note="starts") for site in sites}
