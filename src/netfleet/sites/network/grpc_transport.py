"""gRPC over mutual TLS. What gRPC raises becomes netfleet's errors here, and nowhere else."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import grpc
import grpc.aio

from netfleet.errors import CertificateError, ConfigError, FrameError, TransportError
from netfleet.sites.network import wire
from netfleet.sites.network.transport import Busy, Caller, Handler
from netfleet.sites.operations.logs import printable
from netfleet.sites.operations.tls_refusals import NOT_PINNED, OTHER_AUTHORITY, failure
from netfleet.sites.planning.certificates import Identity
from netfleet.sites.planning.folders import Neighbour, Site
from netfleet.sites.policy.peers import AnyPeers, Peers

PULL, STATUS = "/netfleet.Peer/Pull", "/netfleet.Peer/Status"
#: Seconds for a request to arrive once it has been announced.
READ_TIMEOUT = 30.0
#: Seconds for a TLS handshake; a connection that takes longer is closed.
HANDSHAKE_TIMEOUT = 10.0
#: Pauses before a connection is tried again grow from the first to the second, in seconds.
RECONNECT = (0.1, 1.0)
#: Bytes of the largest frame, and of the largest status.
LARGEST, LARGEST_STATUS = wire.HEADER_SIZE + wire.CHUNK, 4 << 20
_BOTH = [
    ("grpc.max_receive_message_length", LARGEST),
    ("grpc.max_send_message_length", LARGEST),
    ("grpc.max_metadata_size", 8192),
    ("grpc.absolute_max_metadata_size", 16384),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
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


class GrpcTransport:
    """A `Transport` with one connection per neighbour, which is kept."""

    def __init__(self, identity: Identity, listen: str = "", peers: Peers | None = None) -> None:
        """`listen` is the address to serve on; a client without a server needs none. `peers` say whom it may dial."""
        self._identity, self._listen = identity, listen
        self._peers: Peers = AnyPeers(identity.ca) if peers is None else peers
        self._channels: dict[str, tuple[bytes, grpc.aio.Channel]] = {}

    async def pull(self, to: Neighbour, request: bytes) -> AsyncGenerator[bytes, None]:
        roots = self._peers.roots(to.name)
        call, first = (await self._channel(to, roots)).unary_stream(PULL)(request), True
        try:
            async for data in call:
                if first and self._peers.roots(to.name) != roots:  # changed while this call waited
                    raise TransportError("was asked while another certificate of it counted; it is asked again")
                first = False
                yield data
        except grpc.aio.AioRpcError as error:
            raise _translated(error, pinned=roots != self._identity.ca) from None
        finally:
            call.cancel()

    async def _channel(self, to: Neighbour, roots: bytes) -> grpc.aio.Channel:
        """The connection to a neighbour; a new one when another certificate of it counts."""
        known = self._channels.get(to.name)
        if known is None or known[0] != roots:
            if known is not None:
                del self._channels[to.name]
                await known[1].close()
            first, most = (round(1000 * seconds) for seconds in RECONNECT)
            pauses = [("grpc.initial_reconnect_backoff_ms", first), ("grpc.max_reconnect_backoff_ms", most)]
            self._channels[to.name] = roots, self._connect(to, [*_CLIENT, *pauses], roots)
        return self._channels[to.name][1]

    async def status(self, to: Site | Neighbour, seconds: float) -> bytes:
        """Ask a site once for its status."""
        options, roots = [("grpc.max_receive_message_length", LARGEST_STATUS)], self._peers.roots(to.name)
        async with self._connect(to, options, roots) as channel:
            try:
                answer: bytes = await channel.unary_unary(STATUS)(b"", timeout=seconds, wait_for_ready=False)
                return answer
            except grpc.aio.AioRpcError as error:
                if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise TransportError(f"did not answer within {seconds:g} s") from None
                raise _translated(error, pinned=roots != self._identity.ca) from None

    def _connect(self, to: Site | Neighbour, options: list[tuple[str, int]], roots: bytes) -> grpc.aio.Channel:
        named = [*options, ("grpc.ssl_target_name_override", to.name)]
        credentials = grpc.ssl_channel_credentials(roots, self._identity.key, self._identity.certificate)
        return grpc.aio.secure_channel(to.address, credentials, options=named)

    @asynccontextmanager
    async def serve(self, handler: Handler) -> AsyncIterator[None]:
        handshake = ("grpc.server_handshake_timeout_ms", round(1000 * HANDSHAKE_TIMEOUT))
        server = grpc.aio.server(options=[*_SERVER, handshake])
        server.add_generic_rpc_handlers((_Service(handler),))
        own = [(self._identity.key, self._identity.certificate)]
        credentials = grpc.ssl_server_credentials(own, self._identity.ca, require_client_auth=True)
        try:
            server.add_secure_port(self._listen, credentials)
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen on {self._listen} ({error}); free the port, or change listen in site.toml"
            ) from None
        await server.start()
        try:
            yield
        finally:
            await server.stop(grace=1)

    async def close(self) -> None:
        for _, channel in self._channels.values():
            await channel.close()


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


class _Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A `Handler` as gRPC calls it."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method == PULL:
            return grpc.stream_stream_rpc_method_handler(self._pull)
        return grpc.stream_unary_rpc_method_handler(self._status) if details.method == STATUS else None

    async def _pull(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        try:
            async with aclosing(self._handler.pull(_caller(context), lambda: _read(requests))) as answers:
                async for data in answers:
                    yield data
        except TransportError as error:
            await context.abort(_code(error), str(error))

    async def _status(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> bytes:
        try:
            return await self._handler.status(_caller(context))
        except TransportError as error:
            await context.abort(_code(error), str(error))
            raise


def _code(error: TransportError) -> grpc.StatusCode:
    return grpc.StatusCode.RESOURCE_EXHAUSTED if isinstance(error, Busy) else grpc.StatusCode.PERMISSION_DENIED


def _caller(context: grpc.aio.ServicerContext) -> Caller:
    """The sender, by the certificate that TLS has checked. It is read first: gRPC forgets it when it aborts a call."""
    found = context.auth_context()
    names, shown = found.get("x509_common_name", []), found.get("x509_pem_cert", [b""])
    return Caller(names[0].decode("utf-8", "replace") if len(names) == 1 else "", context.peer(), shown[0])


async def _read(requests: AsyncIterator[bytes]) -> bytes:
    """The one message of a call. gRPC drops an oversized one without an error; then there is none."""
    try:
        async with asyncio.timeout(READ_TIMEOUT):
            return await anext(aiter(requests))
    except StopAsyncIteration:
        raise FrameError(f"a request without a frame, or with an oversized one: more than {LARGEST} bytes") from None
    except TimeoutError:
        raise FrameError(f"a request without a frame for {READ_TIMEOUT:.0f} s") from None
