"""The seam between a site and the others: how frames travel.

`GrpcTransport` carries them over mutual TLS, `MemoryTransport` between sites of one process. `Client` asks through a
transport, `SiteServer` is the handler that a transport serves.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from netfleet.errors import TransportError
from netfleet.sites.planning.folders import Neighbour

#: Called with every rejection: who sent it, and why it is rejected.
Refused = Callable[[str, str], None]


class Busy(TransportError):
    """The other site answers, but this one has sent too many requests."""


class Caller(NamedTuple):
    """The sender of a request: the name in its certificate, and its network address."""

    name: str
    address: str

    def __str__(self) -> str:
        return f"{self.name} ({self.address})"


@dataclass
class Contact:
    """What a site knows of a neighbour."""

    neighbour: Neighbour
    t: int = -1  # the round in which it was at the last sign of life
    last_heard: float | None = None  # when that was
    waiting: str = ""  # why this site waits for it; empty: it does not
    received: int = 0  # bytes
    sent: int = 0

    def note_round(self, t: int) -> None:
        """It gave a sign of life in round t."""
        self.t, self.last_heard = max(self.t, t), time.monotonic()


class Handler(Protocol):
    """Answers requests. It raises FrameError to reject a request, and Busy where a caller sends too many."""

    def pull(self, caller: Caller, read: Callable[[], Awaitable[bytes]]) -> AsyncGenerator[bytes, None]:
        """The frames that answer a request, which `read` brings."""

    async def status(self, caller: Caller) -> bytes:
        """The site's status as JSON, as far as the caller may see it."""


class Transport(Protocol):
    """One site's connections; what fails is a TransportError whose subject is the other site."""

    def pull(self, to: Neighbour, request: bytes) -> AsyncGenerator[bytes, None]:
        """Send a request to a neighbour; the frames of its answer."""

    def serve(self, handler: Handler) -> AbstractAsyncContextManager[None]:
        """Let the others reach this site while the context lasts."""

    async def close(self) -> None:
        """Close the connections to the others."""
