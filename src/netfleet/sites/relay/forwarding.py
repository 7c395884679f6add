"""Forwards bytes between two sockets, both ways. On Linux they stay in the kernel (splice).

What waits is bounded by the buffers of the two sockets and `SIZE` for each direction: a reader that is slow, or stops,
stops the sender. These are callbacks of the event loop and no coroutines, which took half again the processor time.
"""

import asyncio
import contextlib
import fcntl
import os
import socket
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

#: Bytes that are moved at a time, and the size of a pipe. Users may not have larger pipes.
SIZE = 1 << 20


class Forwarded(NamedTuple):
    """Bytes from the first socket to the second, and back."""

    there: int
    back: int


async def forward(first: socket.socket, second: socket.socket, idle: float) -> Forwarded:
    """Forward until both ends have closed their side, one breaks, or nothing comes for `idle` seconds; closes both."""
    loop, ways = asyncio.get_running_loop(), list[_Direction]()
    with first, second:
        try:
            async with asyncio.timeout(idle) as limit:
                for source, sink in ((first, second), (second, first)):
                    prepare(source)
                    ways.append(_Direction(source, sink, lambda: limit.reschedule(loop.time() + idle)))
                await asyncio.gather(*(way.over for way in ways))
        except OSError:
            pass  # one end broke, both were silent for too long, or there are too many open files
        finally:
            for way in ways:
                way.close()
    return Forwarded(*(way.count for way in ways)) if len(ways) == 2 else Forwarded(0, 0)


def prepare(sock: socket.socket) -> None:
    """Small messages are sent at once, and a machine that is gone is noticed."""
    sock.setblocking(False)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


async def accepted(listener: socket.socket) -> AsyncIterator[tuple[socket.socket, str]]:
    """Those who connect, with the address of their host; all other work has its turn before each of them."""
    while True:
        await asyncio.sleep(0)  # while somebody waits to be accepted, `sock_accept` gives no turn to others
        try:
            connection, where = await asyncio.get_running_loop().sock_accept(listener)
            prepare(connection)
        except OSError:  # it is gone already, or there are too many open files
            await asyncio.sleep(0.1)
            continue
        yield connection, str(where[0]) if where else ""


class _Direction:
    """Moves bytes from one socket to another, through a pipe. `over` is done when the source has ended, and fails with
    an OSError if one of them breaks.
    """

    def __init__(self, source: socket.socket, sink: socket.socket, note: Callable[[], None]) -> None:
        self._loop, self._source, self._sink, self._note = asyncio.get_running_loop(), source, sink, note
        self._buffer: _Pipe | _Copy = _Pipe() if hasattr(os, "splice") else _Copy()
        self._held, self._full, self.count = 0, False, 0
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(source, self._read)

    def _read(self) -> None:
        try:
            self._held = self._buffer.fill(self._source)
        except BlockingIOError:
            return None
        except OSError as error:
            return self._end(error)
        self.count += self._held
        self._note()
        return self._write() if self._held else self._end()

    def _write(self) -> None:
        """Write what was read; while the sink takes no more, nothing is read."""
        try:
            while self._held:
                self._held -= self._buffer.drain(self._sink, self._held)
        except BlockingIOError:
            return self._wait(full=True)
        except OSError as error:
            return self._end(error)
        return self._wait(full=False)

    def _wait(self, full: bool) -> None:
        """Wait for the sink if it is full, else for the source."""
        if full and not self._full:
            self._loop.remove_reader(self._source)
            self._loop.add_writer(self._sink, self._write)
        elif self._full and not full:
            self._loop.remove_writer(self._sink)
            self._loop.add_reader(self._source, self._read)
        self._full = full

    def _end(self, error: OSError | None = None) -> None:
        self._loop.remove_reader(self._source)
        self._loop.remove_writer(self._sink)
        if self.over.done():
            return
        if error is None:
            with contextlib.suppress(OSError):  # the sink is gone: the other direction says so
                self._sink.shutdown(socket.SHUT_WR)
            self.over.set_result(None)
        else:
            self.over.set_exception(error)

    def close(self) -> None:
        self._end()
        self._buffer.close()


class _Pipe:
    """Bytes on their way, which stay in the kernel."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        for end in (self._out, self._in):
            os.set_blocking(end, False)
        with contextlib.suppress(OSError):  # the user has too many large ones; others do, too
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, SIZE)

    def fill(self, source: socket.socket) -> int:
        return os.splice(source.fileno(), self._in, SIZE, flags=os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK)

    def drain(self, sink: socket.socket, count: int) -> int:
        return os.splice(self._out, sink.fileno(), count, flags=os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK)

    def close(self) -> None:
        os.close(self._out)
        os.close(self._in)


class _Copy:
    """The same where there is no splice."""

    def __init__(self) -> None:
        self._data = memoryview(b"")

    def fill(self, source: socket.socket) -> int:
        self._data = memoryview(source.recv(SIZE))
        return len(self._data)

    def drain(self, sink: socket.socket, count: int) -> int:
        return sink.send(self._data[-count:])

    def close(self) -> None:
        self._data = memoryview(b"")
