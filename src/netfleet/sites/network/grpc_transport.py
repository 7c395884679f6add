"""gRPC over mutual TLS. What gRPC raises becomes netfleet's errors here, and nowhere else.

A site asks a neighbour over a connection that it made to its address; or else over one that the neighbour has made
(`reverse.py`); or else through the relay, if there is one.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial

import grpc
import grpc.aio

from netfleet.errors import CertificateError, ConfigError, FrameError, TransportError
from netfleet.sites.network.grpc_service import LARGEST, PULL, STATUS, Service
from netfleet.sites.network.inbound import Inbound
from netfleet.sites.network.links import Link
from netfleet.sites.network.pauses import growing
from netfleet.sites.network.reverse import OPEN, RELAYED, Offer, ReverseCall, ReverseCalls
from netfleet.sites.network.transport import DIRECT, REVERSE, Busy, Caller, Handler, Way
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
#: What gRPC says to callers when its server stops.
_STOPS = "Cancelling all calls"
_CLIENT = [*_BOTH, ("grpc.enable_retries", 0)]


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
        it may dial, `inbound` is told who cannot dial this site, `relay` connects to sites that it cannot dial.
        """
        self._identity, self._listen, self._relay = identity, listen, relay
        self._peers: Peers = AnyPeers(identity.ca) if peers is None else peers
        self._inbound, self._reverse = inbound or Inbound(), ReverseCalls()
        self._links: dict[str, Link] = {}
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

    def _reverse_call(self, to: Neighbour, link: Link) -> ReverseCall | None:
        """A call of the neighbour to send it a request, where this site has no connection as good."""
        call = None if link.ready else self._reverse.take(to.name, relayed=not link.ready_by_relay)
        if call is not None:
            try:
                self._peers.check(call.caller.certificate, to)
            except CertificateError:
                call.over.set()
                raise
        return call

    async def _ask(self, to: Neighbour, link: Link, request: bytes) -> AsyncGenerator[bytes, None]:
        channel = link.channel
        if channel is None:
            raise TransportError("has not connected to this site, and has no address at which this site could dial it")
        call = channel.unary_stream(PULL)(request)
        try:
            async for data in call:
                yield data
        except grpc.aio.AioRpcError as error:
            raise self._failed(error, to, link, channel) from None
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            raise TransportError("was asked over a connection that was closed; it is asked again") from None
        finally:
            call.cancel()

    def _failed(
        self, error: grpc.aio.AioRpcError, to: Neighbour, link: Link, channel: grpc.aio.Channel
    ) -> TransportError:
        direct = channel is link.direct
        why = self._translated(error, to, link.roots, direct)
        if direct and error.code() == grpc.StatusCode.UNAVAILABLE:
            link.failure = str(why)
        if not direct and link.failure and error.code() == grpc.StatusCode.UNAVAILABLE:
            return TransportError(f"{why}; directly it {link.failure}")
        return why

    async def _link(self, to: Neighbour, roots: bytes) -> Link:
        """The connection to a neighbour; a new one when another certificate of it counts."""
        known = self._links.get(to.name)
        if known is not None and known.roots == roots:
            return known
        first, most = (round(1000 * seconds) for seconds in RECONNECT)
        pauses = [("grpc.initial_reconnect_backoff_ms", first), ("grpc.max_reconnect_backoff_ms", most)]
        pauses.append(("grpc.min_reconnect_backoff_ms", round(1000 * HANDSHAKE_TIMEOUT)))
        own, relay = [*_CLIENT, *pauses], self._relay
        link = Link(
            roots,
            self._connect(to, to.address, own, roots) if to.address else None,
            None if relay is None else lambda: self._connect(to, relay.target(to.name), own, roots),
        )
        self._links[to.name] = link
        if known is not None:
            await known.close()
        return link

    def _offer_to(self, to: Neighbour) -> None:
        """From now on offer a neighbour that this site dials to ask over the same connection."""
        task = self._offering.get(to.name)
        if self._handler is None or self._links[to.name].channel is None:
            return
        if task is None or task.done():
            self._offering[to.name] = asyncio.ensure_future(self._keep_offering(to, self._handler))

    async def _keep_offering(self, to: Neighbour, handler: Handler) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(OPEN):
                group.create_task(self._keep_open(to, handler))

    async def _keep_open(self, to: Neighbour, handler: Handler) -> None:
        """Keep one call open at a neighbour, by which it may ask."""
        pauses = growing(*RECONNECT)
        while True:
            try:
                roots = self._peers.roots(to.name)
                link = await self._link(to, roots)
                channel = link.channel
                if channel is None:
                    return
                if not await self._offer(to, roots, handler).answer_one(channel):
                    await link.rest()
                pauses = growing(*RECONNECT)
                continue
            except grpc.aio.AioRpcError as error:
                if error.code() == grpc.StatusCode.UNIMPLEMENTED:  # an earlier version
                    return
                self._failed(error, to, link, channel)
            except CertificateError:
                pass  # whoever pulls is told why
            except (asyncio.CancelledError, grpc.aio.UsageError):  # also when `_link` has closed the connection
                if _is_cancelled():
                    raise
            await asyncio.sleep(next(pauses))

    def _offer(self, to: Neighbour, roots: bytes, handler: Handler) -> Offer:
        told = partial(self._inbound.not_dialled, to.name)
        return Offer(handler, lambda: self._caller(to, roots), told)

    def _caller(self, to: Neighbour, roots: bytes) -> Caller:
        """A neighbour that asks over a connection that this site made: TLS has accepted it by these certificates.

        A neighbour that is not pinned yet has to show itself first, by a request of its own.
        """
        shown = b"" if roots == self._identity.ca else first_certificate(roots)
        self._peers.check(shown, to)
        if self._peers.roots(to.name) != roots:  # it may have shown one that does not count any more
            raise CertificateError("it was connected while other certificates of it counted; it is connected again")
        return Caller(to.name, to.address or RELAYED, shown)

    async def status(self, to: Site | Neighbour, seconds: float) -> bytes:
        """Ask a site once for its status: at its address, or else through the relay."""
        failed = [TransportError("only dials out: it has no address at which it could be asked")]
        for target in self.targets(to).values():
            try:
                return await self.status_at(to, target, seconds)
            except CertificateError:
                raise
            except TransportError as error:
                failed.append(error)
        raise failed[1] if failed[1:] else failed[0]

    def targets(self, to: Site | Neighbour) -> dict[str, str]:
        """Where gRPC can dial a site: "direct" and "relay", as far as there is one."""
        direct = {DIRECT: to.address} if to.address else {}
        return direct if self._relay is None else {**direct, RELAYED: self._relay.target(to.name)}

    async def ways(self, to: Site | Neighbour, seconds: float) -> list[Way]:
        """Try every way to reach a site: its address, the relay, and, while this site serves, what it has dialled."""
        found = []
        for how, target in self.targets(to).items():
            try:
                await self.status_at(to, target, seconds)
                found.append(Way(how))
            except TransportError as error:
                found.append(Way(how, str(error)))
        if self._handler is not None:
            found.append(Way(REVERSE, "" if self._reverse.has(to.name) else "it has not dialled this site"))
        return found

    async def status_at(self, to: Site | Neighbour, target: str, seconds: float) -> bytes:
        """Ask a site once for its status in one of these ways."""
        options, roots = [("grpc.max_receive_message_length", LARGEST_STATUS)], self._peers.roots(to.name)
        async with self._connect(to, target, options, roots) as channel:
            try:
                answer: bytes = await channel.unary_unary(STATUS)(b"", timeout=seconds, wait_for_ready=False)
                return answer
            except grpc.aio.AioRpcError as error:
                if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise TransportError(f"did not answer within {seconds:g} s") from None
                raise self._translated(error, to, roots, target == to.address) from None

    def _connect(
        self, to: Site | Neighbour, target: str, options: list[tuple[str, int]], roots: bytes
    ) -> grpc.aio.Channel:
        named = [*options, ("grpc.ssl_target_name_override", to.name)]
        credentials = grpc.ssl_channel_credentials(roots, self._identity.key, self._identity.certificate)
        return grpc.aio.secure_channel(target, credentials, options=named)

    def _translated(
        self, error: grpc.aio.AioRpcError, to: Site | Neighbour, roots: bytes, direct: bool
    ) -> TransportError:
        relayed = "" if direct or self._relay is None else self._relay.failure(to.name)
        if relayed and error.code() == grpc.StatusCode.UNAVAILABLE:
            return TransportError(f"cannot be reached ({relayed})")
        return _translated(error, pinned=roots != self._identity.ca)

    @asynccontextmanager
    async def serve(self, handler: Handler) -> AsyncIterator[None]:
        handshake = ("grpc.server_handshake_timeout_ms", round(1000 * HANDSHAKE_TIMEOUT))
        server = grpc.aio.server(options=[*_SERVER, handshake])
        relay = self._relay if self._relay is not None and self._relay.registers else None
        relayed = (lambda peer: False) if relay is None else relay.has_accepted
        server.add_generic_rpc_handlers((Service(handler, self._reverse, self._inbound, relayed),))
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
            await link.close()
        if self._relay is not None:
            await self._relay.close()


def _is_cancelled() -> bool:
    """Whether somebody cancels this task: gRPC also raises CancelledError when the connection of a call is closed."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _translated(error: grpc.aio.AioRpcError, pinned: bool = False) -> TransportError:
    """Why a call failed; the other site is the subject. `pinned` says that TLS knows it by its own certificate."""
    words, code = printable((error.details() or error.code().name).splitlines()[0]), error.code()
    if words == _STOPS:
        return TransportError("is stopping")
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
