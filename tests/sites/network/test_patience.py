"""When a neighbour is given up: after the site's patience and at most two seconds more, however it has gone."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

import pytest

from netfleet.errors import TransportError
from netfleet.sites.network.client import Answer, Client, Wanted
from netfleet.sites.network.receipts import NoReceipts
from netfleet.sites.network.transport import HOLD, Contact
from netfleet.sites.network.wire import Expected, Frame, Kind
from netfleet.sites.planning.folders import Neighbour, Site

RUN = bytes(32)
V = TypeVar("V")


class _Timers(selectors.DefaultSelector):
    """A selector that lets time pass at once."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0.0 if timeout is not None else None)


def in_no_time(what: Awaitable[V]) -> V:
    """Run something in an event loop whose clock jumps to the next timer."""
    timers = _Timers()
    loop = asyncio.SelectorEventLoop(timers)
    loop.time = lambda: timers.now  # type: ignore[method-assign]

    async def main() -> V:
        return await what

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main())


class Vanishing:
    """A neighbour that answers "not yet" until some moment, and then is gone in some way."""

    def __init__(self, at: float, gone: Callable[[], Awaitable[None]]) -> None:
        self.at, self.gone = at, gone

    async def pull(self, to: Neighbour, request: bytes) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(min(HOLD, max(self.at - loop.time(), 0.0)))
        if loop.time() >= self.at:
            await self.gone()
        yield Frame(Kind.WAIT, RUN, 1, 0).encode()


async def silent() -> None:
    await asyncio.sleep(1e6)


async def refused() -> None:
    raise TransportError("cannot be reached")


@pytest.mark.parametrize("gone", [silent, refused])
@pytest.mark.parametrize("patience", [1.0, 5.0, 60.0])
@pytest.mark.parametrize("at", [0.3, 1.2, 7.9])
def test_a_neighbour_that_is_gone_is_given_up_after_the_patience(
    gone: Callable[[], Awaitable[None]], patience: float, at: float
) -> None:
    here = Site("a", 0, "127.0.0.1:1", "127.0.0.1:1", 0.5, patience, RUN.hex(), (), ())
    there = Neighbour("b", 1, "127.0.0.1:2", 0.5)

    async def given_up() -> tuple[Answer, float]:
        contact = Contact(there)
        contact.note_round(0)
        client = Client(here, Vanishing(at, gone), lambda *_: None, NoReceipts())  # type: ignore[arg-type]
        answer = await client.pull(contact, Wanted(Expected(RUN, 1, 0, 0, "", 0)))
        return answer, asyncio.get_running_loop().time()

    answer, when = in_no_time(given_up())
    assert answer.kind == Kind.WAIT
    assert at + patience <= when <= at + patience + 2


class Late(Vanishing):
    """A neighbour that is not there until some moment, and takes a second to connect to."""

    async def pull(self, to: Neighbour, request: bytes) -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(HOLD)
        if asyncio.get_running_loop().time() < self.at:
            await self.gone()
        yield Frame(Kind.DONE, RUN, 1, 0).encode()


@pytest.mark.parametrize("gone", [silent, refused])
def test_a_neighbour_that_has_never_been_there_is_waited_for_however_long(gone: Callable[[], Awaitable[None]]) -> None:
    here = Site("a", 0, "127.0.0.1:1", "127.0.0.1:1", 0.5, 5.0, RUN.hex(), (), ())
    client = Client(here, Late(60.0, gone), lambda *_: None, NoReceipts())  # type: ignore[arg-type]

    async def answer() -> tuple[Answer, float]:
        wanted = Wanted(Expected(RUN, 1, 0, 0, "", 0))
        found = await client.pull(Contact(Neighbour("b", 1, "127.0.0.1:2", 0.5)), wanted)
        return found, asyncio.get_running_loop().time()

    found, when = in_no_time(answer())
    assert found.kind == Kind.DONE
    assert 60 <= when < 70
