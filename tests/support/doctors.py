"""Sites for tests of `netfleet doctor`: a plan on disk, and neighbours that answer in memory."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from netfleet.errors import TransportError
from netfleet.sites.doctor.answering import Answerer, DoctorServer
from netfleet.sites.doctor.findings import Report
from netfleet.sites.doctor.local import Machine, OpenFolder
from netfleet.sites.doctor.probe import Diagnosis
from netfleet.sites.doctor.site import Surroundings, examine_site
from netfleet.sites.network.loop_thread import LoopThread
from netfleet.sites.network.transport import DIRECT, REVERSE, MemoryNetwork, MemoryTransport, Transport, Way
from netfleet.sites.planning import certificates as tls
from netfleet.sites.planning.certificates import Authority, load_authority, load_identity
from netfleet.sites.planning.folders import Neighbour, read_site
from netfleet.sites.policy.peers import SitePeers
from support.site_peers import Log
from support.site_processes import plan_sites

#: Three sites, each with a CSV file of its own.
CSV: dict[str, Any] = {
    "rounds": 20,
    "topology": {"kind": "ring"},
    "problem": {
        "kind": "classification",
        "partition": "sites",
        "model": "softmax",
        "batch": 4,
        "data": {
            "kind": "csv",
            "path": "{site}.csv",
            "sites": ["s0", "s1", "s2"],
            "target": "ill",
            "classes": ["no", "yes"],
            "features": {"age": {"kind": "number", "range": [0, 120]}},
        },
    },
    "algorithms": [{"kind": "net-fleet", "K": 2, "eta": 0.05}],
}


def write_rows(folder: Path, count: int = 40, age: int = 20) -> None:
    """The files of all sites."""
    rows = "".join(f"{age + i},{('no', 'yes')[i % 2]}\n" for i in range(count))
    for name in ("s0", "s1", "s2"):
        (folder / f"{name}.csv").write_text(f"age,ill\n{rows}")


def make_plan_and_data(folder: Path) -> None:
    plan_sites(folder, CSV, 3)
    write_rows(folder)


class OneWay(MemoryTransport):
    """Reaches nobody, as behind a firewall that lets nothing out."""

    async def pull(self, to: Neighbour, request: bytes) -> Any:
        raise TransportError("cannot be reached (Connection timed out)")
        yield b""

    async def ways(self, to: Neighbour, seconds: float) -> list[Way]:
        return [Way(DIRECT, "cannot be reached (Connection timed out)"), Way(REVERSE)]

    async def status_at(self, to: Neighbour, target: str, seconds: float) -> bytes:
        raise TransportError("cannot be reached (Connection timed out)")


class Hospital:
    """Site s0 with its folder, the machine it is on, and what its neighbours s1 and s2 answer."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.plan, self.place = folder / "plan" / "s0", folder / "plan", folder
        self.network = MemoryNetwork()
        self.writable = True
        self.disk, self.memory, self.now = 1 << 40, 1 << 40, datetime.now(UTC)
        #: Options of the neighbours' `Answerer`.
        self.answers: dict[str, dict[str, Any]] = {name: {"seconds": 0.0} for name in ("s1", "s2")}
        self.silent: dict[str, Diagnosis | None] = {}  # neighbours that do not serve, and what a probe says of them
        self.shut_in: set[str] = set()  # neighbours that cannot dial
        self.held: list[socket.socket] = []  # ports that other programs use

    @property
    def authority(self) -> Authority:
        return load_authority(self.plan / "ca" / "ca.pem", self.plan / "ca" / "ca.key")

    def change(self, name: str, before: str, after: str) -> None:
        """Change a text in a file of the plan."""
        path = self.plan / name
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after))

    def certify(self, name: str, days: float, authority: Authority | None = None) -> None:
        """Give a site a new certificate for its key that ends so many days from now; of this authority, all pin it."""
        key = tls.read_key(self.plan / name / "node.key")
        begun = self.now + timedelta(days=days - 1)
        made = tls.issue(authority or self.authority, name, "127.0.0.1", key.public_key(), 1, min(begun, self.now))
        if days > 1:
            made = tls.issue(authority or self.authority, name, "127.0.0.1", key.public_key(), round(days), self.now)
        pins = self.plan.glob(f"*/*/{name}.pem") if authority is None else []
        for path in (self.plan / name / "node.pem", *pins):
            path.write_bytes(tls.certificate_pem(made))

    def write_pace(self, seconds: float) -> None:
        """The history of one round that took so long."""
        run = self.folder / "run"
        run.mkdir()
        (run / "history.jsonl").write_text(
            json.dumps({"round": 1, "seconds": seconds, "bytes": 0, "samples": 0}) + "\n"
        )
        about = {"config": {}, "hash": "0" * 64, "algorithm": "NET-FLEET", "label": "NET-FLEET", "seed": 0}
        (run / "config.json").write_text(json.dumps(about))

    def examine(self) -> Report:
        """What `netfleet doctor` says of s0."""
        with self._neighbours():
            machine = Machine(
                lambda folder: self.disk,
                lambda: self.memory,
                lambda path: self.writable,
                lambda: self.now,
                lambda made, neighbours, folder: 0.01,
                span=0.0,
            )
            return examine_site(self.folder, around=Surroundings(self._own, self._diagnose, machine))

    def _own(self, opened: OpenFolder) -> Transport:
        assert opened.identity is not None
        return self.network.transport("s0", opened.identity.certificate, opened.peers)

    async def _diagnose(self, to: Any) -> Diagnosis | None:
        return self.silent.get(to.name)

    @contextmanager
    def _neighbours(self) -> Iterator[None]:
        with LoopThread() as loop:
            stack = AsyncExitStack()
            try:
                for name in self.answers:
                    if name not in self.silent:
                        loop.wait(self._serve(name, stack))
                yield
            finally:
                loop.wait(stack.aclose())

    async def _serve(self, name: str, stack: AsyncExitStack) -> None:
        folder, log = self.plan / name, Log()
        site, identity = read_site(folder), load_identity(folder, name)
        peers = SitePeers(folder, identity.ca, identity.certificate, log)
        kind = OneWay if name in self.shut_in else MemoryTransport
        transport = kind(self.network, name, identity.certificate, peers)
        answerer = Answerer(site, transport, "node", **self.answers[name])
        stack.push_async_callback(transport.close)
        server = DoctorServer(site.neighbours, answerer, peers, log.refused)
        await stack.enter_async_context(transport.serve(server))


def ahead(seconds: float) -> Any:
    """A clock that is not right."""
    return lambda: time.time() + seconds


def copied(source: Path, to: Path) -> Path:
    shutil.copytree(source, to, dirs_exist_ok=True)
    return to
