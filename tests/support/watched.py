"""A folder of runs as `netfleet run --record-workers` writes it, and sites that answer, for `netfleet watch`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from netfleet.runs.history import History
from netfleet.runs.process_file import PROCESS_FILE, process_file
from netfleet.runs.worker_log import WorkerLog
from netfleet.sites.network.wait_cause import State
from netfleet.sites.operations.status import LinkStatus, SiteStatus, Sketch, StatusAnswer, WaitStatus
from netfleet.sites.planning.alarm_settings import Alarm

WORKERS = 5
TOPOLOGY = {"kind": "ring", "workers": WORKERS, "weights": {"kind": "metropolis"}}


def record(t: int, shift: float = 0.0) -> dict[str, Any]:
    """A plausible evaluation after round t."""
    good = 0.9 - 0.8 / (1 + t / 7) - shift
    parts = {"worker_accuracy_mean": good - 0.1, "worker_accuracy_min": good - 0.2, "worker_accuracy_max": good}
    rest = {"consensus_error": math.exp(-t / 9), "grad_norm2": 1 / (1 + t), "tracking_error": 1e-7 * t, "eta": 0.05}
    counts = {"bytes": 4000 * t, "samples": 320 * t, "seconds": 0.25 * t}
    return {"round": t, "accuracy": good, "loss": 2 - good, **parts, **rest, **counts}


def start_run(folder: Path, label: str = "NET-FLEET", seed: int = 0, rounds: int = 40) -> History:
    config = {"rounds": rounds, "topology": TOPOLOGY, "algorithm": {"kind": "net-fleet"}}
    history = History(config, f"{seed:064x}", label, seed, folder=folder / f"{label.lower()}-seed{seed}")
    history.write_config()
    return history


def add_rounds(history: History, first: int, last: int, step: int = 1, *, workers: bool = True) -> None:
    assert history.folder is not None
    log = WorkerLog(history.folder, WORKERS)
    for t in range(first, last + 1, step):
        if workers:
            accuracy = [0.5 + 0.01 * i + t / 1000 for i in range(WORKERS)]
            log.append(
                t, {"accuracy": accuracy, "loss": [1 - a for a in accuracy], "distance": [0.1 * i for i in range(5)]}
            )
        history.append(record(t, 0.1 * history.seed))


@contextmanager
def made_by(folder: Path) -> Iterator[None]:
    """Within the context this process makes the folder's runs."""
    with process_file(folder):
        yield


def kill(folder: Path) -> None:
    """The folder as a process leaves it that was killed."""
    with process_file(folder):
        about = json.loads((folder / PROCESS_FILE).read_text())
    (folder / PROCESS_FILE).write_text(json.dumps(about | {"started": "1"}))


NAMES = ("north", "east", "south")


def site(number: int, t: int, state: str = "training", waits: int | None = None, alarm: bool = False) -> StatusAnswer:
    """The answer of one of three sites in a triangle; `waits` is the number of the site for which it waits."""
    others = [j for j in range(3) if j != number]
    links = tuple(
        LinkStatus(
            NAMES[j], j, t, 0, 1.0, "has not answered" if j == waits else "", None, False, True, 1000 * t + j, 50
        )
        for j in others
    )
    cause: State = "silent"
    status = SiteStatus(
        site=NAMES[number],
        number=number,
        run="ab" * 32,
        algorithm="NET-FLEET",
        state=state,
        round=t,
        rounds=40,
        seconds=9.0,
        bytes=100,
        record={"round": t, "accuracy": 0.5 + number / 10, "loss": 0.25, "epsilon": 1.5 + number, "bytes": 1000 * t},
        neighbours=links,
        known={},
        apart=(),
        refused=0,
        certificate_days=99,
        sketches=(Sketch(t, (0.5 * (number - 1),) * 64),),
        wait=None if waits is None else WaitStatus(7.0, waits, NAMES[waits], cause, 7.0),
        round_seconds=2.0,
        left_seconds=2.0 * (40 - t),
        alarms=(Alarm("loss", "", 3),) if alarm else (),
    )
    return StatusAnswer(NAMES[number], status)
