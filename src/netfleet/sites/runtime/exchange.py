"""One exchange of a round: serves this site's message, pulls those of its neighbours, and drops lost neighbours."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from netfleet.compute.host_memory import HostMemory, deliver
from netfleet.engines.host import Content, Tag
from netfleet.errors import ConfigError, NoLinkError, TransportError
from netfleet.privacy.receipts.lines import Event
from netfleet.runs.progress import Display, in_words
from netfleet.sites.network.client import Answer, Client, Wanted
from netfleet.sites.network.loop_thread import LoopThread
from netfleet.sites.network.wire import Expected, Kind, SiteNews
from netfleet.sites.operations.logs import Log
from netfleet.sites.runtime.alarms import Alarms
from netfleet.sites.runtime.membership import Membership
from netfleet.sites.runtime.receipts import SiteReceipts

#: Seconds after which a wait appears on the screen, in the log, and there as a warning if a site is silent
#: or holds.
NOTE, LINE, WAKE = 2.0, 10.0, 600.0
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
    alarms: Alarms

    def expected(self, j: int, t: int, call: int = 0, words: str = "", total: int = 0) -> Expected:
        """What a message of neighbour j must be."""
        return Expected(self.members.site.run_id, j, t, call, words, total)


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
        check_not_evicted(members)
        for j, answer in answers.items():
            if answer.kind == Kind.CHUNK:
                deliver(landings[j], rows[j])
        arrived = {j: rows[j] for j, answer in answers.items() if answer.kind == Kind.CHUNK}
        self._check(tag, {members.site.number: own, **arrived}, content)
        for j, answer in answers.items():
            if answer.kind != Kind.CHUNK or members.why_evicted(j) is not None:
                rows[j].copy_(own)  # so nothing flows over the link
                self._continue_without(j, tag.t, answer)
        check_links(members, tag.t)

    def _check(self, tag: Tag, messages: Mapping[int, Tensor], content: Content) -> None:
        """Raise an alarm if a message is unusual; a site that holds waits here, before it has used the message."""
        alarms, members = self._session.alarms, self._session.members
        if len(messages) > 1 and members.site.alarm.norm:
            norms = {j: content.norms(message) for j, message in messages.items()}
            alarms.check_norms(max(tag.t, 0), tag.call, norms, members.name)
            alarms.hold(max(tag.t, 0), members.is_out, lambda: members.why_evicted(members.site.number) is not None)
            check_not_evicted(members)

    async def _pull_all(self, tag: Tag, rows: dict[int, Tensor], content: Content) -> dict[int, Answer]:
        news = self._session.members.news()
        async with asyncio.TaskGroup() as group:
            tasks = {j: group.create_task(self._pull(j, tag, row, content, news)) for j, row in rows.items()}
        return {j: task.result() for j, task in tasks.items()}

    async def _pull(self, j: int, tag: Tag, row: Tensor, content: Content, news: Sequence[SiteNews]) -> Answer:
        session = self._session
        wanted = Wanted(
            session.expected(j, *tag, content.words, row.numel()),
            row.numpy().data.cast("B"),
            lambda: content.finite(row),
            lambda: not session.members.is_there(j, tag.t),
        )
        return await session.client.pull(session.members.contacts[j], wanted, news)

    def _continue_without(self, j: int, t: int, answer: Answer) -> None:
        """Continue without neighbour j from round t on."""
        session, members = self._session, self._session.members
        contact, why = members.contacts[j], _WHY.get(answer.kind, answer.kind.name)
        last, contact.waiting = contact.waiting if answer.kind == Kind.WAIT else "", ""
        if j in members.neighbourhood.lost:  # in an earlier exchange of this round
            return
        if (reason := members.why_evicted(j)) is not None:
            self._end_link(j, t, reason)
            return
        if answer.kind == Kind.JOIN:
            session.log.event("rejoins", neighbour=members.name(j), absent_from=t, present_from=members.first_round(j))
            return
        if members.fixed is not None:
            raise TransportError(f"{members.name(j)} {why}, and {members.fixed}")
        members.neighbourhood.drop(j, t)
        if answer.kind == Kind.LEFT:
            members.gone.add(j)
        if answer.kind in (Kind.LEFT, Kind.DROPPED):
            members.write_links()
        event: Event = "left" if answer.kind == Kind.LEFT else "lost"
        session.receipts.note_change(event, members.name(j), t, why)
        if answer.kind == Kind.LEFT:
            session.loop.wait(session.client.confirm(contact, members.rounds))
        level = "info" if answer.kind == Kind.LEFT else "warning"  # somebody wanted it to leave
        whole = f"{why}: {last}" if last else why
        session.log.event("lost", level=level, neighbour=members.name(j), round=t, why=whole)
        if answer.kind == Kind.DROPPED and members.site.rejoin:
            raise NoLinkError(f"{members.name(j)} has given this site up, and it comes back (rejoin = true)")

    def _end_link(self, j: int, t: int, reason: str) -> None:
        """Continue without a site that the operator has evicted; the ledger is taken back at the round's end."""
        session, members = self._session, self._session.members
        if members.fixed is not None:
            raise TransportError(f"{members.name(j)} was evicted ({reason}), and {members.fixed}")
        members.neighbourhood.drop(j, t)
        members.write_links()
        session.receipts.note_change("evicted", members.name(j), t, reason)
        session.log.event("evicted", neighbour=members.name(j), round=t, why=reason)


def check_not_evicted(members: Membership) -> None:
    if (reason := members.why_evicted(members.site.number)) is not None:
        raise ConfigError(f"the operator has evicted {members.site.name} from this training: {reason}")


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
        self._begun, self._next, self._noted, self._cause = time.monotonic(), LINE, False, ""
        self._membership.waits.begin()

    def __exit__(self, *error: object) -> None:
        self._membership.waits.end()
        if self._noted:
            self._display.note("")
        if self._cause:
            self._log.event("waited", seconds=round(time.monotonic() - self._begun), cause=self._cause)

    def report(self) -> None:
        """Say for which neighbours the site waits, if it is time to."""
        waited = time.monotonic() - self._begun
        if waited < NOTE:
            return
        contacts = [contact for contact in list(self._membership.contacts.values()) if contact.waiting]
        text = "; ".join(f"{contact.neighbour.name} {contact.waiting}" for contact in contacts) or "neighbours"
        cause = self._membership.cause()
        name, why = self._membership.name(cause.site), f"has been {cause.state} for {in_words(cause.seconds)}"
        if cause.site == self._membership.site.number and cause.links:
            why = f"cannot be reached by a neighbour for {in_words(cause.seconds)}"
        self._noted = True
        self._display.note(f"waits {in_words(waited)} for {text}" + (f"; {name} {why}" if cause.links > 1 else ""))
        if waited >= self._next:
            self._next = WAKE if waited < WAKE < 3 * self._next else min(3 * self._next, self._next + 3600)
            level = "info" if cause.state == "computing" or waited < WAKE else "warning"
            self._cause = name
            self._log.event("waiting", level=level, seconds=round(waited), neighbours=text, cause=name, why=why)
