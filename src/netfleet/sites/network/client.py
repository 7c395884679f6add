"""Asks neighbours for their messages, and checks what they answer.

Pull, not push: a site asks when it is ready, waits while the neighbour still computes, and retries after a pause where
nobody answers. It stores nothing that it did not ask for and check.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from typing import NamedTuple

from netfleet.errors import CertificateError, FrameError, TransportError
from netfleet.sites.network import wire
from netfleet.sites.network.pauses import growing
from netfleet.sites.network.receipt_format import unpack_note
from netfleet.sites.network.receipts import WHAT, Receipts
from netfleet.sites.network.transport import HOLD, Busy, Contact, Refused, Transport
from netfleet.sites.network.wait_cause import unpack_cause
from netfleet.sites.network.wire import Assembly, Expected, Frame, Kind, SiteNews
from netfleet.sites.planning.folders import Site

#: Seconds after which an answer is overdue: until it begins (the other may hold it for `HOLD`), and without a byte.
FIRST, DEADLINE = HOLD + 2.0, 30.0
#: Pauses between attempts grow from the first to the second, in seconds.
PAUSES = (0.05, 1.0)
#: What a neighbour may answer instead of a message.
_INSTEAD = (Kind.WAIT, Kind.DROPPED, Kind.LEFT, Kind.DONE, Kind.JOINED, Kind.NOTED)


class Silence(TransportError):
    """A neighbour that is connected but does not answer, although it should have since some time."""

    def __init__(self, since: float, seconds: float) -> None:
        super().__init__(f"is connected, but has not answered for {seconds:.0f} s")
        self.since = since


class Answer(NamedTuple):
    """How an attempt ended: `CHUNK` if the message has arrived. `run` is that of the answer's frame, if it was one."""

    kind: Kind
    t: int
    run: bytes = b""


class Wanted(NamedTuple):
    """A message to ask for: what it must be, where its bytes go, and when to stop asking."""

    expected: Expected
    into: memoryview = memoryview(b"")
    finite: Callable[[], bool] = lambda: True
    given_up: Callable[[], bool] = lambda: False


