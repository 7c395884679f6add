"""A site that nobody can dial is asked over the connections that it makes; with the same checks as over any other."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import NamedTuple

import grpc
import pytest

from netfleet.cli import main
from netfleet.errors import CertificateError, TransportError
from netfleet.sites.network import grpc_channels, reverse
from netfleet.sites.network.client import Answer, Client, Wanted
from netfleet.sites.network.grpc_transport import GrpcTransport
from netfleet.sites.network.inbound import Inbound
from netfleet.sites.network.outbox import Outbox
from netfleet.sites.network.receipts import NoReceipts
from netfleet.sites.network.reverse import ATTACH, ReverseCall, ReverseCalls
from netfleet.sites.network.server import SiteServer
from netfleet.sites.network.transport import Busy, Caller, Contact
from netfleet.sites.network.wire import Expected, Kind
from netfleet.sites.planning.certificates import Identity
from netfleet.sites.planning.folders import Neighbour, load_site
from netfleet.sites.runtime.membership import Membership
from support.site_peers import MESSAGE, WORDS, Log, T, World, make_server, revoke, run
from support.site_processes import free_ports
from support.site_settings import under_way


class Pair(NamedTuple):
    """s0, which only dials out and has a message, and s1, which can be dialled."""

    world: World
    closed: GrpcTransport  # of s0
    open: GrpcTransport  # of s1
    server: SiteServer  # of s0
    logs: dict[str, Log]
    s0: Neighbour
    s1: Neighbour

    async def ask(self, t: int = T, into: bytearray | None = None) -> Answer:
        """s1 asks s0 once."""
        site, _ = load_site(self.world.folder("s1"))
        client = Client(site, self.open, self.logs["s1"].refused, NoReceipts())
        buffer = memoryview(bytearray(28) if into is None else into)
        wanted = Wanted(Expected(site.run_id, 0, t, 0, WORDS, 28), buffer)
        return await client._attempt(Contact(self.s0), Kind.PULL, wanted)

    async def dial(self) -> None:
        """s0 dials s1, as a site does when it first asks."""
        with pytest.raises(TransportError):
            async for _ in self.closed.pull(self.s1, b"no frame"):
                pass

    async def until_asked(self) -> Answer:
        """The answer as soon as s1 has a call of s0."""
        while True:
            with suppress(TransportError):
                return await self.ask()
            await asyncio.sleep(0.01)


@asynccontextmanager
async def pair(world: World, address: str = "", own: Identity | None = None) -> AsyncIterator[Pair]:
    """Both sites serve; `address` is what s1 dials to reach s0, and `own` what s0 shows."""
    async with AsyncExitStack() as stack:
        logs = {"s0": Log(), "s1": Log()}
        (port,), clock = free_ports(1), itertools.count(step=20)
        server, _, peers = make_server(world, logs["s0"])
        closed = GrpcTransport(
            own or world.identity("s0"), "", peers, Inbound(address, logs["s0"], lambda: float(next(clock)))
        )
        site, _ = load_site(world.folder("s1"))
        members = Membership(world.folder("s1"), site, 10, Outbox(), logs["s1"].refused)
        parts = NoReceipts(), lambda: None, lambda name: b"{}"
        there = SiteServer(
            site, members.outbox, members, logs["s1"].refused, *parts, peers=world.peers("s1", logs["s1"])
        )  # type: ignore[arg-type]
        ours = GrpcTransport(world.identity("s1"), f"127.0.0.1:{port}", world.peers("s1", logs["s1"]))
        for transport, handler in ((closed, server), (ours, there)):
            stack.push_async_callback(transport.close)
            await stack.enter_async_context(transport.serve(handler))
        s0 = replace(next(each for each in site.neighbours if each.name == "s0"), address=address)
        yield Pair(world, closed, ours, server, logs, s0, Neighbour("s1", 1, f"127.0.0.1:{port}", 0.5))


async def until(happened: Callable[[], bool]) -> None:
    while not happened():
        await asyncio.sleep(0.01)


def test_a_site_without_an_address_is_asked_over_the_connection_that_it_makes(world: World) -> None:
    async def scenario() -> None:
        async with pair(world) as both:
            with pytest.raises(TransportError, match="has not connected to this site, and has no address"):
                await both.ask()
            await both.dial()
            assert (await both.until_asked()).kind == Kind.CHUNK
            for _ in range(3 * reverse.OPEN):  # each call is for one request; s1 waits for those that s0 opens then
                got = bytearray(28)
                assert (await both.ask(into=got)).kind == Kind.CHUNK
                assert bytes(got) == MESSAGE.numpy().tobytes()
            assert "no frame" not in str(both.logs["s1"].refusals[1:])

    run(scenario())


def test_a_request_waits_for_the_call_that_follows_a_used_one() -> None:
    async def scenario() -> None:
        calls = ReverseCalls()

        def attach() -> tuple[ReverseCall, asyncio.Task[None]]:
            call = ReverseCall(Caller("s0", "10.0.0.1:1"), context=None)  # type: ignore[arg-type]
            return call, asyncio.ensure_future(calls.hold(call))

        assert await calls.take_next("s0", relayed=True) is None  # it has never attached
        first, held = attach()
        await until(lambda: calls.has("s0"))
        assert await calls.take_next("s0", relayed=True) is first
        waiting = asyncio.ensure_future(calls.take_next("s0", relayed=True))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        second, also_held = attach()
        assert await waiting is second
        for task in (held, also_held):
            task.cancel()

    run(scenario())


def test_refusals_arrive_as_they_do_over_a_direct_connection(world: World) -> None:
    async def scenario() -> None:
        async with pair(world) as both:
            await both.dial()
            await both.until_asked()
            with pytest.raises(TransportError, match="refuses: a request for round 9 while this site is in round 3"):
                await both.ask(9)
            both.server.limit._account("s1").left = 0.0
            with pytest.raises(Busy, match="refuses: a flood"):
                await both.ask()
            assert [who for who, _ in both.logs["s0"].refusals] == [f"s1 ({both.s1.address})"] * 2

    run(scenario())


def test_a_request_that_is_given_up_is_freed_at_the_other_end(world: World) -> None:
    async def scenario() -> None:
        async with pair(world) as both:
            await both.dial()
            await both.until_asked()
            for _ in range(2 * reverse.MOST):
                waiting = asyncio.ensure_future(both.ask(T + 1))  # is not there yet
                await until(lambda: under_way(both.server.limit, "s1") == 1)
                waiting.cancel()
                await until(lambda: under_way(both.server.limit, "s1") == 0)
            assert (await both.until_asked()).kind == Kind.CHUNK

    run(scenario())


def test_a_connection_that_breaks_ends_the_request(world: World) -> None:
    async def scenario() -> None:
        async with pair(world) as both:
            await both.dial()
            await both.until_asked()
            waiting = asyncio.ensure_future(both.ask(T + 1))
            await until(lambda: under_way(both.server.limit, "s1") == 1)
            await both.closed.close()
            with pytest.raises(TransportError, match="has closed the connection that it had made"):
                await waiting

    run(scenario())


def test_only_neighbours_with_a_certificate_that_counts_can_offer_to_answer(world: World) -> None:
    async def offer(both: Pair, who: Identity) -> str:
        credentials = grpc.ssl_channel_credentials(who.ca, who.key, who.certificate)
        options = [("grpc.ssl_target_name_override", "s1"), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(both.s1.address, credentials, options=options) as channel:
            call = channel.stream_stream(ATTACH)()
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call.read()
            return str(error.value.details())

    async def scenario() -> None:
        async with pair(world) as both:
            assert "not a neighbour" in await offer(both, world.identity("operator"))
            assert "is not pinned here" in await offer(both, world.impostor("s0"))
            assert both.open._reverse.take("operator", relayed=True) is None
            assert both.open._reverse.take("s0", relayed=True) is None

    run(scenario())


def test_a_neighbour_that_was_revoked_is_not_asked_over_a_call_that_is_open(world: World) -> None:
    async def scenario() -> None:
        async with pair(world) as both:
            await both.dial()
            await both.until_asked()
            assert revoke(world, "s0") == 0
            (world.folder("s1") / "revoked.pem").write_bytes((world.folder("operator") / "revoked.pem").read_bytes())
            with pytest.raises(CertificateError, match="its laptop was stolen"):
                await both.ask()

    run(scenario())


def test_a_site_does_not_answer_a_neighbour_that_was_revoked(world: World) -> None:
    async def scenario() -> None:
        async with pair(world) as both:
            await both.dial()
            await both.until_asked()
            assert revoke(world, "s1") == 0
            (world.folder("s0") / "revoked.pem").write_bytes((world.folder("operator") / "revoked.pem").read_bytes())
            with pytest.raises(TransportError, match="refuses: its certificate was revoked"):
                await both.ask()

    run(scenario())


def test_a_neighbour_with_two_pins_is_not_answered_after_the_one_that_it_shows_is_revoked(world: World) -> None:
    async def scenario() -> None:
        renewed, old = world.plan / "renewed.pem", world.folder("s1") / "node.pem"
        renewed.write_bytes(world.impostor("s1").certificate)
        assert main(["pin", str(world.folder("s0")), str(renewed), "--replace"]) == 0
        assert main(["pin", str(world.folder("s0")), str(old)]) == 0
        async with pair(world) as both:
            await both.dial()
            await both.until_asked()
            assert revoke(world, "s1") == 0
            with pytest.raises(TransportError, match=r"connected while other certificates|has closed"):
                await both.ask()

    run(scenario())


def test_a_site_whose_pins_change_goes_on_offering(world: World) -> None:
    async def scenario() -> None:
        async with pair(world) as both:
            await both.dial()
            await until(lambda: len(both.open._reverse._waiting["s0"]) == reverse.OPEN)
            renewed = world.plan / "renewed.pem"
            renewed.write_bytes(world.impostor("s1").certificate)
            assert main(["pin", str(world.folder("s0")), str(renewed)]) == 0
            await both.dial()  # makes a new connection and closes the first one, with all calls that wait
            for _ in range(2 * reverse.OPEN):
                assert (await both.until_asked()).kind == Kind.CHUNK
            await until(lambda: len(both.open._reverse._waiting["s0"]) == reverse.OPEN)

    run(scenario())


def test_offering_that_has_ended_begins_again_with_the_next_request(world: World) -> None:
    async def scenario() -> None:
        async with pair(world) as both:
            await both.dial()
            ended = both.closed._offering["s1"]
            ended.cancel()
            await until(lambda: ended.done() and not both.open._reverse.has("s0"))
            await both.dial()
            assert (await both.until_asked()).kind == Kind.CHUNK

    run(scenario())


def test_a_request_over_a_connection_that_the_site_itself_closes_fails_and_cancels_nobody(world: World) -> None:
    async def scenario() -> None:
        async with pair(world) as both:
            await both.dial()
            link = both.closed._links["s1"]
            answers = both.closed._ask(both.s1, link, b"")
            asked = asyncio.ensure_future(anext(answers))
            await asyncio.sleep(0)
            await link.close()
            with pytest.raises(TransportError):
                await asked

    run(scenario())


def test_calls_that_wait_are_bounded(world: World) -> None:
    async def scenario() -> None:
        async with pair(world) as both:
            who = world.identity("s0")
            credentials = grpc.ssl_channel_credentials(who.ca, who.key, who.certificate)
            options = [("grpc.ssl_target_name_override", "s1")]
            async with grpc.aio.secure_channel(both.s1.address, credentials, options=options) as channel:
                calls = []
                for _ in range(reverse.MOST + 3):
                    calls.append(channel.stream_stream(ATTACH)())
                    await calls[-1].initial_metadata()
                assert [await call.read() for call in calls[:3]] == [grpc.aio.EOF] * 3  # the oldest were ended
                assert len(both.open._reverse._waiting["s0"]) == reverse.MOST

    run(scenario())


def test_a_site_that_cannot_be_dialled_at_its_address_is_told_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_channels, "RECONNECT", (0.1, 0.1))

    async def scenario() -> None:
        (port,) = free_ports(1)
        async with pair(world, address=f"127.0.0.1:{port}") as both:  # nobody listens there
            await both.dial()
            log = both.logs["s0"]
            while not log.events:
                await asyncio.sleep(0.05)
                await both.ask()
            assert (await both.ask()).kind == (await both.ask()).kind == Kind.CHUNK
            ((what, fields),) = log.events
            assert what == "no_inbound"
            assert fields["neighbour"] == "s1"
            assert fields["address"] == f"127.0.0.1:{port}"
            assert f"127.0.0.1:{port}" in str(fields["why"])
            assert "firewall" in str(fields["cure"])
            both.closed._inbound.dialled("s1")
            assert [event for event, _ in log.events] == ["no_inbound", "inbound"]

    run(scenario())
