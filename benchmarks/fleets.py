"""Nodes of a peer-to-peer system as processes of this machine: what a round takes, and what happens when one is killed.

A system is ours or another with an adapter (adapters/p2p/*.py, which says what the verbs mean). All are given the same
work: digits, a small network, K local steps in a round, every node with every other.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environments import Unavailable
from netfleet.data import SOURCES
from netfleet.runs.config import experiment
from netfleet.sites.planning.nodes_file import NodeEntry, NodesFile
from netfleet.sites.planning.plan import make_plan, write_plan

ADAPTERS = Path(__file__).with_name("adapters") / "p2p"
#: Nodes, local steps, mini-batch, step size, hidden units.
M, K, BATCH, ETA, HIDDEN = 3, 10, 32, 0.05, 64
#: More rounds than any run gets to.
ROUNDS = 1_000_000
#: Seconds: for a system to begin, between two looks, and for `prepare` and `go`.
BEGIN, LOOK, SETUP = 120.0, 0.02, 90.0


@dataclass(frozen=True)
class System:
    """How a system's processes are started in a folder with the work, and how far they are."""

    name: str
    command: Callable[[Path, str, Sequence[str]], list[str]]
    reached: Callable[[Path, int], int]
    verbs: tuple[str, ...]
    away: float  # seconds to look at it while a node is away
    patience: float = 0.0  # ours only
    again: tuple[str, ...] = ()  # options of a node that was killed


def ours(name: str, away: float, patience: float = 0.0, again: tuple[str, ...] = ()) -> System:
    """`netfleet node`."""

    def command(folder: Path, verb: str, more: Sequence[str]) -> list[str]:
        i, *options = more
        return [sys.executable, "-m", "netfleet", "node", str(folder / "plan" / f"s{i}"), "--linger", "1", *options]

    def reached(folder: Path, i: int) -> int:
        return int(json.loads((folder / "plan" / f"s{i}" / "run" / "checkpoint.json").read_text())["counters"]["t"])

    return System(name, command, reached, ("node",), away, patience, again)


def adapted(name: str, python: str, script: str, verbs: tuple[str, ...], away: float) -> System:
    """A system with an adapter, in its own environment."""

    def command(folder: Path, verb: str, more: Sequence[str]) -> list[str]:
        return [python, str(ADAPTERS / script), str(folder), verb, *more]

    return System(name, command, lambda folder, i: int((folder / f"round-{i}").read_text()), verbs, away)


def write_work(folder: Path, patience: float = 0.0) -> None:
    """The work of all nodes, and a plan with their certificates."""
    data, ports = SOURCES.build("digits"), free_ports(M)
    x = data.train_x.reshape(len(data.train_y), -1).numpy()
    parts = np.arange(len(x) // M * M).reshape(M, -1)
    arrays = {"x": x, "y": data.train_y.numpy(), "parts": parts, "ports": np.array(ports)}
    settings = {"K": K, "batch": BATCH, "eta": ETA, "rounds": ROUNDS, "hidden": HIDDEN}
    np.savez(folder / "work.npz", **arrays, **{name: np.array(value) for name, value in settings.items()})  # type: ignore[arg-type]
    table = {
        "name": "bench",
        "rounds": ROUNDS,
        "topology": {"kind": "complete", "workers": M},
        "problem": {"data": "digits", "model": {"kind": "mlp", "hidden": [HIDDEN]}, "batch": BATCH},
        "algorithms": [{"kind": "net-fleet", "K": K, "eta": ETA}],
        "evaluation": {"every": ROUNDS},
    }
    write_sites(folder / "plan", table, ports, patience)


def write_sites(out: Path, table: dict[str, Any], ports: Sequence[int], patience: float = 0.0) -> None:
    """Sites s0, s1, … of an experiment on this machine."""
    addresses = [f"127.0.0.1:{port}" for port in ports]
    nodes = NodesFile(tuple(NodeEntry(f"s{i}", each, listen=each) for i, each in enumerate(addresses)), patience)
    made = experiment(table)
    write_plan(make_plan(made, nodes), out, made, nodes)


def free_ports(count: int) -> list[int]:
    """Ports on which nobody listens."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


class Fleet:
    """The processes of one system."""

    def __init__(self, system: System, folder: Path) -> None:
        self.system, self.folder = system, folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, verb: str, *more: str) -> None:
        """Let one run in the background."""
        name = "-".join((verb, *more[:1]))
        with open(self.folder / f"{name}.log", "ab") as log:
            command = self.system.command(self.folder, verb, more)
            self.processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, env=_environment()
            )

    def do(self, verb: str) -> None:
        """Let one run to its end."""
        if verb not in self.system.verbs:
            return
        command = self.system.command(self.folder, verb, ())
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=SETUP, cwd=self.folder, env=_environment(), check=False
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{verb} took more than {SETUP:.0f} s") from None
        if done.returncode:
            raise Unavailable(f"{verb}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")

    def kill(self, name: str) -> None:
        """As a power cut would: with all that it started, which may have sessions of their own."""
        process = self.processes[name]
        if process.poll() is None:
            for pid in (process.pid, *_started_by(process.pid)):
                with suppress(ProcessLookupError):  # it has ended meanwhile
                    os.kill(pid, signal.SIGKILL)
        process.wait()

    def lives(self, i: int) -> bool:
        """Whether node i is still there, and has not said that its training is over."""
        return self.processes[f"node-{i}"].poll() is None and not (self.folder / f"ended-{i}").exists()

    def reached(self, i: int) -> int:
        """The rounds that node i has done."""
        try:
            return self.system.reached(self.folder, i)
        except (FileNotFoundError, ValueError):
            return 0


def _started_by(pid: int) -> list[int]:
    """The children of a process, theirs, and so on."""
    children = [
        int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()
    ]
    return children + [each for child in children for each in _started_by(child)]


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@contextmanager
def fleet(system: System, folder: Path) -> Iterator[Fleet]:
    """All nodes at work; all are gone afterwards."""
    folder.mkdir()
    write_work(folder, system.patience)
    made = Fleet(system, folder)
    try:
        made.do("prepare")
        if "server" in system.verbs:
            made.start("server")
        for i in range(M):
            made.start("node", str(i))
        made.do("go")
        yield made
    finally:
        for name in made.processes:
            made.kill(name)


def until(happened: Callable[[], bool], seconds: float) -> float | None:
    """The seconds until something happened, or None if it did not."""
    begin = time.monotonic()
    while not happened():
        if time.monotonic() - begin > seconds:
            return None
        time.sleep(LOOK)
    return time.monotonic() - begin


def pace(nodes: Fleet, rounds: int, windows: int, seconds: float) -> list[float]:
    """Seconds per round in a few windows, of so many rounds or so much time each."""
    if until(lambda: min(map(nodes.reached, range(M))) >= 3, BEGIN) is None:
        raise Unavailable(f"no three rounds in {BEGIN:.0f} s")
    return [_window(nodes, rounds, seconds) for _ in range(windows)]


def _window(nodes: Fleet, rounds: int, seconds: float) -> float:
    """From the end of one round to the end of another."""
    before = nodes.reached(0)
    until(lambda: nodes.reached(0) > before, BEGIN)
    begin, first = time.monotonic(), nodes.reached(0)
    until(lambda: nodes.reached(0) >= first + rounds, seconds)
    last = nodes.reached(0)
    if until(lambda: nodes.reached(0) > last, BEGIN) is None:
        raise Unavailable(f"stopped after {last} rounds")
    return (time.monotonic() - begin) / (nodes.reached(0) - first)