class Client:
    """A site's requests to its neighbours."""

    def __init__(self, site: Site, transport: Transport, refused: Refused, receipts: Receipts) -> None:
        self._site, self._transport, self._refused, self._receipts = site, transport, refused, receipts
        self._run = site.run_id

    async def pull(
        self, contact: Contact, wanted: Wanted, news: Sequence[SiteNews] = (), kind: Kind = Kind.PULL
    ) -> Answer:
        """Ask until there is a final answer, or the site's patience has run out (WAIT).

        Patience counts from the first failure after an answer, or from when an answer was due. So a site waits as long
        as its neighbour answers "not yet", and as long as a neighbour has never been there. It stops asking a neighbour
        that rejoins for what that neighbour no longer has (JOIN).
        """
        contact.asked, contact.cause = time.monotonic(), None
        try:
            return await self._pull(contact, wanted, news, kind)
        finally:
            contact.asked = None

    async def _pull(self, contact: Contact, wanted: Wanted, news: Sequence[SiteNews], kind: Kind) -> Answer:
        pauses, failing = _pauses(), None

        def known() -> bool:  # one that has never been there is not given up
            return wanted.expected.t > 0 or contact.last_heard is not None

        while not wanted.given_up():
            try:
                answer = await self._attempt(contact, kind, wanted, news, self._limits(failing if known() else None))
                pauses, failing = _pauses(), None
                if answer.kind != Kind.WAIT:
                    contact.waiting = ""
                    return answer
                contact.waiting = f"is in round {answer.t}" if answer.t >= 0 else "is about to begin"
                await asyncio.sleep(next(pauses))  # a malicious neighbour may answer at once, and for ever
                continue
            except TransportError as error:
                self.note_failure(contact, error)
                if isinstance(error, Busy):  # the neighbour is there
                    failing = None
                elif failing is None:
                    failing = error.since if isinstance(error, Silence) else _now()
            left = self._patience_left(failing) if known() else math.inf
            if left <= 0:
                return Answer(Kind.WAIT, contact.t)
            await asyncio.sleep(min(next(pauses), left))
        return Answer(Kind.JOIN, contact.t)

    def _patience_left(self, failing: float | None) -> float:
        """Seconds until a neighbour that has failed since then is given up."""
        if not self._site.patience:
            return math.inf
        return self._site.patience - (0.0 if failing is None else _now() - failing)

    def _limits(self, failing: float | None) -> tuple[float, float]:
        """Seconds for the first byte of an answer, and between two; not much longer than patience lasts."""
        left = max(self._patience_left(failing), 0.0)
        return FIRST if failing is None else min(FIRST, left + 0.5), min(DEADLINE, max(left, FIRST))

    def note_failure(self, contact: Contact, error: TransportError) -> None:
        """Say why this site waits for a neighbour; a bad answer is logged too."""
        contact.waiting, contact.silent = str(error), not isinstance(error, Busy)
        if isinstance(error, CertificateError):
            self._refused(contact.neighbour.name, str(error))
        if isinstance(error, FrameError):
            self._refused(contact.neighbour.name, str(error))
            contact.waiting = f"sent what was refused: {error}"

    async def confirm(self, contact: Contact, t: int) -> None:
        """Tell a neighbour that has left that this site knows, by asking for what comes after the end."""
        with suppress(TransportError):
            await self._ask(contact, Kind.PULL, t)

    async def give_receipts(self, contact: Contact) -> None:
        """Give a neighbour the receipts for its last messages, without asking for more."""
        await self._ask(contact, Kind.RECEIPTS, contact.t)

    async def join(self, contact: Contact) -> Answer:
        """Ask a neighbour once for a link: JOINED and its first round, or what it answers instead."""
        return await self._ask(contact, Kind.JOIN, -1)

    async def model(self, contact: Contact, wanted: Wanted) -> Answer:
        """Ask a neighbour once for its model."""
        return await self._attempt(contact, Kind.MODEL, wanted)

    async def _ask(self, contact: Contact, kind: Kind, t: int) -> Answer:
        """A request that no message answers."""
        return await self._attempt(contact, kind, Wanted(Expected(self._run, contact.neighbour.number, t, 0, "", 0)))

    def _request(self, contact: Contact, kind: Kind, expected: Expected, news: Sequence[SiteNews]) -> bytes:
        body = b""
        if kind in (Kind.PULL, Kind.RECEIPTS):
            body = wire.pack_request(news, self._receipts.to_give(contact.neighbour.name))
        return Frame(kind, self._run, self._site.number, expected.t, expected.call, body=body).encode()

    async def _attempt(
        self,
        contact: Contact,
        kind: Kind,
        wanted: Wanted,
        news: Sequence[SiteNews] = (),
        limits: tuple[float, float] = (DEADLINE, DEADLINE),
    ) -> Answer:
        assembly, note = Assembly(wanted.expected, wanted.into), None
        request = self._request(contact, kind, wanted.expected, news)
        async with aclosing(_in_time(self._transport.pull(contact.neighbour, request), *limits)) as answers:
            async for data in answers:
                contact.received += len(data)
                frame = wire.decode(data)
                if frame.kind in _INSTEAD:
                    return self._instead(contact, frame, wanted.expected, kind == Kind.JOIN)
                if frame.kind == Kind.NOTE and note is None:
                    wire.check_origin(frame, self._run, contact.neighbour.number)
                    note = unpack_note(frame.body)
                    continue
                assembly.feed(frame)
                contact.silent, contact.cause = False, None
        if not assembly.complete:
            raise FrameError("a truncated message: the stream ended before its last byte")
        if not await asyncio.to_thread(_is_finite, wanted):
            raise FrameError("a message with a number that is not finite (NaN or infinity)")
        arrived = wanted.expected, wanted.into, note
        await asyncio.to_thread(self._receipts.received, contact.neighbour.name, WHAT[kind], *arrived)
        contact.note_round(wanted.expected.t)
        return Answer(Kind.CHUNK, wanted.expected.t)

    def _instead(self, contact: Contact, frame: Frame, expected: Expected, joins: bool) -> Answer:
        wire.check_origin(frame, self._run, contact.neighbour.number, whatever_rollbacks=joins)
        if frame.kind == Kind.WAIT and frame.t > expected.t + 1:
            raise FrameError(f"says that it is in round {frame.t}, but has nothing for round {expected.t}")
        contact.note_round(frame.t)
        contact.cause = unpack_cause(frame.body) if frame.kind == Kind.WAIT else None
        return Answer(frame.kind, frame.t, frame.run)


async def _in_time(stream: AsyncGenerator[bytes, None], first: float, later: float) -> AsyncGenerator[bytes, None]:
    """What a stream brings; it is closed if nothing comes for too long."""
    due, limit = _now() + HOLD, first
    async with aclosing(stream):
        while True:
            try:
                async with asyncio.timeout(limit):
                    data = await anext(stream)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise Silence(due, limit) from None
            due, limit = _now(), later
            yield data


def _now() -> float:
    return asyncio.get_running_loop().time()


def _is_finite(wanted: Wanted) -> bool:
    """Whether a message can be decoded and has finite numbers only."""
    try:
        return wanted.finite()
    except (RuntimeError, ValueError, IndexError) as error:
        raise FrameError(f"a message that cannot be decoded: {str(error).splitlines()[0]}") from None


def _pauses() -> Iterator[float]:
    return growing(*PAUSES)
