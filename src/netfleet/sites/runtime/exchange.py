"""One exchange of a round: serves this site's message, pulls those of its neighbours, and drops lost neighbours."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from torch import Tensor

from netfleet.engines.host import Content, Tag
from netfleet.errors import TransportError
from netfleet.sites.network.client import Answer, Wanted
from netfleet.sites.network.wire import Kind
from netfleet.sites.runtime.session import SiteSession
from netfleet.sites.runtime.waiting import Waiting

_WHY = {
    Kind.WAIT: "did not answer for longer than this site's patience",
    Kind.DROPPED: "has dropped this site",
    Kind.LEFT: "has left",
    Kind.DONE: "says that the training is over",
}


class SiteExchange:
    """A host's `Exchange` over the network."""

    def __init__(self, session: SiteSession, waiting: Waiting) -> None:
        self._session, self._waiting = session, waiting

    def __call__(self, tag: Tag, need: Sequence[int], stack: Tensor, content: Content) -> None:
        session = self._session
        own = stack[need.index(session.site.number)]
        session.outbox.post(tag, content.words, own)
        rows = {j: stack[row] for row, j in enumerate(need) if j != session.site.number}
        with self._waiting:
            answers = session.loop.wait(self._pull_all(tag, rows, content), self._waiting.report)
        for j, answer in answers.items():
            if answer.kind != Kind.CHUNK:
                rows[j].copy_(own)  # so nothing flows over the link
                self._continue_without(j, tag.t, answer)
        check_links(session, tag.t)

    async def _pull_all(self, tag: Tag, rows: dict[int, Tensor], content: Content) -> dict[int, Answer]:
        rounds = self._session.membership.known_rounds()
        async with asyncio.TaskGroup() as group:
            tasks = {j: group.create_task(self._pull(j, tag, row, content, rounds)) for j, row in rows.items()}
        return {j: task.result() for j, task in tasks.items()}

    async def _pull(self, j: int, tag: Tag, row: Tensor, content: Content, rounds: Sequence[int]) -> Answer:
        session = self._session
        wanted = Wanted(
            session.expected(j, *tag, content.words, row.numel()),
            row.numpy().data.cast("B"),
            lambda: content.finite(row),
            lambda: not session.neighbourhood.there(j, tag.t),
        )
        return await session.client.pull(session.contacts[j], wanted, rounds)

    def _continue_without(self, j: int, t: int, answer: Answer) -> None:
        """Continue without neighbour j from round t on."""
        session, members = self._session, self._session.membership
        contact, why = session.contacts[j], _WHY.get(answer.kind, answer.kind.name)
        contact.waiting = ""
        if j in session.neighbourhood.lost:  # in an earlier exchange of this round
            return
        if answer.kind == Kind.JOIN:
            session.log.event("returns", neighbour=members.name(j), without_from=t, again_from=members.first_round(j))
            return
        if members.fixed is not None:
            raise TransportError(f"{members.name(j)} {why}, and {members.fixed}")
        session.neighbourhood.drop(j, t)
        if answer.kind in (Kind.LEFT, Kind.DROPPED):
            members.write_links()
        if answer.kind == Kind.LEFT:
            session.loop.wait(session.client.confirm(contact, session.rounds))
        session.log.event("lost", level="warning", neighbour=members.name(j), round=t, why=why)


def check_links(session: SiteSession, t: int) -> None:
    """Raise if the site has no neighbour left."""
    if not session.neighbourhood.has_links():
        raise TransportError(
            f"{session.site.name} has no neighbour left in round {t}: all are lost, or have dropped this site. Its "
            f"state is saved; to join again with the others' current model: netfleet node {session.folder} --rejoin"
        )
