"""What gRPC calls at a site that serves: requests, and calls by which a neighbour offers to answer some."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import grpc
import grpc.aio

from netfleet.errors import FrameError, TransportError
from netfleet.sites.network import wire
from netfleet.sites.network.inbound import Inbound
from netfleet.sites.network.reverse import ATTACH, RELAYED, ReverseCall, ReverseCalls
from netfleet.sites.network.transport import Busy, Caller, Handler

PULL, STATUS = "/netfleet.Peer/Pull", "/netfleet.Peer/Status"
#: Bytes of the largest frame.
LARGEST = wire.HEADER_SIZE + wire.CHUNK
#: Seconds for a request to arrive once it has been announced.
READ_TIMEOUT = 30.0


class Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A `Handler` as gRPC calls it."""

    def __init__(
        self,
        handler: Handler,
        reverse: ReverseCalls,
        inbound: Inbound,
        relayed: Callable[[str], bool],
    ) -> None:
        """`inbound` is told who asks directly and who through the relay; `relayed` says whether a connection, by gRPC's
        name for its other end, comes from the relay.
        """
        self._handler, self._reverse, self._inbound, self._relayed = handler, reverse, inbound, relayed

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method == PULL:
            return grpc.stream_stream_rpc_method_handler(self._pull)
        if details.method == ATTACH:
            return grpc.stream_stream_rpc_method_handler(self._attach)
        return grpc.stream_unary_rpc_method_handler(self._status) if details.method == STATUS else None

    async def _pull(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        caller = self._caller(context)
        try:
            async with aclosing(self._handler.pull(caller, lambda: _read(requests))) as answers:
                async for data in answers:
                    yield data
        except TransportError as error:
            await context.abort(_code(error), str(error))
        if caller.address == RELAYED:
            self._inbound.not_dialled(caller.name, "it asks through the relay")
        else:
            self._inbound.dialled(caller.name)

    async def _attach(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
        caller = self._caller(context)
        try:
            self._handler.check_neighbour(caller)
        except TransportError as error:
            await context.abort(_code(error), str(error))
        await context.send_initial_metadata(())
        await self._reverse.hold(ReverseCall(caller, context))

    async def _status(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> bytes:
        try:
            return await self._handler.status(self._caller(context))
        except TransportError as error:
            await context.abort(_code(error), str(error))
            raise

    def _caller(self, context: grpc.aio.ServicerContext) -> Caller:
        """The sender, by the certificate that TLS has checked; gRPC forgets it when it aborts a call."""
        found = context.auth_context()
        names, shown = found.get("x509_common_name", []), found.get("x509_pem_cert", [b""])
        address = RELAYED if self._relayed(context.peer()) else context.peer()
        return Caller(names[0].decode("utf-8", "replace") if len(names) == 1 else "", address, shown[0])


def _code(error: TransportError) -> grpc.StatusCode:
    return grpc.StatusCode.RESOURCE_EXHAUSTED if isinstance(error, Busy) else grpc.StatusCode.PERMISSION_DENIED


async def _read(requests: AsyncIterator[bytes]) -> bytes:
    """The one message of a call. gRPC drops an oversized one without an error; then there is none."""
    try:
        async with asyncio.timeout(READ_TIMEOUT):
            return await anext(aiter(requests))
    except StopAsyncIteration:
        raise FrameError(f"a request without a frame, or with an oversized one: more than {LARGEST} bytes") from None
    except TimeoutError:
        raise FrameError(f"a request without a frame for {READ_TIMEOUT:.0f} s") from None
