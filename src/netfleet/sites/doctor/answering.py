"""Answers the doctors of neighbours: at a site whose own doctor runs, and at one that trains."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import suppress
from itertools import chain

import netfleet
from netfleet.errors import CertificateError, FrameError, TransportError
from netfleet.sites.doctor.questions import MOST_BYTES, Question, SiteAnswer, pack, random_frames, unpack
from netfleet.sites.network import wire
from netfleet.sites.network.rate_limit import RateLimit
from netfleet.sites.network.transport import NO_NEIGHBOUR, Busy, Caller, Refused, Transport
from netfleet.sites.network.wire import Frame, Kind
from netfleet.sites.operations.logs import printable
from netfleet.sites.planning.folders import Neighbour, Site
from netfleet.sites.policy.peers import Peers

#: Seconds for which a site tries to reach the one who asks.
BACK = 4.0
#: What a site whose doctor runs says to those who want something else.
NOT_YET = "this site does not train yet: netfleet doctor runs there"


class Answerer:
    """What a site says of itself. Make it in the network's loop."""

    def __init__(
        self,
        site: Site,
        transport: Transport,
        running: str,
        round: Callable[[], int] = lambda: -1,
        clock: Callable[[], float] = time.time,
        version: str = netfleet.__version__,
        seconds: float = BACK,
    ) -> None:
        """`seconds` are those for which it tries to reach the one who asks."""
        self._site, self._transport, self._running, self._round = site, transport, running, round
        self._clock, self._version, self._seconds = clock, version, seconds
        self._dialling: dict[str, asyncio.Task[str]] = {}
        self.heard: dict[str, float] = {}  # neighbours whose doctor has asked, and when it last did, by `monotonic`
        self._over, self._news = set[str](), asyncio.Condition()  # those that need nothing more

    async def answer(self, request: Frame, to: Neighbour) -> Iterable[Frame]:
        """The frames that answer a neighbour's question."""
        question = unpack(Question, request.body)
        if request.total > MOST_BYTES:
            raise FrameError(f"a question for {request.total} bytes; at most {MOST_BYTES} are sent")
        self.heard[to.name] = time.monotonic()
        if question.over:
            async with self._news:
                self._over.add(to.name)
                self._news.notify_all()
        dialled, back = (to.address, await self._reach(to)) if question.back else ("", "")
        said = SiteAnswer(self._version, self._site.run, self._running, self._round(), self._clock(), dialled, back)
        about = bytes.fromhex(self._site.run), self._site.number
        first = Frame(Kind.CHECKED, *about, -1, total=request.total, body=pack(said))
        return chain([first], random_frames(*about, request.total))

    async def until_over(self, names: Iterable[str], seconds: float) -> None:
        """Wait until the doctors of these neighbours need nothing more; of one that has been silent for so long,
        nobody knows that it still does.
        """
        began, wanted = time.monotonic(), set(names)
        while left := wanted - self._over:
            rest = max(self.heard.get(name, began) for name in left) + seconds - time.monotonic()
            rest = max(rest, began + seconds - time.monotonic())
            if rest <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(rest), self._news:
                    await self._news.wait_for(lambda: wanted <= self._over)

    async def _reach(self, to: Neighbour) -> str:
        """Why the neighbour cannot be dialled at its address; empty: it can, or has none. One attempt at a time."""
        if to.name not in self._dialling:
            task = self._dialling[to.name] = asyncio.ensure_future(self._dial(to))
            task.add_done_callback(lambda _: self._dialling.pop(to.name, None))
        return await asyncio.shield(self._dialling[to.name])

    async def _dial(self, to: Neighbour) -> str:
        until = time.monotonic() + self._seconds
        while to.address:
            try:
                await self._transport.status_at(to, to.address, BACK)
                return ""
            except TransportError as error:
                if time.monotonic() > until:
                    return printable(str(error))
            await asyncio.sleep(0.25)
        return ""


class DoctorServer:
    """A transport's `Handler` at a site whose doctor runs: it answers other doctors and nobody else."""

    def __init__(
        self, neighbours: Iterable[Neighbour], answerer: Answerer, peers: Peers | None, refused: Refused
    ) -> None:
        self._neighbours = {each.name: each for each in neighbours}
        self._answerer, self._peers, self._refused, self._limit = answerer, peers, refused, RateLimit()

    async def pull(self, caller: Caller, read: Callable[[], Awaitable[bytes]]) -> AsyncGenerator[bytes, None]:
        neighbour = self._neighbours.get(caller.name)
        try:
            with self._limit.serve(caller.name if neighbour else "") as served:
                neighbour = self._checked(caller)
                frame = wire.decode(await read())
                if frame.kind != Kind.CHECK:
                    raise FrameError(NOT_YET)
                for answer in await self._answerer.answer(frame, neighbour):
                    data = answer.encode()
                    served.sent += len(data)
                    yield data
        except (Busy, FrameError, CertificateError) as error:
            if str(error) != NOT_YET:  # a neighbour that has begun to train asks again and again
                self._refused(str(caller), str(error))
            raise

    def check_neighbour(self, caller: Caller) -> None:
        try:
            self._checked(caller)
        except (FrameError, CertificateError) as error:
            self._refused(str(caller), str(error))
            raise

    def _checked(self, caller: Caller) -> Neighbour:
        neighbour = self._neighbours.get(caller.name)
        if neighbour is None:
            raise FrameError(NO_NEIGHBOUR)
        if self._peers is not None:
            self._peers.check(caller.certificate, neighbour)
        return neighbour

    async def status(self, caller: Caller) -> bytes:
        if caller.name not in self._neighbours:
            raise FrameError(NOT_YET)
        with self._limit.serve(caller.name):
            self._checked(caller)
        return b"{}"  # whoever tries the ways to this site learns that this one works
