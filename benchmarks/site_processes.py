"""Nodes of a peer-to-peer system as processes of this machine, which can be timed and killed.

A system is netfleet or another with an adapter (adapters/sites/*.py; work.py says what the verbs mean). All are given
the same work: digits, a small network, K local steps in a round, every node connected to every other.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.processes import Unavailable, output, variables
from netfleet.data import SOURCES
from netfleet.data.tensors import only
from netfleet.runs.config import experiment
from netfleet.sites.planning.nodes_file import NodeEntry, NodesFile
from netfleet.sites.planning.plan import make_plan
from netfleet.sites.planning.plan_files import write_plan

ADAPTERS = Path(__file__).with_name("adapters") / "sites"
#: Nodes, local steps, mini-batch, step size, hidden units.
M, K, BATCH, ETA, HIDDEN = 3, 10, 32, 0.05, 64
ROUNDS = 1_000_000  # more than any run reaches
#: Seconds: for the first rounds of a system, between two looks, and for `prepare` and `go`.
BEGIN, LOOK, SETUP = 120.0, 0.02, 90.0


class System(NamedTuple):
    name: str
    away: float  # seconds to watch the others while a node is away
    patience: float = 0.0
    again: tuple[str, ...] = ()  # options of a node that was killed
    verbs: tuple[str, ...] = ("node",)
    adapter: tuple[str, str] | None = None  # its Python and its script; None: netfleet


def write_work(folder: Path, patience: float = 0.0) -> None:
    """The work of all nodes, and a plan with their certificates."""
    data, ports = SOURCES.build("digits"), free_ports(M)
    x = only(data.train_x).reshape(len(data.train_y), -1).numpy()
    parts = np.arange(len(x) // M * M).reshape(M, -1)
    settings = {"ports": ports, "K": K, "batch": BATCH, "eta": ETA, "rounds": ROUNDS, "hidden": HIDDEN}
    np.savez(folder / "work.npz", x=x, y=only(data.train_y).numpy(), parts=parts, **settings)  # type: ignore[arg-type]
    problem = {"data": "digits", "model": {"kind": "mlp", "hidden": [HIDDEN]}, "batch": BATCH}
    table = {"topology": {"kind": "complete", "workers": M}, "problem": problem, "evaluation": {"every": ROUNDS}}
    write_sites(folder / "plan", table, ports, patience)


def write_sites(out: Path, table: dict[str, Any], ports: Sequence[int], patience: float = 0.0, relay: int = 0) -> None:
    """Sites s0, s1, … of an experiment on this machine; one with port 0 only dials out. `relay` is a relay's port."""
    addresses = [f"127.0.0.1:{port}" if port else "" for port in ports]
    entries = [NodeEntry(f"s{i}", each, listen=each, reachable=bool(each)) for i, each in enumerate(addresses)]
    nodes = NodesFile(tuple(entries), patience, relay=f"127.0.0.1:{relay}" if relay else "")
    given = {"name": "bench", "rounds": ROUNDS, "algorithms": [{"kind": "net-fleet", "K": K, "eta": ETA}]}
    made = experiment(given | table)
    write_plan(make_plan(made, nodes), out, made, nodes)


def free_ports(count: int) -> list[int]:
    """Ports on which nobody listens."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


class RunningSystem:
    def __init__(self, system: System, folder: Path) -> None:
        self.system, self.folder = system, folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def _command(self, verb: str, *more: str) -> list[str]:
        if self.system.adapter:
            python, script = self.system.adapter
            return [python, str(ADAPTERS / script), str(self.folder), verb, *more]
        i, *options = more
        return [sys.executable, "-m", "netfleet", "node", f"{self.folder}/plan/s{i}", "--linger", "1", *options]

    def start(self, verb: str, *more: str) -> None:
        name, env = "-".join((verb, *more[:1])), variables() | {"OMP_NUM_THREADS": "1"}
        with open(self.folder / f"{name}.log", "ab") as log:
            command = self._command(verb, *more)
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, env=env)

    def run(self, verb: str) -> None:
        """Run a verb to its end, if the system has it."""
        if verb in self.system.verbs:
            output(self._command(verb), SETUP, self.folder, OMP_NUM_THREADS="1")

    def kill(self, name: str) -> None:
        """Kill a process, as a power cut would, with all that it started, which may have sessions of their own."""
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
        other = self.system.adapter is not None
        try:
            text = (self.folder / (f"round-{i}" if other else f"plan/s{i}/run/checkpoint.json")).read_text()
            return int(text if other else json.loads(text)["counters"]["t"])
        except (FileNotFoundError, ValueError):
            return 0


def _started_by(pid: int) -> list[int]:
    """The children of a process, theirs, and so on."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for file in files for child in file.read_text().split()]
    return children + [each for child in children for each in _started_by(child)]


@contextmanager
def running(system: System) -> Iterator[RunningSystem]:
    """All nodes of a system at work in a folder of their own; all are killed afterwards."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        write_work(Path(folder), system.patience)
        nodes = RunningSystem(system, Path(folder))
        try:
            nodes.run("prepare")
            if "server" in system.verbs:
                nodes.start("server")
            for i in range(M):
                nodes.start("node", str(i))
            nodes.run("go")
            yield nodes
        finally:
            for name in nodes.processes:
                nodes.kill(name)


def until(happened: Callable[[], bool], seconds: float) -> float | None:
    """The seconds until something happened, or None if it did not."""
    begin = time.monotonic()
    while not happened():
        if time.monotonic() - begin > seconds:
            return None
        time.sleep(LOOK)
    return time.monotonic() - begin


def seconds_per_round(nodes: RunningSystem, rounds: int, windows: int, seconds: float) -> list[float]:
    """Seconds per round in a few windows, each of so many rounds or so much time, which begin and end with a round."""
    if until(lambda: min(map(nodes.reached, range(M))) >= 3, BEGIN) is None:
        raise Unavailable(f"no three rounds in {BEGIN:.0f} s")
    found = []
    for _ in range(windows):
        first, begin = _next_round(nodes), time.monotonic()
        until(lambda last=first + rounds: nodes.reached(0) >= last, seconds)  # type: ignore[misc]
        done = _next_round(nodes) - first
        found.append((time.monotonic() - begin) / done)
    return found


def _next_round(nodes: RunningSystem) -> int:
    """Wait for the end of a round; how many are done then."""
    last = nodes.reached(0)
    if until(lambda: nodes.reached(0) > last, BEGIN) is None:
        raise Unavailable(f"stopped after {last} rounds")
    return nodes.reached(0)
