"""Real sites for tests: processes that run `netfleet node` on this machine, and can be killed."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from netfleet.cli import main
from netfleet.engines.job import Snapshot
from netfleet.privacy.receipts.record import Record
from netfleet.runs import checkpoint
from netfleet.runs.config import experiment
from netfleet.runs.history import History
from netfleet.sites.network import client, grpc_channels
from netfleet.sites.operations.status import SiteStatus, ask_all
from netfleet.sites.planning.certificates import load_identity
from netfleet.sites.planning.folders import Plan
from netfleet.sites.planning.nodes_file import NodeEntry, NodesFile
from netfleet.sites.planning.plan import make_plan
from netfleet.sites.planning.plan_files import write_plan
from netfleet.sites.runtime import join_leave
from netfleet.sites.runtime.membership import Membership
from netfleet.sites.runtime.neighbourhood import SiteHost
from netfleet.sites.runtime.recorder import SiteRecorder
from support.fork_server import SERVER

#: Seconds after which a test gives up.
PATIENCE = 240.0


def plan_sites(folder: Path, table: Mapping[str, Any], count: int, patience: float = 0.0, rejoin: bool = False) -> Plan:
    """Make the folders of sites s0, s1, … on this machine."""
    whole = experiment({**table, "topology": {"workers": count, **table["topology"]}})
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    nodes = NodesFile(
        tuple(NodeEntry(f"s{i}", each, listen=each) for i, each in enumerate(addresses)), patience, rejoin
    )
    plan = make_plan(whole, nodes)
    write_plan(plan, folder / "plan", whole, nodes)
    return plan


_NUMBERS = itertools.count(os.getpid())


def free_ports(count: int) -> list[int]:
    """Ports on which nobody listens, below those that the system gives to clients; each test process has its own."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
    found: list[int] = []
    while len(found) < count:
        port = 10_000 + 2_500 * worker + next(_NUMBERS) % 2_500
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
    return found


