"""Sites of a plan on disk with their certificates, and servers and clients that look at them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import torch

from netfleet.cli import main
from netfleet.engines.host import Tag
from netfleet.errors import TransportError
from netfleet.sites.network.client import Answer, Client, Wanted
from netfleet.sites.network.outbox import Outbox
from netfleet.sites.network.receipts import NoReceipts
from netfleet.sites.network.server import SiteServer
from netfleet.sites.network.transport import Contact, Transport
from netfleet.sites.network.wire import Expected, Kind
from netfleet.sites.planning import certificates as tls
from netfleet.sites.planning.certificates import Authority, Identity, load_identity
from netfleet.sites.planning.folders import Neighbour, load_site
from netfleet.sites.policy.in_force import NO_POLICY, PolicyInForce
from netfleet.sites.policy.peers import SitePeers
from netfleet.sites.policy.settings import parse_policy
from netfleet.sites.runtime.membership import Membership

T, WORDS, MESSAGE = 3, "float32[7]", torch.arange(28, dtype=torch.uint8)
PATH: dict[str, Any] = {
    "rounds": 10,
    "topology": {"kind": "path"},
    "problem": {"kind": "quadratics", "d": 7},
    "algorithms": [{"kind": "net-fleet", "K": 2, "eta": 0.05}],
}


class Log:
    """A log that remembers."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []
        self.refusals: list[tuple[str, str]] = []

    def event(self, what: str, *, level: str = "info", **fields: object) -> None:
        self.events.append((what, fields))

    def refused(self, who: str, why: str) -> None:
        self.refusals.append((who, why))

    def whys(self) -> str:
        return " | ".join(why for _, why in self.refusals)


class World(NamedTuple):
    """Sites s0 - s1 - s2 in a row, on disk."""

    plan: Path
    authority: Authority

    def folder(self, name: str) -> Path:
        return self.plan / name

    def identity(self, name: str) -> Identity:
        return load_identity(self.folder(name), name)

    def peers(self, name: str, log: Log, in_force: PolicyInForce = NO_POLICY) -> SitePeers:
        identity = self.identity(name)
        return SitePeers(self.folder(name), identity.ca, identity.certificate, log, in_force)

    def impostor(self, name: str, key: bytes | None = None) -> Identity:
        """Another certificate of the same authority for this name; with the key of the first one if it is given."""
        made = tls.new_key() if key is None else tls.load_pem_private_key(key, None)
        certificate = tls.issue(self.authority, name, "127.0.0.1", made.public_key(), 1)  # type: ignore[arg-type]
        pem = tls.certificate_pem(certificate)
        return Identity(name, self.identity(name).ca, pem, tls.key_pem(made), certificate.not_valid_after_utc)  # type: ignore[arg-type]


S1 = Neighbour("s1", 1, "127.0.0.1:1", 0.5)


def in_force(**tables: dict[str, Any]) -> PolicyInForce:
    return PolicyInForce(parse_policy(tables), Path("own.toml"), "ab" * 32)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(60):
            await scenario

    asyncio.run(in_time())


def make_server(world: World, log: Log) -> tuple[SiteServer, Membership, SitePeers]:
    """The server of s0, with a message of round 3."""
    site, _ = load_site(world.folder("s0"))
    outbox, peers = Outbox(), world.peers("s0", log)
    members = Membership(world.folder("s0"), site, 10, outbox, log.refused)
    outbox.post(Tag(T, 0), outbox.copy(WORDS, MESSAGE))
    members.start(T)
    answers: Any = NoReceipts(), lambda: None, lambda name: b"{}"
    server = SiteServer(site, outbox, members, log.refused, *answers, peers=peers)
    return server, members, peers


async def ask(world: World, transport: Transport, log: Log) -> Answer:
    """s1 asks s0 once for its message."""
    site, _ = load_site(world.folder("s1"))
    client, run = Client(site, transport, log.refused, NoReceipts()), site.run_id
    contact = Contact(next(each for each in site.neighbours if each.name == "s0"))
    wanted = Wanted(Expected(run, 0, T, 0, WORDS, 28), memoryview(bytearray(28)))
    try:
        return await client._attempt(contact, Kind.PULL, wanted)
    except TransportError as error:
        client.note_failure(contact, error)
        raise


def revoke(world: World, name: str, *options: str) -> int:
    return main(["revoke", str(world.plan), name, "--why", "its laptop was stolen", *options])
