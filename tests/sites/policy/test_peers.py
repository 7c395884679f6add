"""A server and its client look at certificates: in memory, and over TLS."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from netfleet.cli import main
from netfleet.engines.host import Tag
from netfleet.errors import CertificateError, TransportError
from netfleet.privacy.receipts.lines import Receipt, Received
from netfleet.privacy.receipts.state import Key
from netfleet.sites.network.grpc_transport import GrpcTransport
from netfleet.sites.network.receipt_format import unpack_receipts
from netfleet.sites.network.transport import MemoryNetwork
from netfleet.sites.network.wire import Expected, Kind
from netfleet.sites.operations.logs import Log as SiteLog
from netfleet.sites.planning.certificates import Identity, load_identity
from netfleet.sites.planning.folders import load_site
from netfleet.sites.policy.peers import KnownPeers
from netfleet.sites.runtime.runner import SiteRunner
from support.receipts import entries, message, raw_lines, start
from support.site_peers import MESSAGE, WORDS, Log, T, World, ask, make_server, revoke, run


def test_a_server_looks_at_the_certificate_of_every_request(world: World) -> None:

    async def scenario() -> None:
        log, network, identity = Log(), MemoryNetwork(), world.identity("s1")
        server, _, _ = make_server(world, log)
        async with network.transport("s0", world.identity("s0").certificate).serve(server):
            good = network.transport("s1", identity.certificate, world.peers("s1", Log()))
            assert (await ask(world, good, Log())).kind == Kind.CHUNK
            bad = network.transport("s1", world.impostor("s1").certificate, world.peers("s1", Log()))
            with pytest.raises(TransportError, match=r"refuses: its certificate .* is not pinned here"):
                await ask(world, bad, Log())
            assert revoke(world, "s1") == 0
            with pytest.raises(TransportError, match=r"refuses: its certificate was revoked .*stolen"):
                await ask(world, good, Log())
            assert [who for who, _ in log.refusals] == ["s1 (memory)"] * 2

    run(scenario())


def test_a_request_that_waits_is_not_answered_once_its_sender_is_revoked(world: World) -> None:
    async def scenario() -> None:
        log, network, identity = Log(), MemoryNetwork(), world.identity("s1")
        server, members, _ = make_server(world, log)
        members.outbox._messages.clear()  # it has to wait for the message
        async with network.transport("s0", world.identity("s0").certificate).serve(server):
            asked = asyncio.ensure_future(ask(world, network.transport("s1", identity.certificate), Log()))
            while not server.limit._accounts or not server.limit._accounts["s1"].under_way:
                await asyncio.sleep(0.01)
            assert revoke(world, "s1") == 0
            members.outbox.post(Tag(T, 0), members.outbox.copy(WORDS, MESSAGE))
            with pytest.raises(TransportError, match="was revoked"):
                await asked

    run(scenario())


def test_signatures_count_with_pinned_certificates_only(world: World) -> None:
    """Whoever has the authority's key can make a certificate of any name; it signs no receipt and no message."""
    real, forged = start(world.folder("s1")), start(world.folder("s1"), world.impostor("s1"))
    s0 = start(world.folder("s0"), check_signer=runner(world, "s0")._check_signer)
    tag, key = Tag(0, 0), Key("message", 0, 0)
    note = s0.receipts.offer("s1", key, message(0))
    expected, data = Expected(b"", 1, *tag, message(0).words, 28), message(0).data.numpy().data
    before = raw_lines(s0.folder)
    for site, words in ((forged, "is not pinned here"), (real, "")):
        site.receipts.received("s0", "message", expected, data, note)
        given, own = unpack_receipts(site.receipts.to_give("s0")), site.receipts.offer("s0", key, message(0))
        if words:
            with pytest.raises(CertificateError, match=words):
                s0.receipts.take("s1", given)
            with pytest.raises(CertificateError, match=words):
                s0.receipts.received("s1", "message", expected, data, own)
            assert raw_lines(s0.folder) == before
        else:
            s0.receipts.take("s1", given)
            s0.receipts.received("s1", "message", expected, data, own)
    assert len(entries(s0.folder, Receipt)) == len(entries(s0.folder, Received)) == 1


def runner(world: World, name: str) -> SiteRunner:
    site, settings = load_site(world.folder(name))
    return SiteRunner(world.folder(name), site, settings, world.identity(name), SiteLog(name, io.StringIO()))