def be_site(folder: str, options: list[str], before: Callable[[], None] | None) -> None:
    """The process of a site; `before` may prepare an accident."""
    log = os.open(Path(folder) / "node.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["OMP_NUM_THREADS"] = "1"
    client.PAUSES, grpc_channels.RECONNECT = (0.02, 0.1), (0.1, 0.1)  # gRPC takes no less
    if before is not None:
        before()
    raise SystemExit(main(["node", folder, "--log", "json", "--linger", "10", *options]))


class SiteProcesses:
    """The sites of a plan, each of which may run or not."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan, self._gate = folder / "plan", plan, folder / "go"
        self.running: dict[str, Any] = {}
        self.names = [site.name for site in plan.sites]

    def start(
        self,
        *names: str,
        options: tuple[str, ...] = (),
        before: Callable[[], None] | None = None,
        hold: Mapping[str, int] | None = None,
    ) -> None:
        """Start some sites, or all. Those in `hold` wait after the round given there until `release` is called."""
        for name in names or self.names:
            waits = functools.partial(hold_at, (hold or {})[name], self.gates(name)) if name in (hold or {}) else before
            arguments = (str(self.folder / name), list(options), waits)
            self.running[name] = SERVER.Process(target=be_site, args=arguments, daemon=True)
            self.running[name].start()

    def gates(self, name: str) -> tuple[Path, Path]:
        """What a site waits for that is held."""
        return self._gate, self._gate.with_name(f"go-{name}")

    def release(self, name: str = "") -> None:
        """Let a site that waits go on, or all of them."""
        self.gates(name)[bool(name)].touch()

    def kill(self, name: str) -> None:
        """As a power cut would."""
        self.running[name].kill()
        self.running[name].join()

    def stop(self, name: str) -> int:
        """As an operator would; returns the exit code."""
        os.kill(self.running[name].pid, signal.SIGTERM)
        return self.wait(name)[name]

    def wait(self, *names: str) -> dict[str, int]:
        """Wait for the end of some sites, or all; returns their exit codes."""
        until = time.monotonic() + PATIENCE
        for name in names or list(self.running):
            self.running[name].join(max(until - time.monotonic(), 0))
            assert self.running[name].exitcode is not None, f"{name} did not end:\n{self.tail(name)}"
        return {name: self.running[name].exitcode for name in names or self.running}

    def tail(self, name: str, lines: int = 20) -> str:
        """The last that a site said."""
        path = self.folder / name / "node.log"
        return "\n".join(path.read_text().splitlines()[-lines:]) if path.exists() else "(nothing)"

    def events(self, name: str, what: str | None = None) -> list[dict[str, Any]]:
        """What a site logged."""
        path = self.folder / name / "node.log"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [each for each in found if what in (None, each["event"])]

    def ask(self) -> list[SiteStatus]:
        """The answers that `netfleet status` gets."""
        answers = ask_all(self.plan.sites, load_identity(self.folder / "operator", "operator"), 5.0)
        return [answer.status for answer in answers if answer.status is not None]

    def round(self, name: str) -> int:
        """The round that a site has on disk."""
        try:
            return int(json.loads((self.folder / name / "run" / "checkpoint.json").read_text())["counters"]["t"])
        except FileNotFoundError:
            return 0

    def reach(self, t: int, *names: str) -> None:
        """Wait until some sites have done t rounds."""
        self.until(lambda: all(self.round(name) >= t for name in names))

    def until(self, happened: Callable[[], bool]) -> None:
        """Wait for something."""
        until = time.monotonic() + PATIENCE
        while not happened():
            if time.monotonic() > until:
                raise AssertionError("\n".join(f"--- {name}\n{self.tail(name, 5)}" for name in self.running))
            time.sleep(0.02)

    def folders(self, *names: str) -> list[Path]:
        """The folders of some sites, or all."""
        return [self.folder / name for name in names or self.names]

    def model(self, name: str) -> dict[str, Tensor]:
        """What a site ended with."""
        return load_file(self.folder / name / "model.safetensors")

    def state(self, name: str) -> dict[str, Tensor]:
        """What a site has on disk."""
        (path,) = (self.folder / name / "run").glob("checkpoint-*.safetensors")
        return load_file(path)

    def history(self, name: str) -> list[dict[str, Any]]:
        """A site's records, without what differs between two runs of the same."""
        lines = (self.folder / name / "run" / "history.jsonl").read_text().splitlines()
        return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


@contextlib.contextmanager
def site_processes(
    folder: Path, table: Mapping[str, Any], count: int, patience: float = 0.0, rejoin: bool = False
) -> Iterator[SiteProcesses]:
    """Sites that are gone when the test is over."""
    with site_group(folder, plan_sites(folder, table, count, patience, rejoin)) as made:
        yield made


@contextlib.contextmanager
def site_group(folder: Path, plan: Plan) -> Iterator[SiteProcesses]:
    """The same for a plan in `folder / "plan"`."""
    made = SiteProcesses(folder, plan)
    try:
        yield made
    finally:
        for process in made.running.values():
            process.kill()
        for process in made.running.values():
            process.join()


#: Where a site can be hit while it writes, and how often it gets there in a round.
ACCIDENTS = ("half a checkpoint", "before fsync", "before rename", "after rename", "half a line", "half a receipt")


def arm(kind: str, count: int) -> None:
    """Let this process be killed the count-th time that it gets to a place."""
    left = [count]

    def hit() -> bool:
        left[0] -= 1
        return left[0] == 0

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    _ARMED[kind](hit, die)


def _half_a_checkpoint(hit: Callable[[], bool], die: Callable[[], None]) -> None:
    whole = checkpoint._write

    def write(file: Any, tensors: Any, metadata: Any) -> None:
        if hit():
            buffer = io.BytesIO()
            whole(buffer, tensors, metadata)
            file.write(buffer.getvalue()[: buffer.tell() // 2])
            file.flush()
            die()
        whole(file, tensors, metadata)

    checkpoint._write = write


def _around(name: str, before: bool, hit: Callable[[], bool], die: Callable[[], None]) -> None:
    real = getattr(os, name)

    def call(*arguments: Any) -> Any:
        now = hit()
        if now and before:
            die()
        result = real(*arguments)
        if now:
            die()
        return result

    setattr(os, name, call)


def _half_a_line(hit: Callable[[], bool], die: Callable[[], None]) -> None:
    whole = History.append

    def append(self: History, record: Any) -> None:
        if hit():
            with open(self.folder / "history.jsonl", "a") as file:  # type: ignore[operator]
                file.write(json.dumps(record)[:30])
                file.flush()
            die()
        whole(self, record)

    History.append = append  # type: ignore[method-assign]


def _half_a_receipt(hit: Callable[[], bool], die: Callable[[], None]) -> None:
    whole = Record._write

    def write(self: Record, data: bytes) -> None:
        if hit():
            os.write(self._file, data[: 2 * len(data) // 3])
            die()
        whole(self, data)

    Record._write = write  # type: ignore[method-assign]


_ARMED = {
    "half a receipt": _half_a_receipt,
    "half a checkpoint": _half_a_checkpoint,
    "before fsync": functools.partial(_around, "fsync", True),
    "before rename": functools.partial(_around, "replace", True),
    "after rename": functools.partial(_around, "replace", False),
    "half a line": _half_a_line,
}


def hold_at(t: int, gates: tuple[Path, Path]) -> None:
    """Let this process wait once it has saved round t, until a file is there; it answers its neighbours meanwhile."""
    record = SiteRecorder.record

    def wait(self: SiteRecorder, snapshot: Snapshot, host: Any) -> None:
        record(self, snapshot, host)
        while snapshot.t == t and not any(gate.exists() for gate in gates):
            time.sleep(0.02)

    SiteRecorder.record = wait  # type: ignore[method-assign]


def ask_shortly() -> None:
    """Let this process wait less for a neighbour that does not answer when it joins."""
    join_leave.GRACE = 0.3


def die_before_the_links() -> None:
    """Let this process die when its neighbours have agreed on links, before it has written them down."""
    Membership.write_links = lambda self: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]


def die_before_the_checkpoint() -> None:
    """Let this process die when it has agreed on its links, before it has written what it begins with."""
    checkpoint.save = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]


def die_when_someone_has_left() -> None:
    """Let this process die in the round in which it hears that a neighbour has left."""
    settle = SiteHost.settle

    def die(self: SiteHost, state: Any) -> Any:
        if self.neighbourhood.lost:
            os.kill(os.getpid(), signal.SIGKILL)
        return settle(self, state)

    SiteHost.settle = die  # type: ignore[method-assign]
