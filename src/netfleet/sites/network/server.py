"""Answers neighbours that ask for this site's messages, and the operator who asks for its status."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from netfleet.engines.host import Tag
from netfleet.errors import CertificateError, FrameError, StorageError
from netfleet.privacy.receipts.state import Key
from netfleet.sites.network import wire
from netfleet.sites.network.loop_thread import in_thread
from netfleet.sites.network.outbox import Message, Outbox
from netfleet.sites.network.rate_limit import RateLimit, Served
from netfleet.sites.network.receipt_format import pack_note, unpack_receipts
from netfleet.sites.network.receipts import WHAT, Receipts
from netfleet.sites.network.transport import HOLD, NO_NEIGHBOUR, Busy, Caller, Contact, Refused
from netfleet.sites.network.wait_cause import Cause, pack_cause
from netfleet.sites.network.wire import Frame, Kind, SiteNews
from netfleet.sites.planning.certificates import OPERATOR
from netfleet.sites.planning.folders import Neighbour, Site
from netfleet.sites.policy.peers import Peers

_REQUESTS = tuple(
    kind.name for kind in (Kind.PULL, Kind.JOIN, Kind.MODEL, Kind.FACTS, Kind.KEY, Kind.RECEIPTS, Kind.CHECK)
)


class Members(Protocol):
    """What a server asks about neighbours (`runtime.membership.Membership`)."""

    def find_neighbour(self, name: str) -> Contact | None:
        """The neighbour with this name in its certificate, also one that the operator has just admitted."""

    def answer_instead(self, j: int, request: Frame) -> Frame | None:
        """What to answer neighbour j instead of a message; None: the message."""

    def first_round(self, j: int) -> int:
        """The first round of the link to neighbour j."""

    def note_news(self, j: int, t: int, news: Sequence[SiteNews]) -> None:
        """Neighbour j is in round t, and knows this of all sites, by their numbers."""

    def add_link(self, j: int) -> Frame:
        """Agree with j on the first round of a new link; it is on disk when this returns."""

    def cause(self) -> Cause:
        """For whom this site waits; itself, if it computes."""

    def note_compared(self, j: int) -> None:
        """Neighbour j has been sent this site's facts."""


class Checks(Protocol):
    """Answers `netfleet doctor` of a neighbour (`doctor.answering.Answerer`)."""

    async def answer(self, request: Frame, to: Neighbour) -> Iterable[Frame]:
        """The frames that answer a question."""


