"""The relay: connects sites that nobody can dial, and forwards the bytes of their TLS.

A site keeps a connection to the relay (`register`). When another one dials it, the relay sends it a ticket; the site
connects once more with the ticket, and from then on the relay forwards bytes. Everything is bounded, and nothing is
kept: a relay that was restarted has all it needs as soon as the sites have registered again.
"""

import asyncio
import contextlib
import ipaddress
import resource
import secrets
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from netfleet.errors import ConfigError, TransportError
from netfleet.sites.network.listening import listening
from netfleet.sites.operations.logs import Log
from netfleet.sites.relay.admission import Admission, Attempts
from netfleet.sites.relay.forwarding import accepted, forward
from netfleet.sites.relay.handshake import (
    ACCEPT,
    ALIVE,
    REGISTER,
    TICKET,
    TICKET_SIZE,
    Hello,
    answer,
    receive_hello,
)
from netfleet.sites.relay.settings import load_relay

#: Seconds for a handshake, for a site to accept, without a sign of a registered site, and without a forwarded byte.
HANDSHAKE, ACCEPTS, SILENT, IDLE = 10.0, 10.0, 60.0, 300.0
#: Seconds between two answers to a registered site, and between two looks whether connected sites may use the relay.
PAUSE, CHECK = 1.0, 20.0
#: Handshakes at a time, of all, of hosts from which no site has come yet, and of one host.
HANDSHAKES, STRANGERS, OF_HOST = 128, 96, 16
#: Hosts from which a site has come that are remembered.
KNOWN = 4096
#: Connections that are forwarded, or about to be, of two sites, of one and of all; open files of each.
OF_TWO, OF_ONE, IN_ALL, FILES = 8, 64, 1000, 6


class _End(NamedTuple):
    """A site's connection, and what it said of itself."""

    socket: socket.socket
    hello: Hello


