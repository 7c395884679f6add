"""Requests to a neighbour that this site cannot dial, over the connection that the neighbour has dialled.

A site opens some calls `Attach` at each neighbour that it dials, and keeps them open. A neighbour that wants to ask
takes one of them: it sends its request as the answer to the call, and gets its answer as the call's messages. Each call
carries one request; then the site opens another. So HTTP/2 does what is needed: a slow reader slows down its own
request only, and ending a call cancels the request.

Messages of a call are frames. What is no frame begins with other bytes: how the answer ended, or, before a request,
that the neighbour could not dial this site.
"""

import asyncio
import math
import time
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

import grpc
import grpc.aio

from netfleet.errors import TransportError
from netfleet.sites.network.transport import Busy, Caller, Handler
from netfleet.sites.operations.logs import printable

ATTACH = "/netfleet.Peer/Attach"
#: Calls that a site keeps open at a neighbour, and the most that it may have; more end the oldest.
OPEN, MOST = 3, 8
#: Seconds for which a site waits for the call that follows one that it has used.
NEXT = 1.0
#: The address of callers whose connection comes from the relay.
RELAYED = "relay"
END, REFUSED, BUSY, NOT_DIALLED = b"end", b"refused ", b"busy ", b"not dialled "


@dataclass(eq=False)
class ReverseCall:
    """An open call of a neighbour, which waits for a request."""

    caller: Caller
    context: grpc.aio.ServicerContext
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask(self, request: bytes, not_dialled: str) -> AsyncGenerator[bytes, None]:
        """Send a request; the frames of its answer. `not_dialled` says why it was not sent directly, if known."""
        try:
            if not_dialled:
                await self.context.write(NOT_DIALLED + not_dialled.encode())
            await self.context.write(request)
            while (data := await self.context.read()) is not grpc.aio.EOF:
                if data == END:
                    return
                _raise_if_refused(data)
                yield data
        except (grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError):
            pass
        finally:
            self.over.set()
        raise TransportError("has closed the connection that it had made to this site")


def _raise_if_refused(data: bytes) -> None:
    for word, error in ((BUSY, Busy), (REFUSED, TransportError)):
        if data.startswith(word):
            raise error(f"refuses: {printable(data.removeprefix(word).decode('utf-8', 'replace'))}")


class ReverseCalls:
    """The open calls of all neighbours, by name."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[ReverseCall]] = defaultdict(deque)
        self._used: dict[str, float] = {}  # when a call of a neighbour was taken the last time
        self._news = asyncio.Condition()

    def take(self, name: str, relayed: bool) -> ReverseCall | None:
        """The newest call of a neighbour, to send one request; `relayed`: it may come through the relay."""
        waiting = self._waiting[name]
        found = [call for call in waiting if relayed or call.caller.address != RELAYED]
        if found:
            waiting.remove(found[-1])
            self._used[name] = time.monotonic()
        return found[-1] if found else None

    async def take_next(self, name: str, relayed: bool) -> ReverseCall | None:
        """As `take`; if the last call was used just now, the neighbour is about to open another."""
        call, until = self.take(name, relayed), self._used.get(name, -math.inf) + NEXT
        while call is None and (left := until - time.monotonic()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left), self._news:
                    await self._news.wait()
            call = self.take(name, relayed)
        return call

    def has(self, name: str) -> bool:
        """Whether a neighbour could be asked now over a connection that it has made itself, without a relay."""
        return any(call.caller.address != RELAYED for call in self._waiting[name])

    def end_all(self) -> None:
        """End the calls that wait."""
        for call in [call for waiting in self._waiting.values() for call in waiting]:
            call.over.set()

    async def hold(self, call: ReverseCall) -> None:
        """Keep a call until a request has been answered over it, or it is closed."""
        waiting = self._waiting[call.caller.name]
        while len(waiting) >= MOST:
            waiting.popleft().over.set()
        waiting.append(call)
        try:
            async with self._news:
                self._news.notify_all()
            await call.over.wait()
        finally:
            call.over.set()
            with suppress(ValueError):
                waiting.remove(call)


@dataclass(frozen=True)
class Offer:
    """What a site answers over the calls that it opens at one neighbour."""

    handler: Handler
    caller: Callable[[], Caller]  # the neighbour; raises CertificateError if it may not ask now, over this connection
    not_dialled: Callable[[str], None]  # the neighbour says why it could not dial this site

    async def answer_one(self, channel: grpc.aio.Channel) -> bool:
        """Open a call, wait for a request and answer it; False if the neighbour ended the call before it asked."""
        self.caller()
        call = channel.stream_stream(ATTACH)()
        try:
            await call.initial_metadata()
            open_ = not call.done()
            try:
                request = await self._request(call)
            except grpc.aio.AioRpcError:
                if not open_:
                    raise
                return False
            if request is not None:
                await _while_open(call, self._answer(request, call))
            return request is not None
        finally:
            call.cancel()

    async def _request(self, call: grpc.aio.StreamStreamCall) -> bytes | None:
        """What the neighbour asks; None if it ends the call instead."""
        while (data := await call.read()) is not grpc.aio.EOF and data.startswith(NOT_DIALLED):
            self.not_dialled(data.removeprefix(NOT_DIALLED).decode("utf-8", "replace"))
        return None if data is grpc.aio.EOF else bytes(data)

    async def _answer(self, request: bytes, call: grpc.aio.StreamStreamCall) -> None:
        async def read() -> bytes:
            return request

        end = END
        try:
            caller = self.caller()  # again: the call may have been open for hours
            async with aclosing(self.handler.pull(caller, read)) as answers:
                async for data in answers:
                    await call.write(data)
        except Busy as error:
            end = BUSY + str(error).encode()
        except TransportError as error:
            end = REFUSED + str(error).encode()
        except Exception as error:  # as gRPC does for requests that it receives: a traceback, and the next one
            asyncio.get_running_loop().call_exception_handler({"message": "a request failed", "exception": error})
            end = REFUSED + b"it could not answer; its log says why"
        await call.write(end)
        await call.done_writing()
        await call.code()


async def _while_open(call: grpc.aio.StreamStreamCall, work: Awaitable[None]) -> None:
    """Do something until it is done, or the other side has ended the call."""
    task = asyncio.ensure_future(work)
    call.add_done_callback(lambda _: task.cancel())
    try:
        await asyncio.wait([task])
        with suppress(asyncio.CancelledError, asyncio.InvalidStateError, grpc.aio.AioRpcError):
            task.result()
    finally:
        task.cancel()