class SiteServer:
    """A transport's `Handler` for one site."""

    def __init__(
        self,
        site: Site,
        outbox: Outbox,
        members: Members,
        refused: Refused,
        receipts: Receipts,
        model: Callable[[], Message],
        status: Callable[[str], bytes],
        limit: RateLimit | None = None,
        facts: Message | None = None,
        peers: Peers | None = None,
        key: Callable[[int], Message] | None = None,
        checks: Checks | None = None,
    ) -> None:
        """`model` is the last saved model; `status` is the status as JSON for a name; `facts` are those of a site with
        a loop of its own; `peers` say whose certificates count; `key` is the site's public key for a neighbour, where
        links have noise; `checks` answer a neighbour's doctor. Make it in the network's loop.
        """
        self._peers, self._checks = peers, checks
        self._site, self._outbox, self._members, self._refused = site, outbox, members, refused
        self._receipts, self._model, self._status, self._facts, self._key = receipts, model, status, facts, key
        self._run = site.run_id
        self.limit = limit or RateLimit()
        self._news = asyncio.Condition()
        self._loop = asyncio.get_running_loop()
        outbox.listen(self.announce)

    def announce(self) -> None:
        """Wake requests that wait: their answer may be there now. Call it from any thread."""
        asyncio.run_coroutine_threadsafe(self._notify(), self._loop)

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def pull(self, caller: Caller, read: Callable[[], Awaitable[bytes]]) -> AsyncGenerator[bytes, None]:
        with self._serving(caller) as served:
            frame, contact = await self._accepted(await read(), caller.name)
            answers = await self._answers(frame, contact.neighbour)
            self._check_certificate(caller)  # again: the answer may have taken long, and the sender be revoked by now
            for answer in answers:
                data = answer.encode()
                contact.sent += len(data)
                served.sent += len(data)
                if answer.kind == Kind.HEAD and frame.kind == Kind.PULL:
                    served.tag = Tag(frame.t, frame.call)
                yield data
            if served.tag is not None:
                contact.served = max(contact.served, served.tag.t)
            if frame.kind == Kind.FACTS:
                self._members.note_compared(contact.neighbour.number)

    async def _accepted(self, request: bytes, name: str) -> tuple[Frame, Contact]:
        """A request that may be answered, and its sender."""
        contact = self._members.find_neighbour(name)
        if contact is None:
            raise FrameError(NO_NEIGHBOUR)
        frame, j = wire.decode(request), contact.neighbour.number
        run = frame.run if frame.kind == Kind.CHECK else self._run  # a doctor learns by the answer that plans differ
        wire.check_origin(frame, run, j, whatever_rollbacks=frame.kind == Kind.JOIN)
        if frame.kind.name not in _REQUESTS:
            raise FrameError(f"a request {frame.kind.name} where one of {', '.join(_REQUESTS)} was expected")
        if frame.kind in (Kind.PULL, Kind.RECEIPTS):
            news, receipts = wire.unpack_request(frame.body)
            if receipts:
                await in_thread(self._receipts.take, name, unpack_receipts(receipts))
        if frame.kind == Kind.PULL:
            if self._members.answer_instead(j, frame) is None:
                self._check_round(frame, self._members.first_round(j))
            self._members.note_news(j, frame.t, news)
        return frame, contact

    def _check_round(self, frame: Frame, first: int) -> None:
        """Neighbours are at most one round apart; one that joins may be ahead, up to the link's first round."""
        if not self._outbox.t - 1 <= frame.t <= max(self._outbox.t + 1, first):
            raise FrameError(
                f"a request for round {frame.t} while this site is in round {self._outbox.t}; neighbours are at most "
                f"one round apart. A site that lost its disk can come back with netfleet node DIR --rejoin"
            )

    async def _answers(self, frame: Frame, to: Neighbour) -> Iterable[Frame]:
        """The message that was asked for, or what to answer instead; waits until there is either."""
        if frame.kind == Kind.RECEIPTS:
            return [Frame(Kind.NOTED, self._run, self._site.number, self._outbox.t)]
        if frame.kind == Kind.CHECK:
            if self._checks is None:
                raise FrameError("this site does not answer netfleet doctor")
            return await self._checks.answer(frame, to)
        if frame.kind == Kind.JOIN and frame.run != self._run:  # it asks again once it knows of this site's rollbacks
            return [Frame(Kind.WAIT, self._run, self._site.number, -1)]
        if frame.kind == Kind.JOIN:
            return [await in_thread(self._members.add_link, to.number)]
        if frame.kind == Kind.MODEL:
            self._check_first(frame, self._members.first_round(to.number))
            return await self._frames(frame, to, await in_thread(self._model))
        if frame.kind == Kind.FACTS:
            self._check_first(frame, -1)
            if self._facts is None:
                raise FrameError("this site has no loop of its own, and no facts to compare")
            return await self._frames(frame, to, self._facts)
        if frame.kind == Kind.KEY:
            self._check_first(frame, self._members.first_round(to.number))
            if self._key is None:
                raise FrameError("this site adds no noise to its links, and has no key for it")
            return await self._frames(frame, to, self._key(to.number))
        found = await self._next(frame, to.number)
        return await self._frames(frame, to, found) if isinstance(found, Message) else [found]

    async def _next(self, frame: Frame, j: int) -> Message | Frame:
        """The message of a round as soon as it is there, or what to answer instead."""
        try:
            async with asyncio.timeout(HOLD), self._news:
                while (instead := self._members.answer_instead(j, frame)) is None:
                    if (message := self._outbox.get(Tag(frame.t, frame.call))) is not None:
                        return message
                    await self._news.wait()
                return instead
        except TimeoutError:
            body = pack_cause(self._members.cause())
            return Frame(Kind.WAIT, self._run, self._site.number, self._outbox.t, body=body)

    def _check_first(self, frame: Frame, first: int) -> None:
        """Whoever names any round would get a line of its own in the record for each."""
        if (frame.t, frame.call) != (first, 0):
            raise FrameError(
                f"a request {frame.kind.name} for round {frame.t}; expected {first}, the first of the link"
            )

    async def _frames(self, request: Frame, to: Neighbour, answer: Message) -> Iterator[Frame]:
        """The frames of a message, once it is on record."""
        key = Key(WHAT[request.kind], request.t, request.call)
        note = await in_thread(self._receipts.offer, to.name, key, answer)
        about, data = (self._run, self._site.number, request.t, request.call), answer.data.numpy().data
        first = [] if note is None else [Frame(Kind.NOTE, *about, body=pack_note(note))]
        return itertools.chain(first, wire.message(*about, answer.words, data))

    async def status(self, caller: Caller) -> bytes:
        with self._serving(caller):
            if self._is_known(caller.name):
                return await in_thread(self._status, caller.name)
            self._refused(str(caller), "asked for the status, but is neither operator nor neighbour")
        raise FrameError("neither operator nor neighbour")

    def check_neighbour(self, caller: Caller) -> None:
        try:
            if self._members.find_neighbour(caller.name) is None:
                raise FrameError(NO_NEIGHBOUR)
            self._check_certificate(caller)
        except (FrameError, CertificateError) as error:
            self._refused(str(caller), str(error))
            raise

    @contextmanager
    def _serving(self, caller: Caller) -> Iterator[Served]:
        """Serve one request, unless its sender has sent too many; all unknown senders share one limit."""
        try:
            with self.limit.serve(caller.name if self._is_known(caller.name) else "") as served:
                self._check_certificate(caller)
                yield served
        except (Busy, FrameError, CertificateError) as error:
            self._refused(str(caller), str(error))
            raise
        except StorageError as error:
            self._refused(str(caller), f"not answered: {error}")
            raise Busy("cannot write to its disk, so it answers nothing that it would have to record") from None

    def _check_certificate(self, caller: Caller) -> None:
        """Raise if a known sender shows a certificate that does not count; others get nothing anyway."""
        if self._peers is not None and self._is_known(caller.name):
            contact = self._members.find_neighbour(caller.name)
            self._peers.check(caller.certificate, None if contact is None else contact.neighbour)

    def _is_known(self, name: str) -> bool:
        return name in (OPERATOR, self._site.name) or self._members.find_neighbour(name) is not None
