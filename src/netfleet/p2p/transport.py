"""gRPC over mutual TLS: serves this site's messages to its neighbours, and pulls theirs.

Pull, not push: a site asks when it is ready, holds the line while the other still computes, and asks again after a
pause where nobody answers. Nothing that a neighbour sends is stored before it has been asked for and checked.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import grpc
import grpc.aio

from netfleet.engines.block import Tag
from netfleet.errors import FrameError, TransportError
from netfleet.p2p import wire
from netfleet.p2p.outbox import Outbox
from netfleet.p2p.sites import Neighbour, Site
from netfleet.p2p.tls import OPERATOR, Identity
from netfleet.p2p.turns import Turn, Turns
from netfleet.p2p.wire import Assembly, Expected, Frame, Kind

PULL, STATUS = "/netfleet.Peer/Pull", "/netfleet.Peer/Status"
#: Seconds for which the line is held while a message is not there yet, and after which an answer is overdue.
HOLD, DEADLINE = 20.0, 30.0
#: Pauses between attempts grow from the first to the second, in seconds.
PAUSES = (0.05, 5.0)
#: Bytes of the largest request.
LARGEST = wire.HEADER_SIZE + wire.CHUNK
_LIMITS = [
    ("grpc.max_receive_message_length", LARGEST),
    ("grpc.max_send_message_length", LARGEST),
    ("grpc.max_metadata_size", 8192),
    ("grpc.absolute_max_metadata_size", 16384),
]
#: What others can cost: those without a certificate have ten seconds and too few connections to use up all files.
_SERVER = [
    *_LIMITS,
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", 16),
    ("grpc.max_allowed_incoming_connections", 400),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 600_000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
]
_CLIENT = [
    *_LIMITS,
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.enable_retries", 0),
]

#: What may be said instead of a message.
_SAYINGS = (Kind.WAIT, Kind.DROPPED, Kind.LEFT, Kind.DONE)

#: Told of every refusal: who, and why.
Refused = Callable[[str, str], None]


class Answer(NamedTuple):
    """How an attempt to pull a message ended: `CHUNK` when it is there."""

    kind: Kind
    t: int


@dataclass
class Contact:
    """What is known of a neighbour."""

    about: Neighbour
    t: int = -1  # the round that it was in when last heard of
    heard: float = field(default_factory=time.monotonic)
    waiting: str = ""  # why it is waited for; empty: it is not
    received: int = 0  # bytes
    sent: int = 0


class Server(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers neighbours, and the operator's questions."""

    def __init__(
        self,
        site: Site,
        outbox: Outbox,
        contacts: Mapping[int, Contact],
        refused: Refused,
        standing: Callable[[int, Frame], Frame | None],
        status: Callable[[], Awaitable[bytes]],
    ) -> None:
        """`standing(j, request)` is what to tell neighbour j instead of a message, where there is something."""
        self.site, self.outbox, self.contacts, self.refused = site, outbox, contacts, refused
        self._standing, self._status = standing, status
        self._run = bytes.fromhex(site.run)
        self.turns = Turns()
        self._news = asyncio.Condition()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        outbox.listen(self.announce)

    def announce(self) -> None:
        """Something that is waited for may be there now; from any thread."""
        self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        task = self._loop.create_task(self._notify())
        self._tasks.add(task)  # the loop itself keeps no hold on it
        task.add_done_callback(self._tasks.discard)

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """The handler of a method, as gRPC asks for it."""
        if details.method == PULL:
            return grpc.stream_stream_rpc_method_handler(self.pull)
        if details.method == STATUS:
            return grpc.stream_unary_rpc_method_handler(self.status)
        return None

    async def pull(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """A message, or why there is none."""
        name = _name(context)
        async with self._admitted(name, context) as turn:
            try:
                frame, contact = self._understood(await _only(requests), name)
            except FrameError as error:
                self.refused(f"{name} ({context.peer()})", str(error))
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
                return
            async for answer in self._answers(frame, contact):
                data = answer.encode()
                contact.sent += len(data)
                turn.sent += len(data)
                if answer.kind == Kind.HEAD:
                    turn.tag = Tag(frame.t, frame.call)
                yield data

    def _understood(self, request: bytes, name: str) -> tuple[Frame, Contact]:
        """A request that may be answered, and whose it is."""
        contact = self._neighbour(name)
        if contact is None:
            raise FrameError("its certificate is good, but it is not a neighbour")
        frame = wire.decode(request)
        wire.check_origin(frame, self._run, contact.about.number)
        if frame.kind != Kind.PULL:
            raise FrameError(f"a request {frame.kind.name} where PULL was due")
        if not self.outbox.t - 1 <= frame.t <= self.outbox.t + 1:
            raise FrameError(
                f"a request for round {frame.t} while this site is in round {self.outbox.t}; neighbours are at most "
                f"one round apart"
            )
        return frame, contact

    async def _answers(self, frame: Frame, contact: Contact) -> AsyncIterator[Frame]:
        number, tag = self.site.number, Tag(frame.t, frame.call)
        contact.t, contact.heard = max(contact.t, frame.t), time.monotonic()
        message = None
        try:
            async with asyncio.timeout(HOLD), self._news:
                while (said := self._standing(contact.about.number, frame)) is None:
                    if (message := self.outbox.get(tag)) is not None:
                        break
                    await self._news.wait()
        except TimeoutError:
            said = Frame(Kind.WAIT, self._run, number, self.outbox.t)
        if said is not None:
            yield said
        elif message is not None:
            for part in wire.message(self._run, number, *tag, message.words, message.data.numpy().data):
                yield part

    async def status(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        """What the operator, or a neighbour, may know."""
        name = _name(context)
        async with self._admitted(name, context):
            if name != OPERATOR and self._neighbour(name) is None:
                self.refused(
                    f"{name} ({context.peer()})", "asked for the status, but is neither operator nor neighbour"
                )
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, "neither operator nor neighbour")
            return await self._status()

    @asynccontextmanager
    async def _admitted(self, name: str, context: Any) -> AsyncIterator[Turn]:
        """A turn for one request, if its sender has not had too many."""
        known = name == OPERATOR or self._neighbour(name) is not None
        with ExitStack() as stack:
            try:
                turn = stack.enter_context(self.turns.turn(name if known else ""))
            except TransportError as error:
                self.refused(f"{name} ({context.peer()})", str(error))
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
            yield turn

    def _neighbour(self, name: str) -> Contact | None:
        return next((c for c in self.contacts.values() if c.about.name == name), None)


def _name(context: Any) -> str:
    """Who asks, by the certificate that TLS has checked."""
    names = context.auth_context().get("x509_common_name", [])
    return names[0].decode("utf-8", "replace") if len(names) == 1 else ""


async def _only(requests: AsyncIterator[bytes]) -> bytes:
    """The one message of a call. gRPC cuts off what is oversized without a word; then there is none."""
    try:
        async with asyncio.timeout(DEADLINE):
            return await anext(aiter(requests))
    except StopAsyncIteration:
        raise FrameError(f"a request without a frame, or with an oversized one: more than {LARGEST} bytes") from None
    except TimeoutError:
        raise FrameError(f"a request without a frame for {DEADLINE:.0f} s") from None


async def serve(site: Site, identity: Identity, handler: Server) -> grpc.aio.Server:
    """Listen where the site's file says; mutual TLS or nothing."""
    server = grpc.aio.server(options=_SERVER)
    server.add_generic_rpc_handlers((handler,))
    credentials = grpc.ssl_server_credentials(
        [(identity.key, identity.certificate)], identity.ca, require_client_auth=True
    )
    server.add_secure_port(site.listen, credentials)
    await server.start()
    return server


class Client:
    """Pulls messages from neighbours, each over one connection that is kept."""

    def __init__(self, site: Site, identity: Identity, refused: Refused) -> None:
        self.site, self.refused = site, refused
        self._run = bytes.fromhex(site.run)
        self._credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.certificate)
        self._channels: dict[int, Any] = {}

    async def pull(self, contact: Contact, expected: Expected, into: memoryview, finite: Callable[[], bool]) -> Answer:
        """Ask until there is an answer that is final, or the site's patience is over (WAIT).

        Patience counts from the last sign of life: a neighbour that answers "not yet" is waited for.
        """
        pauses = _pauses()
        contact.heard = time.monotonic()
        while True:
            try:
                answer = await self._attempt(contact, expected, into, finite)
                pauses, contact.heard, contact.t = _pauses(), time.monotonic(), max(contact.t, answer.t)
                if answer.kind != Kind.WAIT:
                    contact.waiting = ""
                    return answer
                contact.waiting = f"in round {answer.t}"
            except FrameError as error:
                self.refused(contact.about.name, str(error))
                contact.waiting = f"refused: {error}"
            except grpc.aio.AioRpcError as error:
                contact.waiting = _reason(error)
                if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED:  # it is there, and has enough of this site
                    contact.heard = time.monotonic()
            if self.site.patience and time.monotonic() - contact.heard > self.site.patience:
                return Answer(Kind.WAIT, contact.t)
            await asyncio.sleep(next(pauses))

    async def _attempt(
        self, contact: Contact, expected: Expected, into: memoryview, finite: Callable[[], bool]
    ) -> Answer:
        request = Frame(Kind.PULL, self._run, self.site.number, expected.t, expected.call)
        assembly = Assembly(expected, into)
        call = self._channel(contact.about).unary_stream(PULL)(request.encode(), timeout=None)
        async for data in _in_time(call):
            contact.received += len(data)
            frame = wire.decode(data)
            if frame.kind in _SAYINGS:
                wire.check_origin(frame, self._run, contact.about.number)
                if frame.kind == Kind.WAIT and frame.t > expected.t + 1:
                    raise FrameError(f"says that it is in round {frame.t}, but not what it had for round {expected.t}")
                return Answer(frame.kind, frame.t)
            assembly.feed(frame)
        if not assembly.complete:
            raise FrameError("a truncated message: the stream ended before its last byte")
        if not await asyncio.to_thread(finite):
            raise FrameError("a message with a number that is not finite (NaN or infinity)")
        return Answer(Kind.CHUNK, expected.t)

    def _channel(self, about: Neighbour) -> Any:
        if about.number not in self._channels:
            options = [*_CLIENT, ("grpc.ssl_target_name_override", about.name)]
            self._channels[about.number] = grpc.aio.secure_channel(about.address, self._credentials, options=options)
        return self._channels[about.number]

    async def close(self) -> None:
        """Hang up."""
        for channel in self._channels.values():
            await channel.close()


async def _in_time(call: Any) -> AsyncIterator[bytes]:
    """What a call brings; it is given up when nothing came for too long."""
    stream = call.__aiter__()
    try:
        while True:
            try:
                async with asyncio.timeout(DEADLINE):
                    yield await anext(stream)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise FrameError(f"no answer for {DEADLINE:.0f} s, although it is connected") from None
            except grpc.aio.AioRpcError as error:
                if "message larger than max" in (error.details() or ""):
                    raise FrameError(f"an oversized frame: more than {LARGEST} bytes") from None
                raise
    finally:
        call.cancel()


def _pauses() -> Any:
    """Growing pauses, each drawn so that sites do not ask in step."""
    pause, most = PAUSES
    while True:
        yield pause * random.uniform(0.5, 1.5)
        pause = min(2 * pause, most)


def _reason(error: grpc.aio.AioRpcError) -> str:
    """Why a call failed, in a few words."""
    words = (error.details() or error.code().name).splitlines()[0]
    return words if error.code() != grpc.StatusCode.UNAVAILABLE else f"cannot be reached ({words[-120:]})"
