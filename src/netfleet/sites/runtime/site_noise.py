"""The noise of one site's links: with whom it is shared in a round, and what it adds to the site's sums.

What a site sends in round t contains the noise of some links, and a repeated round must send the same bits. Links may
come and go while the round is under way, and some of these changes are on disk before the round is (`links.json`). So
the noise of round t is that of the links of the checkpoint before it. If such a link is lost in the meantime, its noise
is sent nevertheless, and the ledger takes it back at the end of the round.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from netfleet.errors import FrameError, TransportError
from netfleet.privacy.build import link_noise
from netfleet.privacy.link_noise import Address, Link, links_of
from netfleet.privacy.mechanism import Secret
from netfleet.privacy.settings import Privacy
from netfleet.sites.network.client import Answer, Wanted
from netfleet.sites.network.outbox import Message, Outbox
from netfleet.sites.network.wire import Kind
from netfleet.sites.runtime.exchange import SiteSession, Waiting, check_links
from netfleet.sites.runtime.link_keys import BYTES, WORDS, LinkKeys, Statement, parse_statement
from netfleet.sites.runtime.neighbourhood import Neighbourhood, pairs

_PARTNERS = "partners"
#: The secrets of links, of which the first rounds are given, before a round; links without one have no noise.
Agree = Callable[[Mapping[int, int], int], dict[int, Secret]]


class SiteNoise:
    """What a `SiteHost` asks about noise."""

    def __init__(self, neighbourhood: Neighbourhood, privacy: Privacy, rounds: int, agree: Agree) -> None:
        self.noise, self._neighbourhood, self._agree = link_noise(privacy, rounds, self._secret), neighbourhood, agree
        self._saved: dict[int, int] | None = None  # links and their first rounds, as the last checkpoint has them
        self._secrets: dict[int, Secret] = {}  # of those who share noise in this round

    def _secret(self, low: int, high: int) -> Secret:
        return self._secrets[high if low == self._neighbourhood.i else low]

    def begin(self, t: int) -> None:
        """Find out who shares noise in round t, and agree on secrets where there are none."""
        known = self._neighbourhood.agreed() if self._saved is None else self._saved
        there = {j: since for j, since in known.items() if since <= max(t, 0)}
        self._secrets = self._agree(there, t) if t < self.noise.rounds else {}

    @property
    def links(self) -> list[Link]:
        return links_of({self._neighbourhood.i: self._secrets})

    def drawn(self, address: Address, like: Tensor) -> Iterator[tuple[int, Tensor]]:
        """What this site added for each neighbour to a vector `[1, d]`."""
        for link in self.links if address.t < self.noise.rounds else []:
            out, (end,) = torch.zeros_like(like), link.ends
            self.noise.draw(link, end.sign, address, out)
            yield link.high if link.low == self._neighbourhood.i else link.low, out

    def network_state(self) -> dict[str, Tensor]:
        """The links as they are in a checkpoint, which is being made: the next round's noise is theirs."""
        self._saved = self._neighbourhood.agreed()
        return {_PARTNERS: pairs(self._saved)}

    def load_network_state(self, memory: Mapping[str, Tensor]) -> None:
        self._saved = dict(memory[_PARTNERS].tolist()) if _PARTNERS in memory else None


class Agreement:
    """Agrees with neighbours on the secrets of links (`Agree`)."""

    def __init__(self, session: SiteSession, keys: LinkKeys, waiting: Waiting) -> None:
        self._session, self._keys, self._waiting = session, keys, waiting
        self._warned = False

    def __call__(self, links: Mapping[int, int], t: int) -> dict[int, Secret]:
        missing = [
            j for j, since in links.items() if self._keys.secret(j, since) is None and self._current(j, since, t)
        ]
        if missing:
            with self._waiting:
                found = self._session.loop.wait(self._ask_all(missing, links, t), self._waiting.report)
            for j, answer in found.items():
                self._take(j, links[j], t, answer)
            check_links(self._session.members, t)
        secrets = {j: self._keys.secret(j, since) for j, since in links.items()}
        return self._checked({j: secret for j, secret in secrets.items() if secret is not None}, t)

    def _current(self, j: int, since: int, t: int) -> bool:
        """Whether this is still the link to j."""
        neighbourhood = self._session.members.neighbourhood
        return self._session.members.is_there(j, t) and neighbourhood.since.get(j, 0) == since

    async def _ask_all(self, missing: list[int], links: Mapping[int, int], t: int) -> dict[int, Answer | Statement]:
        async with asyncio.TaskGroup() as group:
            tasks = {j: group.create_task(self._ask(j, links[j], t)) for j in missing}
        return {j: task.result() for j, task in tasks.items()}

    async def _ask(self, j: int, since: int, t: int) -> Answer | Statement:
        """Neighbour j's key; if it is none, that is logged, and j is asked again."""
        session, data = self._session, bytearray(BYTES)
        contact = session.members.contacts[j]

        def usable() -> bool:
            return bool(self._keys.shared(parse_statement(bytes(data))))

        expected = session.expected(j, since, words=WORDS, total=BYTES)
        wanted = Wanted(expected, memoryview(data), usable, lambda: not session.members.is_there(j, t))
        answer = await session.client.pull(contact, wanted, kind=Kind.KEY)
        return parse_statement(bytes(data)) if answer.kind == Kind.CHUNK else answer

    def _take(self, j: int, since: int, t: int, answer: Answer | Statement) -> None:
        """Learn a secret, or continue without j. That is on disk before a message is sent without its noise."""
        members, log = self._session.members, self._session.log
        if isinstance(answer, Statement):
            self._keys.learn(j, members.name(j), since, answer)
            log.event("agreed", neighbour=members.name(j), round=max(t, 0))
        elif answer.kind != Kind.JOIN:  # one that rejoins has a new link, which is on disk; or it was evicted
            if members.fixed is not None:
                raise TransportError(f"{members.name(j)} gave no key for noise, and {members.fixed}")
            members.neighbourhood.drop(j, t)
            members.write_links()
            log.event("lost", level="warning", neighbour=members.name(j), round=t, why="gave no key for noise")

    def _checked(self, secrets: dict[int, Secret], t: int) -> dict[int, Secret]:
        exposed = t >= 0 and len(secrets) < 2
        if exposed and not self._warned:
            why = "its only neighbour knows all of its noise, and so sees what this site sends without any"
            self._session.log.event("exposed", level="warning", round=t, why=why)
        self._warned = exposed
        return secrets


def sent_model(outbox: Outbox, like: Message) -> Message:
    """What this site last sent of its model: neighbours that ask for the model itself would see it without noise."""
    found = outbox.last()
    if found is None:
        raise FrameError("there is no model yet; ask again later")
    return Message(like.words, found.data[: like.data.numel()])
