"""The interface between a site and the others: how frames travel.

`GrpcTransport` carries them over mutual TLS, `MemoryTransport` between sites of one process without sockets, for tests
of everything but TLS. `Client` asks through a transport, `SiteServer` is the handler that a transport serves.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from netfleet.errors import CertificateError, FrameError, TransportError
from netfleet.sites.network.wait_cause import Cause
from netfleet.sites.planning.folders import Neighbour
from netfleet.sites.policy.peers import Peers

#: Seconds for which a request waits for a message that is not there yet. A site that still computes so answers "not
#: yet" about once a second: that is its sign of life.
HOLD = 1.0

#: Why somebody with a good certificate is rejected.
NO_NEIGHBOUR = "its certificate is good, but it is not a neighbour"
#: Ways to a site, beside the relay.
DIRECT, REVERSE = "direct", "reverse"
#: Called with every rejection: who sent it, and why it is rejected.
Refused = Callable[[str, str], None]


class Busy(TransportError):
    """The other site answers, but this one has sent too many requests."""


class Caller(NamedTuple):
    """The sender of a request: the name in its certificate, its network address, and the certificate (PEM)."""

    name: str
    address: str
    certificate: bytes = b""

    def __str__(self) -> str:
        return f"{self.name} ({self.address})"


@dataclass
class Contact:
    """What a site knows of a neighbour."""

    neighbour: Neighbour
    t: int = -1  # the round in which it was at the last sign of life
    last_heard: float | None = None  # when that was
    waiting: str = ""  # why this site waits for it; empty: it does not
    asked: float | None = None  # since when this site asks for what has not arrived
    silent: bool = False  # whether it did not answer the last time
    cause: Cause | None = None  # for whom it waits, as its last answer says
    served: int = -1  # the last round whose message it was sent
    received: int = 0  # bytes
    sent: int = 0

    def note_round(self, t: int) -> None:
        """It gave a sign of life in round t."""
        self.t, self.last_heard, self.silent = max(self.t, t), time.monotonic(), False


class Way(NamedTuple):
    """How a site can be reached: "direct", "relay" or "reverse", over a connection that it made; or why it cannot."""

    how: str
    failure: str = ""


class Handler(Protocol):
    """Answers requests. It raises FrameError to reject a request, CertificateError to reject its sender, and Busy where
    a caller sends too many.
    """

    def pull(self, caller: Caller, read: Callable[[], Awaitable[bytes]]) -> AsyncGenerator[bytes, None]:
        """The frames that answer a request, which `read` brings."""

    async def status(self, caller: Caller) -> bytes:
        """The site's status as JSON, as far as the caller may see it."""

    def check_neighbour(self, caller: Caller) -> None:
        """Raise unless the caller is a neighbour, with a certificate that counts."""


class Transport(Protocol):
    """One site's connections; what fails is a TransportError whose subject is the other site."""

    def pull(self, to: Neighbour, request: bytes) -> AsyncGenerator[bytes, None]:
        """Send a request to a neighbour; the frames of its answer."""

    async def ways(self, to: Neighbour, seconds: float) -> list[Way]:
        """Try every way to reach a neighbour."""

    async def status_at(self, to: Neighbour, target: str, seconds: float) -> bytes:
        """Ask a neighbour once for its status, at this address only."""

    def serve(self, handler: Handler) -> AbstractAsyncContextManager[None]:
        """Let the others reach this site while the context lasts."""

    async def close(self) -> None:
        """Close the connections to the others."""


@dataclass
class _Listener:
    """A site that serves, and the requests that it has not answered yet."""

    handler: Handler
    loop: asyncio.AbstractEventLoop
    certificate: bytes
    pending: set[Future[list[bytes]]] = field(default_factory=set)
    closed: bool = False


class MemoryNetwork:
    """Sites by name: `SiteRunner(…, transport=network.transport("s0"))`.

    Every site has an event loop of its own, as over gRPC; a request runs in the loop of the site that answers it.
    """

    def __init__(self) -> None:
        self.listeners: dict[str, _Listener] = {}

    def transport(self, name: str, certificate: bytes = b"", peers: Peers | None = None) -> "MemoryTransport":
        """A site that shows this certificate, and as a client accepts what `peers` say."""
        return MemoryTransport(self, name, certificate, peers)

    def disconnect(self, name: str) -> None:
        """Let nobody reach a site any more, as if its process had been killed."""
        if (listener := self.listeners.pop(name, None)) is not None:
            listener.closed = True
            for future in list(listener.pending):
                future.cancel()


class MemoryTransport:
    """One site's `Transport`."""

    def __init__(self, network: MemoryNetwork, name: str, certificate: bytes, peers: Peers | None) -> None:
        self._network, self._name, self._certificate, self._peers = network, name, certificate, peers

    async def pull(self, to: Neighbour, request: bytes) -> AsyncGenerator[bytes, None]:
        listener = self._listener(to)
        caller = Caller(self._name, "memory", self._certificate)
        future = asyncio.run_coroutine_threadsafe(_answers(listener.handler, caller, request), listener.loop)
        listener.pending.add(future)
        try:
            for data in await asyncio.wrap_future(future):
                yield data
        except Busy as error:
            raise Busy(f"refuses: {error}") from None
        except (FrameError, CertificateError) as error:
            raise TransportError(f"refuses: {error}") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not listener.closed or (task is not None and task.cancelling()):
                raise
            raise TransportError("cannot be reached (the connection was closed)") from None
        finally:
            listener.pending.discard(future)

    async def ways(self, to: Neighbour, seconds: float) -> list[Way]:
        try:
            await self.status_at(to, to.address, seconds)
        except TransportError as error:
            return [Way(DIRECT, str(error))]
        return [Way(DIRECT)]

    async def status_at(self, to: Neighbour, target: str, seconds: float) -> bytes:
        listener = self._listener(to)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._ask_status(listener), listener.loop))

    async def _ask_status(self, listener: _Listener) -> bytes:
        try:
            return await listener.handler.status(Caller(self._name, "memory", self._certificate))
        except (FrameError, CertificateError) as error:
            raise TransportError(f"refuses: {error}") from None

    def _listener(self, to: Neighbour) -> _Listener:
        listener = self._network.listeners.get(to.name)
        if listener is None:
            raise TransportError("cannot be reached (it does not serve)")
        if self._peers is not None and listener.certificate not in self._peers.roots(to.name):
            raise CertificateError("answers with a certificate that is not pinned here")
        return listener

    @asynccontextmanager
    async def serve(self, handler: Handler) -> AsyncIterator[None]:
        self._network.listeners[self._name] = _Listener(handler, asyncio.get_running_loop(), self._certificate)
        try:
            yield
        finally:
            self._network.disconnect(self._name)

    async def close(self) -> None:
        """There is nothing to close."""


async def _answers(handler: Handler, caller: Caller, request: bytes) -> list[bytes]:
    async def read() -> bytes:
        return request

    async with aclosing(handler.pull(caller, read)) as answers:
        return [data async for data in answers]
