"""One exchange of a round: serves this site's message, pulls those of its neighbours, and drops lost neighbours."""

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from netfleet.compute.host_memory import HostMemory, deliver
from netfleet.engines.host import Content, Tag
from netfleet.errors import NoLinkError, TransportError
from netfleet.privacy.receipts.lines import Event
from netfleet.runs.progress import Display, in_words
from netfleet.sites.network.client import Answer, Client, Wanted
from netfleet.sites.network.loop_thread import LoopThread
from netfleet.sites.network.wire import Expected, Kind
from netfleet.sites.operations.logs import Log
from netfleet.sites.runtime.membership import Membership
from netfleet.sites.runtime.receipts import SiteReceipts

#: Seconds after which a wait appears on the screen, and in the log.
NOTE, LINE = 2.0, 10.0
_WHY = {
    Kind.WAIT: "did not answer for longer than this site's patience",
    Kind.DROPPED: "has dropped this site",
    Kind.LEFT: "has left",
    Kind.DONE: "says that the training is over",
}


class SiteSession(NamedTuple):
    """One site while it is connected to the others."""

    members: Membership
    client: Client
    receipts: SiteReceipts
    loop: LoopThread
    log: Log

    def expected(self, j: int, t: int, call: int = 0, words: str = "", total: int = 0) -> Expected:
        """What a message of neighbour j must be."""
        return Expected(bytes.fromhex(self.members.site.run), j, t, call, words, total)


class SiteExchange:
    """A host's `Exchange` over the network."""

    def __init__(self, session: SiteSession, display: Display) -> None:
        self._session, self._waiting = session, Waiting(session.members, session.log, display)
        self._memory = HostMemory()

    def __call__(self, tag: Tag, need: Sequence[int], stack: Tensor, content: Content) -> None:
        members = self._session.members
        own = stack[need.index(members.site.number)]
        message, to = members.outbox.copy(content.words, own), members.neighbourhood.neighbours(tag.t)
        self._session.receipts.offer_to_all(tag, message, [members.name(j) for j in to])
        members.outbox.post(tag, message)
        rows = {j: stack[row] for row, j in enumerate(need) if j != members.site.number}
        landings = {j: self._memory.landing(row) for j, row in rows.items()}
        with self._waiting:
            answers = self._session.loop.wait(self._pull_all(tag, landings, content), self._waiting.report)
        for j, answer in answers.items():
            if answer.kind == Kind.CHUNK:
                deliver(landings[j], rows[j])
            else:
                rows[j].copy_(own)  # so nothing flows over the link
                self._continue_without(j, tag.t, answer)
        check_links(members, tag.t)

    async def _pull_all(self, tag: Tag, rows: dict[int, Tensor], content: Content) -> dict[int, Answer]:
        rounds = self._session.members.known_rounds()
        async with asyncio.TaskGroup() as group:
            tasks = {j: group.create_task(self._pull(j, tag, row, content, rounds)) for j, row in rows.items()}
        return {j: task.result() for j, task in tasks.items()}

    async def _pull(self, j: int, tag: Tag, row: Tensor, content: Content, rounds: Sequence[int]) -> Answer:
        session = self._session
        wanted = Wanted(
            session.expected(j, *tag, content.words, row.numel()),
            row.numpy().data.cast("B"),
            lambda: content.finite(row),
            lambda: not session.members.neighbourhood.there(j, tag.t),
        )
        return await session.client.pull(session.members.contacts[j], wanted, rounds)

    def _continue_without(self, j: int, t: int, answer: Answer) -> None:
        """Continue without neighbour j from round t on."""
        session, members = self._session, self._session.members
        contact, why = members.contacts[j], _WHY.get(answer.kind, answer.kind.name)
        contact.waiting = ""
        if j in members.neighbourhood.lost:  # in an earlier exchange of this round
            return
        if answer.kind == Kind.JOIN:
            session.log.event("rejoins", neighbour=members.name(j), absent_from=t, present_from=members.first_round(j))
            return
        if members.fixed is not None:
            raise TransportError(f"{members.name(j)} {why}, and {members.fixed}")
        members.neighbourhood.drop(j, t)
        if answer.kind in (Kind.LEFT, Kind.DROPPED):
            members.write_links()
        event: Event = "left" if answer.kind == Kind.LEFT else "lost"
        session.receipts.note_change(event, members.name(j), t, why)
        if answer.kind == Kind.LEFT:
            session.loop.wait(session.client.confirm(contact, members.rounds))
        session.log.event("lost", level="warning", neighbour=members.name(j), round=t, why=why)
        if answer.kind == Kind.DROPPED and members.site.rejoin:
            raise NoLinkError(f"{members.name(j)} has given this site up, and it comes back (rejoin = true)")


def check_links(members: Membership, t: int) -> None:
    """Raise if the site has no neighbour left, or fewer than its policy needs."""
    if not members.neighbourhood.linked():
        raise NoLinkError(
            f"{members.site.name} has no neighbour left in round {t}: all are lost, or have dropped this site. Its "
            f"state is saved; {members.remedy}"
        )
    members.check_enough()


class Waiting:
    """A context for every wait."""

    def __init__(self, membership: Membership, log: Log, display: Display) -> None:
        self._membership, self._log, self._display = membership, log, display

    def __enter__(self) -> None:
        self._begun, self._next, self._noted = time.monotonic(), LINE, False

    def __exit__(self, *error: object) -> None:
        if self._noted:
            self._display.note("")

    def report(self) -> None:
        """Say for which neighbours the site waits, if it is time to."""
        waited = time.monotonic() - self._begun
        if waited < NOTE:
            return
        contacts = [contact for contact in list(self._membership.contacts.values()) if contact.waiting]
        text = "; ".join(f"{contact.neighbour.name} {contact.waiting}" for contact in contacts) or "neighbours"
        self._noted = True
        self._display.note(f"waits {in_words(waited)} for {text}")
        if waited >= self._next:
            self._next = min(3 * self._next, self._next + 3600)
            self._log.event("waiting", level="warning", seconds=round(waited), neighbours=text)
