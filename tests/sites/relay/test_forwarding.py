"""What one end sends, the other gets; nothing is left open, and a slow reader stops the sender."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from pathlib import Path

import pytest

from netfleet.sites.relay import forwarding
from netfleet.sites.relay.forwarding import Forwarded, accepted, forward
from support.site_peers import run


@pytest.fixture(params=["splice", "copy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "copy":
        monkeypatch.setattr(forwarding, "_Pipe", forwarding._Copy)
    return str(request.param)


def pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return ours, theirs


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def until_end(sock: socket.socket) -> bytes:
    loop, data = asyncio.get_running_loop(), bytearray()
    while more := await loop.sock_recv(sock, 1 << 20):
        data += more
    return bytes(data)


def test_bytes_arrive_both_ways_and_each_end_may_close_first(way: str) -> None:
    async def scenario() -> None:
        loop, before = asyncio.get_running_loop(), open_files()
        (a, a_there), (b, b_there) = pair(), pair()
        with a, b:
            task = asyncio.ensure_future(forward(a_there, b_there, 60))
            there, back = os.urandom(5_000_001), os.urandom(3_000_001)

            async def send(sock: socket.socket, data: bytes) -> None:
                await loop.sock_sendall(sock, data)
                sock.shutdown(socket.SHUT_WR)

            _, got, _, got_back = await asyncio.gather(send(a, there), until_end(b), send(b, back), until_end(a))
            assert (got, got_back) == (there, back)
            assert await task == Forwarded(len(there), len(back))
        assert open_files() == before

    run(scenario())


def test_a_reader_that_stops_stops_the_sender(way: str) -> None:
    async def scenario() -> None:
        loop, sent = asyncio.get_running_loop(), 0
        (a, a_there), (b, b_there) = pair(), pair()
        with a, b, contextlib.suppress(TimeoutError):  # b reads nothing
            task = asyncio.ensure_future(forward(a_there, b_there, 60))
            while sent < 8 << 20:
                async with asyncio.timeout(0.3):
                    await loop.sock_sendall(a, bytes(10_000))
                sent += 10_000
        assert sent < 4 << 20
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert a_there.fileno() == b_there.fileno() == -1

    run(scenario())


def test_silence_and_a_broken_end_close_both(way: str) -> None:
    async def scenario() -> None:
        before = open_files()
        for breaks in (False, True):
            (a, a_there), (b, b_there) = pair(), pair()
            with a, b:
                task = asyncio.ensure_future(forward(a_there, b_there, 60 if breaks else 0.05))
                if breaks:
                    a.close()
                    b.close()
                await task
        assert open_files() == before

    run(scenario())


def test_without_open_files_nothing_is_forwarded(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def scenario() -> None:
        (a, a_there), (b, b_there) = pair(), pair()
        with a, b:
            assert await forward(a_there, b_there, 60) == Forwarded(0, 0)
        assert a_there.fileno() == b_there.fileno() == -1

    monkeypatch.setattr(forwarding, "_Pipe", none_left)
    run(scenario())


def test_all_other_work_has_its_turn_while_many_connect() -> None:
    async def scenario() -> None:
        turns, most = 0, 20

        async def work() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=2 * most))
            listener.setblocking(False)
            for _ in range(most):
                stack.enter_context(socket.create_connection(listener.getsockname()))
            task, connections = asyncio.ensure_future(work()), accepted(listener)
            for _ in range(most):
                connection, host = await anext(connections)
                connection.close()
                assert host == "127.0.0.1"
            task.cancel()
            await connections.aclose()  # type: ignore[attr-defined]
        assert turns >= most

    run(scenario())
