"""Forwards bytes between two sockets, both ways, with little work: on Linux they stay in the kernel (splice).

What waits is bounded by the buffers of the two sockets and a pipe for each direction: a reader that is slow, or stops,
stops the sender.
"""

import asyncio
import contextlib
import fcntl
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

#: Bytes that are moved at a time, and the size of a pipe. Users may not have larger pipes.
SIZE = 1 << 20
_SET_PIPE_SIZE = getattr(fcntl, "F_SETPIPE_SZ", None)
_SPLICES = hasattr(os, "splice")


class Ended(NamedTuple):
    """What was forwarded: bytes to the second socket, and bytes to the first."""

    there: int
    back: int


async def forward(first: socket.socket, second: socket.socket, idle: float) -> Ended:
    """Forward until both ends have closed their side, one breaks, or nothing comes for `idle` seconds; closes both."""
    loop, counts = asyncio.get_running_loop(), [0, 0]
    for each in (first, second):
        prepare(each)
    try:
        async with asyncio.timeout(idle) as limit:

            def note(direction: int, count: int) -> None:
                counts[direction] += count
                limit.reschedule(loop.time() + idle)

            async with asyncio.TaskGroup() as group:
                group.create_task(_move(first, second, lambda count: note(0, count)))
                group.create_task(_move(second, first, lambda count: note(1, count)))
    except* (OSError, TimeoutError):
        pass  # an end that broke or fell silent: the other one is closed too
    finally:
        first.close()
        second.close()
    return Ended(*counts)


def prepare(sock: socket.socket) -> None:
    """Small messages are sent at once, and a machine that is gone is noticed."""
    sock.setblocking(False)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


async def _move(source: socket.socket, sink: socket.socket, note: Callable[[int], None]) -> None:
    """Move bytes until the source ends; then the sink is told."""
    if _SPLICES:
        with _pipe() as (read, write):
            while count := await _splice(source.fileno(), write, SIZE, lambda: _readable(source)):
                note(count)
                while count:
                    count -= await _splice(read, sink.fileno(), count, lambda: _writable(sink))
                await asyncio.sleep(0)  # others have their turn
    else:
        loop, buffer = asyncio.get_running_loop(), memoryview(bytearray(SIZE))
        while count := await loop.sock_recv_into(source, buffer):
            note(count)
            await loop.sock_sendall(sink, buffer[:count])
    with contextlib.suppress(OSError):  # the other side has closed it already
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    try:
        for end in (read, write):
            os.set_blocking(end, False)
        if _SET_PIPE_SIZE is not None:
            with contextlib.suppress(OSError):  # the user has too many; the default size does too
                fcntl.fcntl(write, _SET_PIPE_SIZE, SIZE)
        yield read, write
    finally:
        os.close(read)
        os.close(write)


async def _splice(source: int, sink: int, count: int, ready: Callable[[], Awaitable[None]]) -> int:
    """Move some bytes between a socket and a pipe; `ready` waits for the socket."""
    while True:
        try:
            return os.splice(source, sink, count, flags=os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK)
        except BlockingIOError:
            await ready()


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    await _until(lambda then: loop.add_reader(sock, then), lambda: loop.remove_reader(sock))


async def _writable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    await _until(lambda then: loop.add_writer(sock, then), lambda: loop.remove_writer(sock))


async def _until(watch: Callable[[Callable[[], None]], None], forget: Callable[[], bool]) -> None:
    happened = asyncio.Event()
    watch(happened.set)
    try:
        await happened.wait()
    finally:
        forget()
