"""Asks a neighbour who it is, whether it reaches this site, what its clock says, and how fast the link is."""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import NamedTuple

import netfleet
from netfleet.errors import FrameError, TransportError
from netfleet.sites.doctor.questions import LEAST_BYTES, MOST_BYTES, Question, SiteAnswer, pack, unpack
from netfleet.sites.network import wire
from netfleet.sites.network.transport import DIRECT, Transport, Way
from netfleet.sites.network.wire import Frame, Kind
from netfleet.sites.planning.folders import Neighbour, Site

#: Seconds for an answer, for one for which the other has to dial this site, and for the bytes of a test.
ANSWER, WITH_DIALLING, TEST = 5.0, 10.0, 30.0
#: Questions for the clock; the quickest answer counts.
PINGS = 3


class NoAnswer(TransportError):
    """A site that is connected or not, but says nothing."""


class Heard(NamedTuple):
    """An answer, and the seconds that it took."""

    answer: SiteAnswer
    seconds: float


class Link(NamedTuple):
    """What was found out about a neighbour; `failure`: why it did not answer, or why the test failed."""

    neighbour: Neighbour
    answer: SiteAnswer | None = None
    failure: TransportError | None = None
    clock: float | None = None  # seconds that its clock is ahead
    delay: float | None = None
    rate: float | None = None  # bytes per second
    ways: tuple[Way, ...] = ()  # how it can be reached, and how not

    @property
    def dialled(self) -> Way | None:
        """How dialling its address ended; None: it has none, or nobody has tried."""
        return next((way for way in self.ways if way.how == DIRECT), None)


async def ask(
    transport: Transport,
    site: Site,
    to: Neighbour,
    question: Question,
    total: int = 0,
    seconds: float = ANSWER,
) -> Heard:
    """Ask a neighbour once, for so many random bytes too."""
    request = Frame(Kind.CHECK, bytes.fromhex(site.run), site.number, -1, total=total, body=pack(question)).encode()
    began, answer, have = time.monotonic(), None, 0
    try:
        async with asyncio.timeout(seconds), aclosing(transport.pull(to, request)) as frames:
            async for data in frames:
                frame = wire.decode(data)
                if answer is None and frame.kind == Kind.CHECKED and frame.total == total:
                    answer = unpack(SiteAnswer, frame.body)
                    continue
                have += len(frame.body)
                if answer is None or frame.kind != Kind.CHUNK or have > total:
                    raise FrameError(f"a frame {frame.kind.name} where another was expected")
    except TimeoutError:
        raise NoAnswer(f"did not answer within {seconds:.0f} s") from None
    if answer is None or have != total:
        raise FrameError(f"an answer that ended after {have} of {total} bytes")
    return Heard(answer, time.monotonic() - began)


async def examine(
    transport: Transport,
    site: Site,
    to: Neighbour,
    size: int,
    clock: Callable[[], float] = time.time,
    version: str = netfleet.__version__,
) -> Link:
    """Find out all about a neighbour; `size` are the bytes of a message: the test has about as many."""
    try:
        await ask(transport, site, to, Question(version))  # makes the connection
        first = await ask(transport, site, to, Question(version, back=True), seconds=WITH_DIALLING)
        pings = []
        for _ in range(PINGS):
            before = clock()
            heard = await ask(transport, site, to, Question(version))
            pings.append((heard.seconds, heard.answer.time - before - heard.seconds / 2))
        delay, ahead = min(pings)
    except TransportError as error:
        return Link(to, failure=error)
    ways = tuple(await transport.ways(to, ANSWER))
    total = min(max(size, LEAST_BYTES), MOST_BYTES)
    try:
        tested = await ask(transport, site, to, Question(version), total, TEST)
    except TransportError as error:
        return Link(to, first.answer, error, ahead, delay, ways=ways)
    return Link(to, first.answer, None, ahead, delay, speed(total, tested.seconds, delay), ways)


def speed(total: int, seconds: float, delay: float) -> float:
    """Bytes per second of a test that took so long with the delay of a question. Of a delay that is nearly all of it,
    which varies, the rest says nothing.
    """
    return total / max(seconds - delay, seconds / 10)
