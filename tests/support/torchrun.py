"""Shared by several tests."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path

from netfleet import load_experiment
from netfleet.runs import checkpoint
from support.fork_server import ForkedPython


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start(arguments: list[str], ranks: int) -> list[ForkedPython]:
    """Some processes that know of each other, as torchrun would start them."""
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    places = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    return [ForkedPython(arguments, shared | place) for place in places]


def finish(processes: list[ForkedPython]) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each."""
    return [process.wait() for process in processes]


def training(folder: Path) -> bool:
    """Whether a run has measured its start."""
    history = folder / "history.jsonl"
    return history.exists() and history.stat().st_size > 0


def until(happened: Callable[[], bool], running: Callable[[], bool]) -> None:
    """Wait until something happened in a process, or the process has ended."""
    for _ in range(1200):
        if happened() or not running():
            return
        time.sleep(0.05)


def shorten(file: Path, rounds: str, folder: Path) -> None:
    """Make a run that was stopped one of fewer rounds; `rounds` is an override such as "rounds=80"."""
    (run,) = load_experiment(file, [rounds]).runs()
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(about | {"hash": run.hash, "config": run.config}))
    checkpoint.assign(folder, run.hash)


EXPERIMENT = """
name = "cluster"
rounds = 60
checkpoint_every = 10
[topology]
kind = "ring"
workers = 6
[problem]
kind = "quadratics"
sigma = 0.5
[[algorithms]]
kind = "net-fleet"
K = 3
eta = 0.02
[evaluation]
every = 5
[engine]
dtype = "float64"
"""
