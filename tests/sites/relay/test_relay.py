"""Who may use a relay, what bounds it, and what sites do when it is gone."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from netfleet.cli import main
from netfleet.errors import ConfigError, TransportError
from netfleet.privacy.receipts.signing import Signer
from netfleet.sites.network import links
from netfleet.sites.network.grpc_transport import GrpcTransport
from netfleet.sites.network.inbound import Inbound
from netfleet.sites.network.listening import listening
from netfleet.sites.network.reverse import RELAYED
from netfleet.sites.network.wire import Kind
from netfleet.sites.planning.certificates import Identity, load_identity
from netfleet.sites.planning.folders import load_site
from netfleet.sites.relay import client, server
from netfleet.sites.relay.admission import BURST, RATE, Attempts
from netfleet.sites.relay.client import RelayClient
from netfleet.sites.relay.handshake import ACCEPT, DIAL, GREETING, RANDOM, REGISTER, TICKET, introduce, read_exactly
from netfleet.sites.relay.server import Relay
from support.site_peers import PATH, Log, World, ask, make_server, revoke, run
from support.site_processes import free_ports, plan_sites


@pytest.fixture
def folder(world: World) -> Path:
    """A relay's folder."""
    made = world.plan / "relay"
    made.mkdir()
    (port,) = free_ports(1)
    names = '["s0", "s1", "operator"]'
    (made / "relay.toml").write_text(f'address = "127.0.0.1:{port}"\nlisten = "127.0.0.1:{port}"\nnames = {names}\n')
    shutil.copy(world.plan / "operator" / "ca.pem", made)
    return made


@asynccontextmanager
async def relaying(folder: Path, log: Log, kind: type[Relay] = Relay) -> AsyncIterator[Relay]:
    relay = kind(folder, log)  # type: ignore[arg-type]
    task = asyncio.ensure_future(relay.serve())
    try:
        while "started" not in [what for what, _ in log.events]:
            await asyncio.sleep(0.01)
        yield relay
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("address", "ipv6", "host"),
    [("[::]:7500", True, "::"), ("[::]:7500", False, "0.0.0.0"), ("127.0.0.1:7500", False, "127.0.0.1")],
)
def test_all_interfaces_are_those_that_the_kernel_has(address: str, ipv6: bool, host: str) -> None:
    family, where = listening(address, lambda: ipv6)
    assert (family, where[:2]) == (socket.AF_INET6 if host == "::" else socket.AF_INET, (host, 7500))


def test_a_relay_that_is_not_there_is_named_with_the_cause(world: World) -> None:
    async def scenario() -> None:
        client = RelayClient("127.0.0.1:1", world.identity("s0"))
        path = client.target("s1").removeprefix("unix:")
        _, writer = await asyncio.open_unix_connection(path)
        while not client.failure("s1"):
            await asyncio.sleep(0.01)
        writer.close()
        await client.close()
        assert client.failure("s1") == "the relay 127.0.0.1:1 cannot be reached: Connection refused"

    run(scenario())


async def introduced(relay: Relay, identity: Identity, role: str, about: str = "", address: str = "") -> socket.socket:
    """A connection after the handshake."""
    host, port = relay.address.rsplit(":", 1)
    sock = socket.create_connection((host, int(port)))
    sock.setblocking(False)
    try:
        await introduce(sock, address or relay.address, role, about, identity.name, Signer(identity))
    except BaseException:
        sock.close()
        raise
    return sock


def test_only_sites_of_the_plan_with_a_certificate_that_counts_may_use_it(world: World, folder: Path) -> None:
    async def refused(
        relay: Relay, words: str, identity: Identity, role: str = REGISTER, address: str = "", about: str = "0" * 32
    ) -> None:
        with pytest.raises(TransportError, match=words):
            (await introduced(relay, identity, role, about, address)).close()

    async def scenario() -> None:
        s0, s1, log = world.identity("s0"), world.identity("s1"), Log()
        async with relaying(folder, log) as relay:
            await refused(relay, "'s2' is not among the names in relay.toml", world.identity("s2"))
            await refused(relay, "certificate is s0's|is s0's|names|s0", s0._replace(name="s1"))
            other = load_identity(stranger(world, folder), "s0")
            await refused(relay, "authority", other)
            await refused(relay, "signature is not s0's", s0._replace(key=s1.key))
            await refused(relay, "a hello for the relay", s0, address="127.0.0.1:9")
            await refused(relay, "asks for 'listen'", s0, role="listen")
            await refused(relay, "ticket is not valid", s0, role=ACCEPT)
            for about in ("0" * 32, "s2", "\ud800"):
                await refused(relay, "is not among the names in relay.toml", s0, role=DIAL, about=about)
            for about in ("", "0" * 31, "\ud800" * 32):
                await refused(relay, "is not a ticket; expected 32 hex digits", s0, role=ACCEPT, about=about)
            await refused(relay, "s1 is not connected to the relay", s0, role=DIAL, about="s1")
            kept = await introduced(relay, s0, REGISTER)
            assert revoke(world, "s0") == 0
            shutil.copy(world.plan / "operator" / "revoked.pem", folder)
            await refused(relay, "its laptop was stolen", s0)
            with kept:  # the site's next sign of life ends its registration
                await asyncio.get_running_loop().sock_sendall(kept, b"a")
                assert await asyncio.get_running_loop().sock_recv(kept, 1) == b""
            (folder / "relay.toml").write_text((folder / "relay.toml").read_text().replace('"s1", ', ""))
            await refused(relay, "'s1' is not among the names", s1)
            assert len(log.refusals) == 15

    run(scenario())


