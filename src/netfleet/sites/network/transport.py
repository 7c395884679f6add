"""gRPC over mutual TLS: serves this site's messages to its neighbours, and pulls theirs.

Pull, not push: a site asks when it is ready, holds the line while the other still computes, and asks again after a
pause where nobody answers. Nothing that a neighbour sends is stored before it has been asked for and checked.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import grpc
import grpc.aio

from netfleet.engines.host import Tag
from netfleet.errors import ConfigError, FrameError, TransportError
from netfleet.sites.network import wire
from netfleet.sites.network.outbox import Message, Outbox
from netfleet.sites.network.rate_limit import Turn, Turns
from netfleet.sites.network.wire import Assembly, Expected, Frame, Kind
from netfleet.sites.operations import tls_trace_filter as sieve
from netfleet.sites.operations.logs import printable
from netfleet.sites.planning.folders import Neighbour, Site
from netfleet.sites.planning.identity import OPERATOR, Identity

PULL, STATUS = "/netfleet.Peer/Pull", "/netfleet.Peer/Status"
#: Seconds for which the line is held while a message is not there yet, and after which an answer is overdue.
HOLD, DEADLINE = 20.0, 30.0
#: Pauses between attempts grow from the first to the second, in seconds.
PAUSES = (0.05, 1.0)
#: Bytes of the largest frame.
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
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),
]

#: What may be said instead of a message.
_SAYINGS = (Kind.WAIT, Kind.DROPPED, Kind.LEFT, Kind.DONE, Kind.JOINED)

_REFUSALS = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED)

#: Told of every refusal: who, and why.
Refused = Callable[[str, str], None]


class Silence(TransportError):
    """A neighbour that is connected but says nothing."""


class Answer(NamedTuple):
    """How an attempt ended: `CHUNK` when what was asked for is there."""

    kind: Kind
    t: int


@dataclass
class Contact:
    """What is known of a neighbour."""

    about: Neighbour
    t: int = -1  # the round that it was in when last heard of
    heard: float | None = None  # when that was
    waiting: str = ""  # why it is waited for; empty: it is not
    received: int = 0  # bytes
    sent: int = 0

    def hear(self, t: int) -> None:
        """It gave a sign of life."""
        self.t, self.heard = max(self.t, t), time.monotonic()


class Wanted(NamedTuple):
    """A message that is asked for: what it must be, where it goes, and when not to ask for it any more."""

    expected: Expected
    into: memoryview = memoryview(b"")
    finite: Callable[[], bool] = lambda: True
    given_up: Callable[[], bool] = lambda: False


class Desk(Protocol):
    """What a server answers from."""

    def meet(self, name: str) -> Contact | None:
        """Who has a certificate with this name, if it is a neighbour or may become one."""

    def instead(self, j: int, request: Frame) -> Frame | None:
        """What to tell neighbour j instead of a message, where there is something."""

    def first(self, j: int) -> int:
        """The first round of the link to neighbour j."""

    def heard(self, j: int, t: int, rounds: Sequence[int]) -> None:
        """Neighbour j is in round t, and knows these rounds of all sites."""

    def join(self, j: int) -> Frame:
        """Agree with j on the first round of a new link; durable before this returns."""

    def model(self) -> Message:
        """The model as it was last made durable."""

    def status(self, name: str) -> bytes:
        """How the site is, as JSON, for whoever has this name."""


class SiteServer(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers neighbours, and the operator's questions."""

    def __init__(self, site: Site, outbox: Outbox, desk: Desk, refused: Refused) -> None:
        self.site, self.outbox, self.refused, self.desk = site, outbox, refused, desk
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
        who = f"{name} ({context.peer()})"  # gRPC forgets it when it cuts a call off
        async with self._admitted(name, context) as turn:
            try:
                frame, contact = self._understood(await _only(requests), name)
                async for answer in self._answers(frame, contact):
                    data = answer.encode()
                    contact.sent += len(data)
                    turn.sent += len(data)
                    if answer.kind == Kind.HEAD and frame.kind == Kind.PULL:
                        turn.tag = Tag(frame.t, frame.call)
                    yield data
            except FrameError as error:
                self.refused(who, str(error))
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))

    def _understood(self, request: bytes, name: str) -> tuple[Frame, Contact]:
        """A request that may be answered, and whose it is."""
        contact = self.desk.meet(name)
        if contact is None:
            raise FrameError("its certificate is good, but it is not a neighbour")
        frame = wire.decode(request)
        wire.check_origin(frame, self._run, contact.about.number)
        if frame.kind not in (Kind.PULL, Kind.JOIN, Kind.MODEL):
            raise FrameError(f"a request {frame.kind.name} where PULL, JOIN or MODEL was due")
        if frame.kind == Kind.PULL:
            rounds = wire.unpack_rounds(frame.body)
            if self.desk.instead(contact.about.number, frame) is None:
                self._check_round(frame, self.desk.first(contact.about.number))
            self.desk.heard(contact.about.number, frame.t, rounds)
        return frame, contact

    def _check_round(self, frame: Frame, first: int) -> None:
        """Neighbours are at most one round apart; one who comes anew may be ahead, but not of the first round."""
        if not self.outbox.t - 1 <= frame.t <= max(self.outbox.t + 1, first):
            raise FrameError(
                f"a request for round {frame.t} while this site is in round {self.outbox.t}; neighbours are at most "
                f"one round apart. A site that lost its disk can come back with netfleet node DIR --rejoin"
            )

    async def _answers(self, frame: Frame, contact: Contact) -> AsyncIterator[Frame]:
        if frame.kind == Kind.JOIN:
            yield await asyncio.to_thread(self.desk.join, contact.about.number)
            return
        said, message = await self._message(frame, contact)
        if said is not None:
            yield said
        elif message is not None:
            data = message.data.numpy().data
            for part in wire.message(self._run, self.site.number, frame.t, frame.call, message.words, data):
                yield part

    async def _message(self, frame: Frame, contact: Contact) -> tuple[Frame | None, Message | None]:
        """What was asked for, or what to say instead; the line is held until there is either."""
        if frame.kind == Kind.MODEL:
            return None, await asyncio.to_thread(self.desk.model)
        tag = Tag(frame.t, frame.call)
        try:
            async with asyncio.timeout(HOLD), self._news:
                while (said := self.desk.instead(contact.about.number, frame)) is None:
                    if (message := self.outbox.get(tag)) is not None:
                        return None, message
                    await self._news.wait()
                return said, None
        except TimeoutError:
            return Frame(Kind.WAIT, self._run, self.site.number, self.outbox.t), None

    async def status(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        """What the operator, or a neighbour, may know."""
        name = _name(context)
        async with self._admitted(name, context):
            if name not in (OPERATOR, self.site.name) and self.desk.meet(name) is None:
                self.refused(
                    f"{name} ({context.peer()})", "asked for the status, but is neither operator nor neighbour"
                )
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, "neither operator nor neighbour")
            return await asyncio.to_thread(self.desk.status, name)

    @asynccontextmanager
    async def _admitted(self, name: str, context: Any) -> AsyncIterator[Turn]:
        """A turn for one request, if its sender has not had too many; strangers take turns among themselves."""
        known = name in (OPERATOR, self.site.name) or self.desk.meet(name) is not None
        with ExitStack() as stack:
            try:
                turn = stack.enter_context(self.turns.turn(name if known else ""))
            except TransportError as error:
                self.refused(f"{name} ({context.peer()})", str(error))
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
            yield turn


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


