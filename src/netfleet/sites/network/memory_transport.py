"""Sites of one process that exchange frames without sockets: the transport for tests of everything but TLS.

    network = MemoryNetwork()
    SiteRunner(…, transport=network.transport("s0"))

Every site has an event loop of its own, as over gRPC; a request runs in the loop of the site that answers it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import Future
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from netfleet.errors import FrameError, TransportError
from netfleet.sites.network.transport import Busy, Caller, Handler
from netfleet.sites.planning.folders import Neighbour


@dataclass
class _Listener:
    """A site that serves, and the requests that it has not answered yet."""

    handler: Handler
    loop: asyncio.AbstractEventLoop
    pending: set[Future[list[bytes]]] = field(default_factory=set)
    closed: bool = False


class MemoryNetwork:
    """Sites by name."""

    def __init__(self) -> None:
        self.listeners: dict[str, _Listener] = {}

    def transport(self, name: str) -> MemoryTransport:
        return MemoryTransport(self, name)

    def disconnect(self, name: str) -> None:
        """Let nobody reach a site any more, as if its process had been killed."""
        if (listener := self.listeners.pop(name, None)) is not None:
            listener.closed = True
            for future in list(listener.pending):
                future.cancel()


class MemoryTransport:
    """One site's `Transport`."""

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        self._network, self._name = network, name

    async def pull(self, to: Neighbour, request: bytes) -> AsyncGenerator[bytes, None]:
        listener = self._network.listeners.get(to.name)
        if listener is None:
            raise TransportError("cannot be reached (it does not serve)")
        future = asyncio.run_coroutine_threadsafe(_answers(listener.handler, self._name, request), listener.loop)
        listener.pending.add(future)
        try:
            for data in await asyncio.wrap_future(future):
                yield data
        except Busy as error:
            raise Busy(f"refuses: {error}") from None
        except FrameError as error:
            raise TransportError(f"refuses: {error}") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not listener.closed or (task is not None and task.cancelling()):
                raise
            raise TransportError("cannot be reached (the connection was closed)") from None
        finally:
            listener.pending.discard(future)

    @asynccontextmanager
    async def serve(self, handler: Handler) -> AsyncIterator[None]:
        self._network.listeners[self._name] = _Listener(handler, asyncio.get_running_loop())
        try:
            yield
        finally:
            self._network.disconnect(self._name)

    async def close(self) -> None:
        """There is nothing to close."""


async def _answers(handler: Handler, name: str, request: bytes) -> list[bytes]:
    async def read() -> bytes:
        return request

    async with aclosing(handler.pull(Caller(name, "memory"), read)) as answers:
        return [data async for data in answers]