class Relay:
    """One relay, while `serve` runs."""

    def __init__(self, folder: Path, log: Log, listen: str = "") -> None:
        settings = load_relay(folder)
        self.address, self.listen = settings.address, listen or settings.listen
        self._admission, self._attempts, self._log = Admission(folder, settings.address, log), Attempts(), log
        self._registered: dict[str, socket.socket] = {}
        self._tickets: dict[str, tuple[str, asyncio.Future[_End]]] = {}  # by ticket: for whom
        self._forwarded, self._handshakes = Counter[tuple[str, ...]](), Counter[str]()
        self._known = dict[str, None]()  # hosts from which a site has come
        self._most = min(IN_ALL, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 2 * HANDSHAKES) // FILES)

    async def serve(self) -> None:
        """Serve until cancelled."""
        with _listening(self.listen) as server:
            self._log.event("started", listen=self.listen, address=self.address, connections=self._most)
            async with asyncio.TaskGroup() as group:
                async for connection, address in accepted(server):
                    host = _host(address)
                    if self._has_room(host):
                        self._handshakes[host] += 1
                        group.create_task(self._connected(connection, host))
                    else:
                        self._log.refused(host, "a flood: too many connections")
                        connection.close()

    def _has_room(self, host: str) -> bool:
        """Whether a host may begin a handshake; one that leaves its handshakes open does not keep others out, nor do
        many such hosts keep out those of the sites.
        """
        most = HANDSHAKES if host in self._known else STRANGERS
        allowed = self._handshakes[host] < OF_HOST and self._handshakes.total() < most
        return self._attempts.take(host) and allowed

    def _remember(self, host: str) -> None:
        self._known.pop(host, None)
        if len(self._known) >= KNOWN:
            del self._known[next(iter(self._known))]  # the one that has not come for longest
        self._known[host] = None

    async def _connected(self, connection: socket.socket, host: str) -> None:
        """One connection, from its handshake to its end."""
        try:
            hello = await self._handshake(connection, host)
            if hello is not None:
                self._remember(host)
                await self._serve_site(connection, hello, host)
        except (OSError, TransportError):  # it is gone
            pass
        except Exception as error:  # as gRPC does: a traceback, and the others go on
            asyncio.get_running_loop().call_exception_handler({"message": "a connection failed", "exception": error})
        finally:
            connection.close()

    async def _handshake(self, connection: socket.socket, host: str) -> Hello | None:
        try:
            async with asyncio.timeout(HANDSHAKE):
                received = await receive_hello(connection)
                try:
                    return self._admission.check(received)
                except TransportError as error:
                    self._log.refused(host, str(error))
                    await answer(connection, str(error))
        except TimeoutError:
            self._log.refused(host, f"no handshake within {HANDSHAKE:.0f} s")
        except TransportError as error:
            self._log.refused(host, f"no handshake: {error}")
        finally:
            self._handshakes.subtract([host])
            self._handshakes += Counter()  # forgets those that have none
        return None

    async def _serve_site(self, connection: socket.socket, hello: Hello, host: str) -> None:
        if hello.role == REGISTER:
            await self._keep_registered(connection, hello, host)
        elif hello.role == ACCEPT:
            await self._accept(connection, hello, host)
        else:
            await self._dial(_End(connection, hello))

    # ---- sites that can be dialled ----

    async def _keep_registered(self, connection: socket.socket, hello: Hello, host: str) -> None:
        """Keep a site's connection; a new one of the same site takes the place of an earlier one."""
        await answer(connection)
        name = hello.name
        if (before := self._registered.get(name)) is not None:
            with contextlib.suppress(OSError):  # it is gone already
                before.shutdown(socket.SHUT_RDWR)
        self._registered[name] = connection
        self._log.event("registered", name=name, host=host)
        try:
            await self._hear(connection, hello)
        finally:
            if self._registered.get(name) is connection:
                del self._registered[name]
                self._log.event("gone", name=name)
                for future in [future for to, future in self._tickets.values() if to == name and not future.done()]:
                    future.set_exception(TransportError(f"{name} is not connected to the relay"))

    async def _hear(self, connection: socket.socket, hello: Hello) -> None:
        """Answer each sign of life; end when the site closes the connection, has been silent for too long, or may no
        longer use the relay.
        """
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout(SILENT):
                    if not await loop.sock_recv(connection, 64):
                        return
                    self._admission.check_still(hello)
                    await loop.sock_sendall(connection, ALIVE)
                await asyncio.sleep(PAUSE)  # a site that sends without end must not keep the relay from all others

    # ---- connections between sites ----

    async def _dial(self, dialling: _End) -> None:
        name, to = dialling.hello.name, dialling.hello.about
        try:
            with self._counted(name, to):
                other = await self._call(to)
                await answer(dialling.socket)
                self._log.event("connected", dialled_by=name, to=to)
                watch = asyncio.ensure_future(self._watch((dialling, other)))
                try:
                    ended = await forward(dialling.socket, other.socket, IDLE)
                finally:
                    watch.cancel()
                self._log.event("closed", dialled_by=name, to=to, bytes_there=ended.there, bytes_back=ended.back)
        except TransportError as error:
            await answer(dialling.socket, str(error))

    async def _watch(self, ends: Sequence[_End]) -> None:
        """Close a connection as soon as one of its sites may not use the relay any more."""
        while True:
            await asyncio.sleep(CHECK)
            for end in ends:
                try:
                    self._admission.check_still(end.hello)
                except TransportError as error:
                    self._log.refused(end.hello.name, str(error))
                    for each in ends:
                        with contextlib.suppress(OSError):  # it is gone already
                            each.socket.shutdown(socket.SHUT_RDWR)
                    return

    @contextlib.contextmanager
    def _counted(self, name: str, to: str) -> Iterator[None]:
        """Count a connection for both of its ends and the two together, or raise."""
        keys = (name,), (to,), (name, to)
        for key, most in zip(keys, (OF_ONE, OF_ONE, OF_TWO), strict=True):
            if self._forwarded[key] >= most or self._forwarded.total() >= len(keys) * self._most:
                self._log.refused(name, f"too many connections of {' and '.join(key)}, or of all sites")
                raise TransportError(f"the relay has no room for another connection of {' and '.join(key)}")
        self._forwarded.update(keys)
        try:
            yield
        finally:
            self._forwarded.subtract(keys)
            self._forwarded += Counter()  # forgets those that have none

    async def _call(self, to: str) -> _End:
        """Ask a registered site to accept a connection; the connection."""
        registered, ticket = self._registered.get(to), secrets.token_bytes(TICKET_SIZE)
        if registered is None:
            raise TransportError(f"{to} is not connected to the relay")
        future: asyncio.Future[_End] = asyncio.get_running_loop().create_future()
        self._tickets[ticket.hex()] = to, future
        try:
            async with asyncio.timeout(ACCEPTS):
                registered.send(TICKET + ticket)  # does not wait: a site that reads nothing gets none
                return await future
        except (TimeoutError, OSError):
            raise TransportError(f"{to} does not answer the relay") from None
        finally:
            del self._tickets[ticket.hex()]

    async def _accept(self, connection: socket.socket, hello: Hello, host: str) -> None:
        name, future = self._tickets.get(hello.about, ("", None))
        if future is None or future.done() or name != hello.name:
            self._log.refused(f"{hello.name} ({host})", "a ticket that is not valid, or no longer")
            return await answer(connection, "this ticket is not valid, or no longer")
        await answer(connection)
        if future.done():  # too late
            return None
        future.set_result(_End(connection.dup(), hello))  # whoever forwards closes it
        return None


@contextlib.contextmanager
def _listening(address: str) -> Iterator[socket.socket]:
    try:
        family, where = listening(address)
        both = family == socket.AF_INET6 and where[0] == "::" and socket.has_dualstack_ipv6()
        server = socket.create_server(where, family=family, backlog=HANDSHAKES, dualstack_ipv6=both)
    except OSError as error:
        raise ConfigError(f"cannot listen on {address} ({error.strerror}); free the port, or give --listen") from None
    with server:
        server.setblocking(False)
        yield server


def _host(address: str) -> str:
    """An IPv4 address, or the network of an IPv6 address: whoever has one of its addresses has all of them."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else found
    return str(mapped or ipaddress.ip_network((found, 64), strict=False))