async def serve(site: Site, identity: Identity, handler: SiteServer) -> grpc.aio.SiteServer:
    """Listen where the site's file says; mutual TLS or nothing."""
    server = grpc.aio.server(options=_SERVER)
    server.add_generic_rpc_handlers((handler,))
    credentials = grpc.ssl_server_credentials(
        [(identity.key, identity.certificate)], identity.ca, require_client_auth=True
    )
    try:
        server.add_secure_port(site.listen, credentials)
    except RuntimeError as error:
        raise ConfigError(
            f"cannot listen on {site.listen} ({error}); free the port, or change listen in site.toml"
        ) from None
    await server.start()
    return server


class Client:
    """Pulls messages from neighbours, each over one connection that is kept."""

    def __init__(self, site: Site, identity: Identity, refused: Refused) -> None:
        self.site, self.refused = site, refused
        self._run = bytes.fromhex(site.run)
        self._credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.certificate)
        self._channels: dict[int, Any] = {}

    async def pull(self, contact: Contact, wanted: Wanted, rounds: Sequence[int] = ()) -> Answer:
        """Ask until there is an answer that is final, or the site's patience is over (WAIT).

        Patience counts from the first failure after an answer: a neighbour that answers "not yet" is waited for, and
        one that was never there is too. One that comes anew is not asked for what it no longer has (JOIN).
        """
        pauses, silent = _pauses(), None
        t, call = wanted.expected.t, wanted.expected.call
        while not wanted.given_up():
            begun = time.monotonic()
            request = Frame(Kind.PULL, self._run, self.site.number, t, call, body=wire.pack_rounds(rounds))
            try:
                answer = await self._attempt(contact, request, wanted)
                pauses, silent = _pauses(), None
                if answer.kind != Kind.WAIT:
                    contact.waiting = ""
                    return answer
                contact.waiting = f"is in round {answer.t}" if answer.t >= 0 else "is about to begin"
                await asyncio.sleep(next(pauses))  # who means harm may answer at once, and for ever
                continue
            except Silence as error:
                contact.waiting, silent = str(error), begun if silent is None else silent
            except FrameError as error:
                self.refused(contact.about.name, str(error))
                contact.waiting = f"sent what was refused: {error}"
            except grpc.aio.AioRpcError as error:
                contact.waiting = reason(error)
                if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED:  # it is there, and has enough of this site
                    silent = None
            now, known = time.monotonic(), t > 0 or contact.heard is not None
            silent = now if silent is None else silent
            if self.site.patience and known and now - silent > self.site.patience:
                return Answer(Kind.WAIT, contact.t)
            await asyncio.sleep(next(pauses))
        return Answer(Kind.JOIN, contact.t)

    async def confirm(self, contact: Contact, t: int) -> None:
        """Tell a neighbour that has left that this site knows, by asking for what comes after the end."""
        request = Frame(Kind.PULL, self._run, self.site.number, t)
        with suppress(TransportError, grpc.aio.AioRpcError):
            await self._attempt(contact, request, Wanted(Expected(self._run, contact.about.number, t, 0, "", 0)))

    async def join(self, contact: Contact) -> Answer:
        """Ask a neighbour once to be taken as one: JOINED and the first round, or what it says instead."""
        request = Frame(Kind.JOIN, self._run, self.site.number, -1)
        return await self._attempt(contact, request, Wanted(Expected(self._run, contact.about.number, -1, 0, "", 0)))

    async def model(self, contact: Contact, wanted: Wanted) -> Answer:
        """Ask a neighbour once for its model."""
        request = Frame(Kind.MODEL, self._run, self.site.number, wanted.expected.t)
        return await self._attempt(contact, request, wanted)

    async def _attempt(self, contact: Contact, request: Frame, wanted: Wanted) -> Answer:
        assembly = Assembly(wanted.expected, wanted.into)
        call = self._channel(contact.about).unary_stream(PULL)(request.encode(), timeout=None)
        async for data in _in_time(call):
            contact.received += len(data)
            frame = wire.decode(data)
            if frame.kind in _SAYINGS:
                wire.check_origin(frame, self._run, contact.about.number)
                if frame.kind == Kind.WAIT and frame.t > wanted.expected.t + 1:
                    raise FrameError(f"is said to be in round {frame.t}, but has nothing for round {wanted.expected.t}")
                contact.hear(frame.t)
                return Answer(frame.kind, frame.t)
            assembly.feed(frame)
        if not assembly.complete:
            raise FrameError("a truncated message: the stream ended before its last byte")
        if not await asyncio.to_thread(_is_finite, wanted):
            raise FrameError("a message with a number that is not finite (NaN or infinity)")
        contact.hear(wanted.expected.t)
        return Answer(Kind.CHUNK, wanted.expected.t)

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
                raise Silence(f"is connected, but has not answered for {DEADLINE:.0f} s") from None
            except grpc.aio.AioRpcError as error:
                if "message larger than max" in (error.details() or ""):
                    raise FrameError(f"an oversized frame: more than {LARGEST} bytes") from None
                raise
    finally:
        call.cancel()


def _is_finite(wanted: Wanted) -> bool:
    """Whether a message can be read, and has finite numbers only; a codec may find no sense in what it gets."""
    try:
        return wanted.finite()
    except (RuntimeError, ValueError, IndexError) as error:
        raise FrameError(f"a message that cannot be decoded: {str(error).splitlines()[0]}") from None


def _pauses() -> Any:
    """Growing pauses, each drawn so that sites do not ask in step."""
    pause, most = PAUSES
    while True:
        yield pause * random.uniform(0.5, 1.5)
        pause = min(2 * pause, most)


def reason(error: grpc.aio.AioRpcError | TransportError) -> str:
    """Why a call failed, in a few words of which the other is the subject."""
    if isinstance(error, TransportError):
        return str(error)
    words = printable((error.details() or error.code().name).splitlines()[0])
    if error.code() == grpc.StatusCode.UNAVAILABLE:
        if (why := sieve.failure(words)) is not None:
            return f"answers with {why}"
        return f"cannot be reached ({words.rpartition('last error: ')[2].removeprefix('UNKNOWN: ')[-160:]})"
    return f"refuses: {words}" if error.code() in _REFUSALS else words
