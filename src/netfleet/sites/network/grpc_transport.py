"""gRPC over mutual TLS. What gRPC raises becomes netfleet's errors here, and nowhere else.

A site dials each neighbour that has an address, and those that have none through the relay, if there is one. It asks a
neighbour over the connection that it made itself, or else over one that the neighbour has made (`reverse.py`).
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import grpc
import grpc.aio

from netfleet.errors import CertificateError, ConfigError, FrameError, TransportError
from netfleet.sites.network.grpc_service import LARGEST, PULL, STATUS, Service
from netfleet.sites.network.inbound import Inbound
from netfleet.sites.network.pauses import growing
from netfleet.sites.network.reverse import OPEN, RELAYED, Offer, ReverseCall, ReverseCalls
from netfleet.sites.network.transport import Busy, Caller, Handler
from netfleet.sites.operations.logs import printable
from netfleet.sites.operations.tls_refusals import NOT_PINNED, OTHER_AUTHORITY, failure
from netfleet.sites.planning.certificates import Identity, first_certificate
from netfleet.sites.planning.folders import Neighbour, Site
from netfleet.sites.policy.peers import AnyPeers, Peers
from netfleet.sites.relay.client import LOOPBACK, RelayClient

#: Seconds for a TLS handshake; a connection that takes longer is closed. As many for a connection without an answer.
HANDSHAKE_TIMEOUT = 10.0
#: Pauses before a connection is tried again grow from the first to the second, in seconds.
RECONNECT = (0.1, 1.0)
#: Seconds between two looks whether a neighbour that was about to stop is there again, and how often.
REST, RESTS = 0.5, 10
#: Bytes of the largest status.
LARGEST_STATUS = 4 << 20
_BOTH = [
    ("grpc.max_receive_message_length", LARGEST),
    ("grpc.max_send_message_length", LARGEST),
    ("grpc.max_metadata_size", 8192),
    ("grpc.absolute_max_metadata_size", 16384),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),  # a site that computes for hours must learn that a connection is dead
]
#: Bounds what a client without a certificate can use: connections (fewer than the process may open files) and time.
_SERVER = [
    *_BOTH,
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", 16),
    ("grpc.max_allowed_incoming_connections", 400),
    ("grpc.max_connection_idle_ms", 600_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
]
_CLIENT = [*_BOTH, ("grpc.enable_retries", 0)]


@dataclass
class _Link:
    """The connection that this site makes to a neighbour; None if it cannot dial it."""

    roots: bytes
    channel: grpc.aio.Channel | None
    failure: str = ""  # why the neighbour was not dialled the last time; empty: it was, or nobody has tried

    @property
    def ready(self) -> bool:
        """Whether a request can be sent at once; if not, the connection is made meanwhile."""
        if self.channel is None:
            return False
        return bool(self.channel.get_state(try_to_connect=True) == grpc.ChannelConnectivity.READY)

    async def rest(self) -> None:
        """Leave a neighbour alone that has ended its calls: it is about to stop. But it is there if this site's own
        requests have made a connection again.
        """
        for _ in range(RESTS):
            await asyncio.sleep(REST)
            if self.channel is None or self.channel.get_state() == grpc.ChannelConnectivity.READY:
                return

    def note_dialled(self) -> None:
        self.failure = ""


class GrpcTransport:
    """A `Transport` with one connection per neighbour, which is kept."""

    def __init__(
        self,
        identity: Identity,
        listen: str = "",
        peers: Peers | None = None,
        inbound: Inbound | None = None,
        relay: RelayClient | None = None,
    ) -> None:
        """`listen` is the address to serve on; a client, and a site that only dials out, needs none. `peers` say whom
        it may dial, `inbound` is told who cannot dial this site, `relay` connects to sites without an address.
        """
        self._identity, self._listen, self._relay = identity, listen, relay
        self._peers: Peers = AnyPeers(identity.ca) if peers is None else peers
        self._inbound, self._reverse = inbound or Inbound(), ReverseCalls()
        self._links: dict[str, _Link] = {}
        self._offering: dict[str, asyncio.Task[None]] = {}
        self._handler: Handler | None = None

    async def pull(self, to: Neighbour, request: bytes) -> AsyncGenerator[bytes, None]:
        roots, first = self._peers.roots(to.name), True
        link = await self._link(to, roots)
        self._offer_to(to)
        call = self._reverse_call(to, link)
        told = f"{to.address}: {link.failure}" if to.address and link.failure else ""
        answers = self._ask(to, link, request) if call is None else call.ask(request, told)
        async with aclosing(answers):
            async for data in answers:
                if first and self._peers.roots(to.name) != roots:  # changed while this call waited
                    raise TransportError("was asked while another certificate of it counted; it is asked again")
                first = False
                yield data

    def _reverse_call(self, to: Neighbour, link: _Link) -> ReverseCall | None:
        """A call of the neighbour to send it a request, where this site has no connection as good."""
        ready = link.ready
        call = None if ready and to.address else self._reverse.take(to.name, relayed=not ready)
        if call is not None:
            try:
                self._peers.check(call.caller.certificate, to)
            except CertificateError:
                call.over.set()
                raise
        return call

    async def _ask(self, to: Neighbour, link: _Link, request: bytes) -> AsyncGenerator[bytes, None]:
        if link.channel is None:
            raise TransportError("has not connected to this site, and has no address at which this site could dial it")
        call = link.channel.unary_stream(PULL)(request)
        try:
            async for data in call:
                yield data
        except grpc.aio.AioRpcError as error:
            raise self._translated(error, to, link.roots) from None
        finally:
            call.cancel()

    async def _link(self, to: Neighbour, roots: bytes) -> _Link:
        """The connection to a neighbour; a new one when another certificate of it counts."""
        known = self._links.get(to.name)
        if known is not None and known.roots == roots:
            return known
        first, most = (round(1000 * seconds) for seconds in RECONNECT)
        pauses = [("grpc.initial_reconnect_backoff_ms", first), ("grpc.max_reconnect_backoff_ms", most)]
        pauses.append(("grpc.min_reconnect_backoff_ms", round(1000 * HANDSHAKE_TIMEOUT)))
        dialled = to.address or self._relay is not None
        link = _Link(roots, self._connect(to, [*_CLIENT, *pauses], roots) if dialled else None)
        self._links[to.name] = link
        if known is not None and known.channel is not None:
            await known.channel.close()
        return link

    def _offer_to(self, to: Neighbour) -> None:
        """From now on offer a neighbour that this site dials to ask over the same connection."""
        if self._handler is not None and to.name not in self._offering and self._links[to.name].channel is not None:
            self._offering[to.name] = asyncio.ensure_future(self._keep_offering(to, self._handler))

    async def _keep_offering(self, to: Neighbour, handler: Handler) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(OPEN):
                group.create_task(self._keep_open(to, handler))

    async def _keep_open(self, to: Neighbour, handler: Handler) -> None:
        """Keep one call open at a neighbour, by which it may ask."""
        pauses = growing(*RECONNECT)
        offer = Offer(handler, lambda: self._caller(to), lambda why: self._inbound.not_dialled(to.name, why))
        while True:
            try:
                link = await self._link(to, self._peers.roots(to.name))
                if not await offer.answer_one(link.channel, link.note_dialled):
                    await link.rest()
                pauses = growing(*RECONNECT)
                continue
            except grpc.aio.AioRpcError as error:
                if error.code() == grpc.StatusCode.UNIMPLEMENTED:  # an earlier version
                    return
                if error.code() == grpc.StatusCode.UNAVAILABLE:
                    link.failure = str(self._translated(error, to, link.roots))
            except CertificateError:
                pass  # whoever pulls is told why
            await asyncio.sleep(next(pauses))

    def _caller(self, to: Neighbour) -> Caller:
        """A neighbour that asks over a connection that this site made: TLS has accepted it by the pinned certificates.

        A neighbour that is not pinned yet has to show itself first, by a request of its own.
        """
        roots = self._peers.roots(to.name)
        shown = b"" if roots == self._identity.ca else first_certificate(roots)
        self._peers.check(shown, to)
        return Caller(to.name, to.address or RELAYED, shown)

    async def status(self, to: Site | Neighbour, seconds: float) -> bytes:
        """Ask a site once for its status."""
        if not to.address and self._relay is None:
            raise TransportError("only dials out: it has no address at which it could be asked")
        options, roots = [("grpc.max_receive_message_length", LARGEST_STATUS)], self._peers.roots(to.name)
        async with self._connect(to, options, roots) as channel:
            try:
                answer: bytes = await channel.unary_unary(STATUS)(b"", timeout=seconds, wait_for_ready=False)
                return answer
            except grpc.aio.AioRpcError as error:
                if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise TransportError(f"did not answer within {seconds:g} s") from None
                raise self._translated(error, to, roots) from None

    def _connect(self, to: Site | Neighbour, options: list[tuple[str, int]], roots: bytes) -> grpc.aio.Channel:
        named = [*options, ("grpc.ssl_target_name_override", to.name)]
        credentials = grpc.ssl_channel_credentials(roots, self._identity.key, self._identity.certificate)
        target = to.address if to.address or self._relay is None else self._relay.target(to.name)
        return grpc.aio.secure_channel(target, credentials, options=named)

    def _translated(self, error: grpc.aio.AioRpcError, to: Site | Neighbour, roots: bytes) -> TransportError:
        relayed = "" if to.address or self._relay is None else self._relay.failure(to.name)
        if relayed and error.code() == grpc.StatusCode.UNAVAILABLE:
            return TransportError(f"cannot be reached ({relayed})")
        return _translated(error, pinned=roots != self._identity.ca)

    @asynccontextmanager
    async def serve(self, handler: Handler) -> AsyncIterator[None]:
        handshake = ("grpc.server_handshake_timeout_ms", round(1000 * HANDSHAKE_TIMEOUT))
        server = grpc.aio.server(options=[*_SERVER, handshake])
        relay = self._relay if self._relay is not None and self._relay.registers else None
        relayed = (lambda peer: False) if relay is None else relay.has_accepted
        server.add_generic_rpc_handlers((Service(handler, self._reverse, self._inbound.dialled, relayed),))
        if self._listen:
            self._bind(server, self._listen)
        port = 0 if relay is None else self._bind(server, f"{LOOPBACK}:0")
        await server.start()
        if relay is not None:
            relay.register(port)
        self._handler = handler
        try:
            yield
        finally:
            await self._stop_offering()
            self._reverse.end_all()
            await server.stop(grace=1)

    def _bind(self, server: grpc.aio.Server, address: str) -> int:
        """Let a server listen at an address; returns the port."""
        own = [(self._identity.key, self._identity.certificate)]
        credentials = grpc.ssl_server_credentials(own, self._identity.ca, require_client_auth=True)
        try:
            return int(server.add_secure_port(address, credentials))
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen on {address} ({error}); free the port, or change listen in site.toml"
            ) from None

    async def _stop_offering(self) -> None:
        self._handler = None
        for task in self._offering.values():
            task.cancel()
        await asyncio.gather(*self._offering.values(), return_exceptions=True)
        self._offering.clear()

    async def close(self) -> None:
        for link in self._links.values():
            if link.channel is not None:
                await link.channel.close()
        if self._relay is not None:
            await self._relay.close()


def _translated(error: grpc.aio.AioRpcError, pinned: bool = False) -> TransportError:
    """Why a call failed; the other site is the subject. `pinned` says that TLS knows it by its own certificate."""
    words, code = printable((error.details() or error.code().name).splitlines()[0]), error.code()
    if "message larger than max" in words:
        return FrameError(f"an oversized frame: more than {LARGEST} bytes")
    if code == grpc.StatusCode.UNAVAILABLE:
        if (why := failure(words)) is not None:
            if pinned and why == OTHER_AUTHORITY:
                return CertificateError(f"answers with {NOT_PINNED}; if it was renewed: netfleet pin")
            return TransportError(f"answers with {why}")
        last = words.rpartition("last error: ")[2].removeprefix("UNKNOWN: ")[-160:]
        return TransportError(f"cannot be reached ({last})")
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Busy(f"refuses: {words}")
    return TransportError(f"refuses: {words}" if code == grpc.StatusCode.PERMISSION_DENIED else words)