def stranger(world: World, folder: Path) -> Path:
    """The folder of a site s0 of another plan."""
    other = folder.parent.parent / "other"
    other.mkdir()
    plan_sites(other, PATH, 2)
    return other / "plan" / "s0"


def test_a_host_that_leaves_its_handshakes_open_keeps_nobody_else_out(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HANDSHAKE", 0.5)

    async def scenario() -> None:
        log, loop = Log(), asyncio.get_running_loop()
        async with relaying(folder, log) as relay:
            where = relay.address.rsplit(":", 1)
            slow = [socket.create_connection((where[0], int(where[1]))) for _ in range(server.OF_HOST + 5)]
            for sock in slow:
                sock.setblocking(False)
            first = await asyncio.gather(*(loop.sock_recv(sock, 100) for sock in slow))
            assert sorted(map(len, first)) == [0] * 5 + [len(GREETING) + RANDOM] * server.OF_HOST
            assert await asyncio.gather(*(loop.sock_recv(sock, 1) for sock in slow)) == [b""] * len(slow)  # in time
            assert {why for _, why in log.refusals} == {"a flood: too many connections", "no handshake within 0 s"}
            (await introduced(relay, world.identity("s0"), REGISTER)).close()
            for sock in slow:
                sock.close()

    run(scenario())


def test_many_hosts_that_leave_their_handshakes_open_do_not_keep_out_those_of_sites(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STRANGERS", 2)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with relaying(folder, Log()) as relay, AsyncExitStack() as stack:
            (await introduced(relay, world.identity("s0"), REGISTER)).close()
            host, port = relay.address.rsplit(":", 1)
            for number, greeted in ((2, True), (3, True), (4, False)):
                sock = socket.create_connection((host, int(port)), source_address=(f"127.0.0.{number}", 0))
                stack.callback(sock.close)
                sock.setblocking(False)
                assert bool(await loop.sock_recv(sock, 100)) is greeted
            (await introduced(relay, world.identity("s0"), REGISTER)).close()

    run(scenario())


def test_a_site_that_sends_without_end_keeps_nobody_else_out(world: World, folder: Path) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with relaying(folder, Log()) as relay:
            with await introduced(relay, world.identity("s0"), REGISTER) as registered:
                await loop.sock_sendall(registered, b"a" * 100 * 64)
                assert await loop.sock_recv(registered, 1) == b"a"
                (await introduced(relay, world.identity("s1"), REGISTER)).close()
                with pytest.raises(BlockingIOError):
                    registered.recv(1)

    run(scenario())


def test_connections_of_sites_that_may_not_use_the_relay_any_more_are_closed(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of an evicted site, whatever its certificate."""
    monkeypatch.setattr(server, "CHECK", 0.05)

    async def scenario() -> None:
        s0, s1, log, loop = world.identity("s0"), world.impostor("s1"), Log(), asyncio.get_running_loop()
        async with relaying(folder, log) as relay:
            registered = await introduced(relay, s0, REGISTER)
            dialling = asyncio.ensure_future(introduced(relay, s1, DIAL, "s0"))
            ticket = await read_exactly(registered, 17)
            accepted = await introduced(relay, s0, ACCEPT, ticket[1:].hex())
            dialled = await dialling
            await asyncio.sleep(0.1)
            await loop.sock_sendall(dialled, b"hello")
            assert await loop.sock_recv(accepted, 10) == b"hello"
            assert main(["evict", str(world.plan), "s1", "--why", "it sends noise"]) == 0
            shutil.copy(world.plan / "operator" / "revoked.pem", folder)
            assert await loop.sock_recv(accepted, 10) == await loop.sock_recv(dialled, 10) == b""
            assert log.refusals == [("s1", "it was evicted (it sends noise)")]
            with pytest.raises(TransportError, match="it was evicted"):
                await introduced(relay, s1, REGISTER)
            for sock in (registered, accepted, dialled):
                sock.close()

    run(scenario())


def test_an_address_at_which_nobody_answers_does_not_keep_a_site_from_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "EACH", 0.1)
    silent, good = (socket.create_server(("127.0.0.1", 0), backlog=0) for _ in range(2))

    async def addresses(*_: object, **__: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", each.getsockname()) for each in (silent, good)]

    async def scenario() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", addresses)
        with await client._connect("relay.example.org:7500") as connection:
            assert connection.getpeername() == good.getsockname()

    with silent, good, socket.create_connection(silent.getsockname()):  # its queue is full
        run(scenario())


def test_a_temporary_folder_with_a_long_name_is_said(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        site = RelayClient("127.0.0.1:1", world.identity("s0"))
        with pytest.raises(ConfigError, match=r"path too long.*set TMPDIR to a folder with a short name"):
            site.target("s1")
        await site.close()

    (long := tmp_path / ("long" * 25)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    run(scenario())


def test_a_relay_cannot_fill_a_site_with_tickets(world: World) -> None:
    begun = 0

    class Flooded(RelayClient):
        async def _connected(self, role: str, about: str) -> socket.socket:
            nonlocal begun
            if role == REGISTER:
                ours.setblocking(False)
                return ours
            begun += 1
            return await asyncio.get_running_loop().create_future()

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=2 * client.MOST) as own:
            site = Flooded("127.0.0.1:1", world.identity("s0"), registers=True)
            site.register(own.getsockname()[1])
            theirs.sendall((TICKET + bytes(16)) * 4 * client.MOST + b"?")  # and something that is no ticket
            while ours.fileno() >= 0:
                await asyncio.sleep(0)
            assert begun == client.MOST
            await site.close()

    ours, theirs = socket.socketpair()
    with theirs:
        run(scenario())


def test_hellos_are_bounded_and_checked(folder: Path) -> None:
    async def answer(relay: Relay, data: bytes) -> bytes:
        host, port = relay.address.rsplit(":", 1)
        loop = asyncio.get_running_loop()
        with socket.create_connection((host, int(port))) as sock:
            sock.setblocking(False)
            await loop.sock_recv(sock, 100)
            await loop.sock_sendall(sock, data)
            try:
                return await loop.sock_recv(sock, 100)
            except ConnectionResetError:  # what the relay did not read
                return b""

    def sized(data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + data + b"\0\0"

    async def scenario() -> None:
        log = Log()
        async with relaying(folder, log) as relay:
            for data in (
                b"\xff" * 8,
                sized(b"[]"),
                sized(b"{}"),
                sized(b"[" * 8000),
                sized(b"\xff"),
                b"GET / HTTP/1.1",
            ):
                assert await answer(relay, data) == b""
        assert len(log.refusals) == 6
        assert all(why.startswith("no handshake") for _, why in log.refusals)

    run(scenario())


def test_a_fault_in_one_connection_leaves_the_others_alone(world: World, folder: Path) -> None:
    class Faulty(Relay):
        async def _dial(self, dialling: object) -> None:
            raise UnicodeError("a fault")

    async def scenario() -> None:
        faults: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        async with relaying(folder, Log(), Faulty) as relay:
            with await introduced(relay, world.identity("s0"), REGISTER) as registered:
                with pytest.raises(TransportError, match="the connection was closed"):
                    await introduced(relay, world.identity("s1"), DIAL, "s0")
                await asyncio.get_running_loop().sock_sendall(registered, b"a")
                assert await asyncio.get_running_loop().sock_recv(registered, 1) == b"a"
        assert [str(fault["exception"]) for fault in faults] == ["a fault"]

    run(scenario())


@pytest.mark.parametrize(("stays", "taken"), [(0.0, [0, 0, 0, 0]), (20.0, [0, 1, 2, 3])])
def test_pauses_grow_until_a_registration_has_lasted(
    world: World, monkeypatch: pytest.MonkeyPatch, stays: float, taken: list[int]
) -> None:
    """Two processes of one site end each other's registrations; they must not do so without pauses."""
    pauses: list[int] = []

    class Replaced(RelayClient):
        async def _connected(self, role: str, about: str) -> socket.socket:
            ours, theirs = socket.socketpair()
            theirs.close()
            ours.setblocking(False)
            return ours

    def growing(first: float, most: float) -> Iterator[float]:
        for number in itertools.count():
            pauses.append(number)
            yield 0.0

    async def scenario() -> None:
        site = Replaced("127.0.0.1:1", world.identity("s0"), registers=True)
        site.register(1)
        while len(pauses) < len(taken):
            await asyncio.sleep(0)
        await site.close()

    monkeypatch.setattr(client, "growing", growing)
    monkeypatch.setattr(client, "SIGN", stays)
    run(scenario())
    assert pauses[: len(taken)] == taken


def test_an_address_may_connect_so_often_and_no_more() -> None:
    now = 0.0
    attempts = Attempts(lambda: now)
    assert sum(attempts.take("a") for _ in range(int(2 * BURST))) == BURST
    assert attempts.take("b")
    now = 2.0
    assert sum(attempts.take("a") for _ in range(1000)) == 2 * RATE


def test_connections_of_two_sites_are_counted(world: World, folder: Path) -> None:
    async def scenario() -> None:
        s0, s1 = world.identity("s0"), world.identity("s1")
        async with relaying(folder, Log()) as relay:
            registered = await introduced(relay, s0, REGISTER)
            waiting = [asyncio.ensure_future(introduced(relay, s1, DIAL, "s0")) for _ in range(server.OF_TWO)]
            tickets = b""
            while len(tickets) < 17 * server.OF_TWO:
                tickets += await asyncio.get_running_loop().sock_recv(registered, 1000)
            with pytest.raises(TransportError, match="no room for another connection of s1 and s0"):
                await introduced(relay, s1, DIAL, "s0")
            with pytest.raises(TransportError, match="ticket is not valid"):  # it is for s0
                await introduced(relay, s1, ACCEPT, tickets[1:17].hex())
            accepted = await introduced(relay, s0, ACCEPT, tickets[1:17].hex())
            with pytest.raises(TransportError, match="ticket is not valid"):  # once
                await introduced(relay, s0, ACCEPT, tickets[1:17].hex())
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            dialled = done.pop().result()
            await asyncio.get_running_loop().sock_sendall(dialled, b"hello")
            assert await asyncio.get_running_loop().sock_recv(accepted, 10) == b"hello"
            dialled.close()
            assert await asyncio.get_running_loop().sock_recv(accepted, 10) == b""
            accepted.close()
            registered.close()
            await asyncio.gather(*waiting, return_exceptions=True)
            while relay._forwarded:
                await asyncio.sleep(0.01)

    run(scenario())


def test_a_relayed_message_and_a_relay_that_comes_back(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """s0 has an address, at which nobody answers; s1 asks it through the relay."""
    monkeypatch.setattr(links, "DIRECT_FIRST", 0.1)
    monkeypatch.setattr(client, "PAUSES", (0.05, 0.1))

    async def until_asked(ours: GrpcTransport, log: Log) -> None:
        while True:
            try:
                assert (await ask(world, ours, log)).kind == Kind.CHUNK
                return
            except TransportError:
                await asyncio.sleep(0.05)

    async def scenario() -> None:
        logs, clock = {"s0": Log(), "s1": Log()}, itertools.count(step=20)
        site, _ = load_site(world.folder("s0"))
        handler, _, peers = make_server(world, logs["s0"])
        inbound = Inbound(site.address, logs["s0"], lambda: float(next(clock)))
        address = Relay(folder, Log()).address  # type: ignore[arg-type]
        there = GrpcTransport(
            world.identity("s0"), "", peers, inbound, RelayClient(address, world.identity("s0"), registers=True)
        )
        relayed = RelayClient(address, world.identity("s1"))
        ours = GrpcTransport(world.identity("s1"), peers=world.peers("s1", logs["s1"]), relay=relayed)
        async with there.serve(handler):
            async with relaying(folder, Log()):
                await until_asked(ours, logs["s1"])
                ways = await ours.ways(site, 5.0)
                assert [way.how for way in ways if not way.failure] == [RELAYED]
                assert inbound.unable == ()  # it is young
                await until_asked(ours, logs["s1"])
                assert inbound.unable == ("s1",)
            with pytest.raises(TransportError):
                await ask(world, ours, logs["s1"])
            async with relaying(folder, Log()):
                await until_asked(ours, logs["s1"])
            await ours.close()
        await there.close()

    run(scenario())