@pytest.mark.parametrize("folder", ["s1", "operator"])
def test_nobody_else_can_answer_netfleet_status(world: World, folder: str) -> None:
    """Neither a certificate of the right name that is not pinned, nor one that was revoked."""

    async def scenario() -> None:
        site, mine = load_site(world.folder("s0"))[0], load_identity(world.folder(folder), folder)
        server, _, _ = make_server(world, Log())

        async def asked(identity: Identity) -> str:
            async with GrpcTransport(identity, site.listen).serve(server):
                peers = KnownPeers(world.folder(folder), mine.ca)
                try:
                    return (await GrpcTransport(mine, peers=peers).status(site, 5.0)).decode()
                except TransportError as error:
                    return str(error)

        other = world.impostor("s0")
        assert await asked(world.identity("s0")) == "{}"
        assert "a certificate that is not pinned here" in await asked(other)
        renewed = world.plan / "renewed.pem"
        renewed.write_bytes(other.certificate)
        assert main(["pin", str(world.folder(folder)), str(renewed)]) == 0
        assert await asked(other) == "{}"
        assert revoke(world, "s0", "--certificate", str(renewed)) == 0
        assert "has a certificate that was revoked" in await asked(other)

    run(scenario())


def test_a_client_dials_only_whom_it_has_pinned(world: World) -> None:
    async def scenario() -> None:
        network, heard = MemoryNetwork(), Log()
        server, _, _ = make_server(world, Log())
        async with network.transport("s0", world.impostor("s0").certificate).serve(server):
            transport = network.transport("s1", world.identity("s1").certificate, world.peers("s1", Log()))
            with pytest.raises(CertificateError, match="not pinned"):
                await ask(world, transport, heard)
            assert [who for who, _ in heard.refusals] == ["s0"]

    run(scenario())


# ---- the same over TLS ----


@asynccontextmanager
async def serving(world: World, identity: Identity, log: Log) -> AsyncIterator[None]:
    server, members, peers = make_server(world, log)
    transport = GrpcTransport(identity, members.site.listen, peers)
    async with transport.serve(server):
        yield


@asynccontextmanager
async def dialling(world: World, identity: Identity) -> AsyncIterator[GrpcTransport]:
    transport = GrpcTransport(identity, peers=world.peers("s1", Log()))
    yield transport
    await transport.close()


def test_over_tls_a_server_refuses_certificates_that_are_not_pinned_or_revoked(world: World) -> None:
    async def scenario() -> None:
        log, good, bad = Log(), world.identity("s1"), world.impostor("s1")
        async with (
            serving(world, world.identity("s0"), log),
            dialling(world, good) as ours,
            dialling(world, bad) as theirs,
        ):
            assert (await ask(world, ours, Log())).kind == Kind.CHUNK
            with pytest.raises(TransportError, match=r"refuses: its certificate .* is not pinned here"):
                await ask(world, theirs, Log())
            with pytest.raises(TransportError, match="refuses: its certificate"):
                await theirs.status(load_site(world.folder("s1"))[0].neighbours[0], 5.0)
            assert (await ask(world, ours, Log())).kind == Kind.CHUNK  # on the connection that is there
            assert revoke(world, "s1") == 0
            with pytest.raises(TransportError, match=r"refuses: its certificate was revoked .*stolen"):
                await ask(world, ours, Log())
            assert "is not pinned here" in log.whys()
            assert "its laptop was stolen" in log.whys()

    run(scenario())


def test_over_tls_a_client_refuses_certificates_that_are_not_pinned(world: World) -> None:
    async def scenario() -> None:
        heard, good = Log(), world.identity("s1")
        async with dialling(world, good) as ours:
            async with serving(world, world.impostor("s0"), Log()):
                with pytest.raises(CertificateError, match="answers with a certificate that is not pinned here"):
                    await ask(world, ours, heard)
                assert [who for who, _ in heard.refusals] == ["s0"]
            shown = world.plan / "renewed.pem"
            renewed = world.impostor("s0")
            shown.write_bytes(renewed.certificate)
            assert main(["pin", str(world.folder("s1")), str(shown)]) == 0
            async with serving(world, renewed, Log()):
                assert (await ask(world, ours, Log())).kind == Kind.CHUNK

    run(scenario())


def test_over_tls_a_client_leaves_a_connection_whose_certificate_is_revoked(world: World) -> None:
    async def scenario() -> None:
        log, heard, good = Log(), Log(), world.identity("s1")
        async with serving(world, world.identity("s0"), log), dialling(world, good) as ours:
            assert (await ask(world, ours, heard)).kind == Kind.CHUNK
            assert revoke(world, "s0") == 0
            with pytest.raises(CertificateError, match="has a certificate that was revoked"):
                await ask(world, ours, heard)
            assert "stolen" in heard.whys()

    run(scenario())
