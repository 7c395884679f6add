"""A site's connections to and from the relay. gRPC sees none of this: it dials a socket in a folder that only the user
of the site can open, and is dialled over the loopback device (which is faster, because its buffers grow).
"""

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from netfleet.errors import ConfigError, TransportError
from netfleet.privacy.receipts.signing import Signer
from netfleet.sites.network.pauses import growing
from netfleet.sites.planning.certificates import Identity
from netfleet.sites.planning.nodes_file import parse_address
from netfleet.sites.relay.forwarding import accepted, forward, prepare
from netfleet.sites.relay.handshake import (
    ACCEPT,
    ALIVE,
    DIAL,
    REGISTER,
    TICKET,
    TICKET_SIZE,
    introduce,
    read_exactly,
)

#: Seconds for a connection and its handshake; the relay may need some to reach the other site.
CONNECT = 15.0
#: Seconds for each address of the relay's host: one that nobody answers at must not keep a site from the next.
EACH = 4.0
#: Seconds between two signs of life, and without one after which the relay counts as gone.
SIGN, SILENT = 20.0, 60.0
#: Pauses between attempts to register grow from the first to the second, in seconds.
PAUSES = (0.1, 2.0)
#: Seconds without a byte after which a connection is closed; gRPC sends something every 20 s.
IDLE = 300.0
#: Connections that a site accepts at a time.
MOST = 64
LOOPBACK = "127.0.0.1"


class RelayClient:
    """One site, or the operator, at the relay."""

    def __init__(self, address: str, identity: Identity, registers: bool = False) -> None:
        """`registers` says that others may dial this site through the relay. Close it in the loop that has used it."""
        self.address, self.registers = address, registers
        self._name, self._signer = identity.name, Signer(identity)
        self._folder: Path | None = None
        self._targets: dict[str, str] = {}
        self._failures: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._port, self._accepted = 0, set[str]()

    # ---- to others ----

    def target(self, name: str) -> str:
        """Where gRPC dials a site behind the relay."""
        if name not in self._targets:
            listener = self._listener(f"to-{len(self._targets)}")
            self._targets[name] = f"unix:{listener.getsockname()}"
            self._start(self._accept_own(listener, name))
        return self._targets[name]

    def failure(self, name: str) -> str:
        """Why the last attempt to dial a site failed; empty if it did not."""
        return self._failures.get(name, "")

    async def _accept_own(self, listener: socket.socket, name: str) -> None:
        with listener:
            async for connection, _ in accepted(listener):
                self._start(self._dial(connection, name))

    async def _dial(self, connection: socket.socket, name: str) -> None:
        """Connect what gRPC has dialled with a site."""
        with connection:
            try:
                there = await self._connected(DIAL, name)
            except TransportError as error:
                self._failures[name] = str(error)
                return
            self._failures.pop(name, None)
            await forward(connection, there, IDLE)

    # ---- from others ----

    def register(self, port: int) -> None:
        """From now on let others dial this site, whose server has this port of the loopback device; a connection that
        breaks is made again.
        """
        self._port = port
        self._start(self._keep_registered())

    def has_accepted(self, peer: str) -> bool:
        """Whether a connection, by gRPC's name for its other end, came from the relay."""
        return peer in self._accepted

    async def _keep_registered(self) -> None:
        pauses = growing(*PAUSES)
        while True:
            try:
                with await self._connected(REGISTER, "") as connection:
                    since = time.monotonic()
                    try:
                        await self._stay_registered(connection)
                    finally:  # two processes of one site would else end each other's registration without a pause
                        if time.monotonic() - since >= SIGN:
                            pauses = growing(*PAUSES)
            except (TransportError, OSError):  # also a timeout
                pass  # whoever dials is told by the relay that this site is not there
            await asyncio.sleep(next(pauses))

    async def _stay_registered(self, connection: socket.socket) -> None:
        signs = self._start(_send_signs(connection))
        try:
            await self._take_tickets(connection)
        finally:
            signs.cancel()

    async def _take_tickets(self, connection: socket.socket) -> None:
        """Accept a connection for every ticket; returns or raises when the relay is gone."""
        while True:
            await asyncio.sleep(0)  # whoever accepts is counted from now on; and nobody can fill this loop with tickets
            async with asyncio.timeout(SILENT):
                what = await read_exactly(connection, 1)
                ticket = await read_exactly(connection, TICKET_SIZE) if what == TICKET else b""
            if ticket and len(self._accepted) < MOST:
                self._start(self._accept(ticket.hex()))
            elif what not in (TICKET, ALIVE):
                return

    async def _accept(self, ticket: str) -> None:
        """Connect a site that dials this one with the site's own server."""
        peer = ""
        try:
            with socket.create_connection((LOOPBACK, self._port)) as own:
                self._accepted.add(peer := f"ipv4:{LOOPBACK}:{own.getsockname()[1]}")
                await forward(own, await self._connected(ACCEPT, ticket), IDLE)
        except (TransportError, OSError):
            pass  # whoever dials is told by the relay, and tries again
        finally:
            self._accepted.discard(peer)

    # ---- both ----

    async def _connected(self, role: str, about: str) -> socket.socket:
        """A connection to the relay after the handshake; raises TransportError."""
        where = f"the relay {self.address}"
        try:
            async with asyncio.timeout(CONNECT):
                sock = await _connect(self.address)
                try:
                    await introduce(sock, self.address, role, about, self._name, self._signer)
                    return sock
                except BaseException:
                    sock.close()
                    raise
        except OSError as error:  # also a timeout
            words = f"no answer within {CONNECT:.0f} s" if isinstance(error, TimeoutError) else _cause(error)
            raise TransportError(f"{where} cannot be reached: {words}") from None
        except TransportError as error:
            raise TransportError(f"{where} says: {error}") from None

    def _listener(self, name: str) -> socket.socket:
        """A socket that listens in a folder of this user."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="netfleet-"))
            listener.bind(str(self._folder / name))
            listener.listen()
            listener.setblocking(False)
            return listener
        except OSError as error:
            listener.close()
            raise ConfigError(
                f"cannot make a socket in {self._folder or 'a temporary folder'} ({error}), which connections through "
                f"the relay need; set TMPDIR to a folder with a short name (a socket's has at most 107 characters) "
                f"that you may write to"
            ) from None

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Close all connections."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _cause(error: OSError) -> str:
    """The system's words for an error; asyncio writes addresses in their place."""
    if error.errno is None or error.errno < 0:  # the name service has numbers of its own
        return error.strerror or str(error)
    return os.strerror(error.errno)


async def _connect(address: str) -> socket.socket:
    """A TCP connection to the first of a host's addresses that answers."""
    loop, (host, port) = asyncio.get_running_loop(), parse_address(address, "relay")
    found, failed = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM), OSError("it has no address")
    for family, kind, protocol, _, where in found:
        sock = socket.socket(family, kind, protocol)
        try:
            prepare(sock)
            async with asyncio.timeout(EACH):
                await loop.sock_connect(sock, where)
            return sock
        except OSError as error:
            failed = error
            sock.close()
        except BaseException:
            sock.close()
            raise
    raise failed


async def _send_signs(connection: socket.socket) -> None:
    """Say now and then that this site is there; whoever reads from the connection notices when it breaks."""
    with contextlib.suppress(OSError):
        while True:
            await asyncio.sleep(SIGN)
            await asyncio.get_running_loop().sock_sendall(connection, ALIVE)
