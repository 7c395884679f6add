"""A site's neighbours: which there are, what the site answers them, and what it knows of all sites.

The network's thread calls this while the training runs in another. A link that the two ends agree on is on disk
(`links.json`) before the neighbour hears of it. A link that the neighbour gave up is on disk before this site gives it
up, because the neighbour may not be there to be asked again. A loss by this site's own patience is saved with the
round's checkpoint, which is soon enough: the two ends may lose each other in different rounds.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from netfleet.errors import ConfigError, FrameError
from netfleet.files import write_atomically
from netfleet.privacy.receipts.lines import Event
from netfleet.runs.config import make, read_toml
from netfleet.sites.network.outbox import Outbox
from netfleet.sites.network.transport import Contact, Refused
from netfleet.sites.network.wait_cause import Cause
from netfleet.sites.network.wire import SITES, Frame, Kind, SiteNews
from netfleet.sites.planning.folders import NEIGHBOURS_FOLDER, Neighbour, Site
from netfleet.sites.planning.nodes_file import check_name
from netfleet.sites.policy.in_force import NO_POLICY, PolicyInForce
from netfleet.sites.policy.rules import enforce, least_neighbours, neighbour_names
from netfleet.sites.runtime.neighbourhood import NEVER, Neighbourhood
from netfleet.sites.runtime.waits import Waits

LINKS_FILE = "links.json"


def write_links(folder: Path, since: Mapping[int, int], lost: Mapping[int, int], gone: Iterable[int]) -> None:
    """Write first rounds of links and of losses; `gone` are the neighbours that have left."""
    text = json.dumps({"since": since, "lost": lost, "left": sorted(gone)}, indent=1)
    write_atomically(folder / LINKS_FILE, lambda file: file.write(text.encode()))


def links_before(folder: Path, t: int) -> None:
    """Take the links of a site, which does not run, back to round t; the checkpoint of that round has the rest.

    Who has left since then stays away. A neighbour that came since then is as it was before, so it must come again.
    """
    if (folder / LINKS_FILE).exists():
        since, lost, gone = read_links(folder)
        kept = {j: first for j, first in since.items() if first <= t}
        write_links(folder, kept, {j: min(lost[j], t) for j in gone if j in lost}, gone)


def read_links(folder: Path) -> tuple[dict[int, int], dict[int, int], set[int]]:
    """First rounds of links and of losses, and who has left."""
    path = folder / LINKS_FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        since, lost = ({int(j): int(t) for j, t in found[key].items()} for key in ("since", "lost"))
        return since, lost, {int(j) for j in found.get("left", [])}
    except FileNotFoundError:
        return {}, {}, set()
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({error}); restore it from a backup") from None


class Membership:
    """What a site's server asks about its neighbours (`server.Members`)."""

    def __init__(
        self,
        folder: Path,
        site: Site,
        rounds: int,
        outbox: Outbox,
        refused: Refused,
        fixed: ConfigError | None = None,
        in_force: PolicyInForce = NO_POLICY,
        linked: Callable[[Event, str, int], object] = lambda event, name, t: None,
        evicted: Callable[[str], str | None] = lambda name: None,
    ) -> None:
        """`folder` is the site's, `rounds` the length of the training, `fixed` why the method needs fixed links.

        `linked` is called before a neighbour hears of a link that begins in round t. `evicted` says why the operator
        has evicted a site, if so.
        """
        self._in_force = in_force
        self.folder, self.site, self.rounds, self.outbox, self.fixed = folder, site, rounds, outbox, fixed
        #: What the operator of a site that was dropped or has lost its disk can do.
        self.remedy = f"to join again with the others' current model: netfleet node {folder} --rejoin"
        self._refused, self._linked, self._evicted = refused, linked, evicted
        self.contacts = {each.number: Contact(each) for each in site.neighbours}
        self.neighbourhood = Neighbourhood(site.number, {each.number: each.weight for each in site.neighbours})
        self.waits = Waits(site.number, self.contacts)
        self.known: dict[int, int] = {}  # the latest round that is known of each site, from any source
        self._alarms = dict[int, bool]()  # whether sites had alarms then, of those heard of since the start
        self.left: int | None = None  # the first round without this site
        self.finished = False
        self.joining = False  # whether it still agrees on its links
        self.done: set[int] = set()  # neighbours that need nothing more from this site
        self._begun, self._served = -1, dict[int, int]()  # the round of the start; links that have had a message
        self.informed: set[int] = set()  # neighbours that know that this site is done
        self._compared: set[int] = set()  # neighbours that have this site's facts
        self._lock, self._agreeing = threading.Lock(), threading.Lock()
        self._run = site.run_id
        for path in sorted((folder / NEIGHBOURS_FOLDER).glob("*.toml")):
            self.find_neighbour(path.stem)
        self.gone = set[int]()  # neighbours that have left by their own will
        self._restore_links()

    def _restore_links(self) -> None:
        since, lost, self.gone = read_links(self.folder)
        self.neighbourhood.since |= {j: t for j, t in since.items() if j in self.contacts}
        self.neighbourhood.lost |= {j: t for j, t in lost.items() if j in self.contacts and t >= since.get(j, 0)}

    def write_links(self) -> None:
        since, lost = self.neighbourhood.links()
        write_links(self.folder, since, lost, self.gone)

    # ---- the neighbours ----

    def find_neighbour(self, name: str) -> Contact | None:
        with self._lock:
            for contact in list(self.contacts.values()):
                if contact.neighbour.name == name:
                    return contact
            try:
                return self._admit(name)
            except ConfigError as error:
                self._refused(name, str(error))
                return None

    def _admit(self, name: str) -> Contact | None:
        """A neighbour that the operator has admitted since the start, by a file of its own."""
        try:
            check_name(name)
        except ConfigError:
            return None  # no site can have this name
        path = self.folder / NEIGHBOURS_FOLDER / f"{name}.toml"
        if not path.is_file():
            return None
        enforce(self._in_force, [neighbour_names(self._in_force.policy.neighbours, [name])])
        found = make(Neighbour, read_toml(path), str(path))
        if found.name != name or found.number in self.contacts or not self.site.workers <= found.number < SITES:
            raise ConfigError(f"{path}: {found.name}, number {found.number}, is used or wrong; restore the file")
        if sum(self.neighbourhood.weights.values()) + found.weight > 1 or found.weight <= 0:
            raise ConfigError(f"{path}: a weight of {found.weight:g} leaves this site no self-weight; restore the file")
        self.contacts[found.number] = Contact(found)
        self.neighbourhood.since[found.number] = NEVER
        self.neighbourhood.weights[found.number] = found.weight
        return self.contacts[found.number]

    def newly_served(self) -> list[tuple[str, int]]:
        """Neighbours that have their first message over a link that was made while this process ran, and its round."""
        links = {j: t for j, t in self.neighbourhood.since.items() if self._begun < t != NEVER and j in self.contacts}
        found = [j for j, t in links.items() if self.contacts[j].served >= t != self._served.get(j)]
        self._served |= {j: links[j] for j in found}
        return [(self.name(j), links[j]) for j in found]

    def check_enough(self) -> None:
        """Raise if the site has lost so many neighbours that its policy forbids to send the others more."""
        names = [self.name(j) for j in self.neighbourhood.linked()]
        enforce(self._in_force, [least_neighbours(self._in_force.policy.neighbours, names)])

    def why_evicted(self, j: int) -> str | None:
        """Why the operator has evicted neighbour j, if so."""
        return self._evicted(self.name(j))

    def is_there(self, j: int, t: int) -> bool:
        """Whether there is a link to neighbour j in round t that nobody has ended."""
        evicted = any(self.why_evicted(each) is not None for each in (j, self.site.number))
        return self.neighbourhood.there(j, t) and not evicted

    def is_away(self, j: int) -> bool:
        """Whether neighbour j has left or was evicted, so that nobody has to miss it."""
        return j in self.gone or (j in self.contacts and self.why_evicted(j) is not None)

    def is_out(self, name: str) -> bool:
        """Whether a neighbour has no link any more."""
        found = next((j for j, contact in list(self.contacts.items()) if contact.neighbour.name == name), None)
        return found is not None and (found in self.neighbourhood.lost or self.why_evicted(found) is not None)

    def name(self, number: int) -> str:
        """The name of this site or of a neighbour; a site does not know the names of others."""
        if number == self.site.number:
            return self.site.name
        return self.contacts[number].neighbour.name if number in self.contacts else f"site {number}"

    # ---- what this site answers ----

    def answer_instead(self, j: int, request: Frame) -> Frame | None:
        if self.joining:
            return self._frame(Kind.WAIT, -1)
        if self.left is not None and request.t >= self.left:
            if request.t >= self.rounds:
                self.informed.add(j)  # it asks for nothing more, because it has saved that this site is gone
            return self._frame(Kind.LEFT, self.left)
        if j in self.neighbourhood.lost or request.t < self.neighbourhood.since.get(j, -1):
            # also a site that resumed from a state before it rejoined: it asks for a round before its link begins
            return self._frame(Kind.DROPPED, self.neighbourhood.lost.get(j, 0))
        if request.t >= self.rounds and self.outbox.t >= self.rounds - 2:
            self.done.add(j)  # it asks for what comes after the end: it has everything it needs
            if self.finished:
                self.informed.add(j)
                return self._frame(Kind.DONE, self.rounds)
        return None

    def _frame(self, kind: Kind, t: int) -> Frame:
        return Frame(kind, self._run, self.site.number, t)

    def first_round(self, j: int) -> int:
        return self.neighbourhood.since.get(j, 0)

    def add_link(self, j: int) -> Frame:
        if self.fixed is not None:
            raise FrameError(str(self.fixed))
        if self.joining:
            return self._frame(Kind.WAIT, -1)
        with self._agreeing:
            t = self.first_round(j)
            if self.outbox.t + 1 < t != NEVER and j not in self.neighbourhood.lost:
                # j did not get the first answer; in the round before t this site may hold an earlier key of j already
                return self._frame(Kind.JOINED, t)
            t = self.outbox.t + 2
            if t >= self.rounds or self.finished or self.left is not None:
                return self._frame(Kind.DONE, self.rounds)
            event: Event = "admitted" if self.first_round(j) == NEVER else "returned"
            self._linked(event, self.name(j), t)
            self.neighbourhood.add(j, t)
            self.gone.discard(j)
            self.write_links()
        return self._frame(Kind.JOINED, t)

    def note_compared(self, j: int) -> None:
        self._compared.add(j)

    async def wait_until_compared(self, j: int, seconds: float) -> None:
        """Wait until neighbour j has this site's facts, at most so long."""
        until = time.monotonic() + seconds
        while j not in self._compared and time.monotonic() < until:
            await asyncio.sleep(0.05)

    # ---- the site's own state ----

    def start(self, t: int) -> None:
        """The training starts or resumes in round t."""
        self.outbox.t, self._begun = max(self.outbox.t, t), t
        self.known = dict.fromkeys(range(self.site.workers), t)

    def set_joining(self, joining: bool) -> None:
        """Whether this site still agrees on its links; until then neighbours get no messages."""
        self.joining = joining

    def finish(self) -> None:
        """This site has done all rounds."""
        self.finished = True
        self.outbox.notify()

    def leave(self, t: int) -> None:
        """This site has left; t is the first round without it."""
        self.left = t
        self.outbox.notify()

    def cause(self) -> Cause:
        return self.waits.cause()

    # ---- news of all sites ----

    def note_news(self, j: int, t: int, news: Sequence[SiteNews]) -> None:
        self.contacts[j].note_round(t)
        self.known[j] = max(self.known.get(j, -1), t)
        for k, (seen, alarm) in enumerate(news[: 2 * self.site.workers + 16]):  # room for some that joined later
            newer = seen > self.known.get(k, -1)
            if k == self.site.number or seen < 0:
                continue
            if newer:
                self.known[k] = min(seen, self.outbox.t + 1 + self.site.workers)  # no link is longer than a round
            if alarm is not None and (newer or k == j):  # what a site says of itself is the newest
                self._alarms[k] = alarm

    def note_alarm(self, stands: bool) -> None:
        """Whether this site has an alarm that nobody has looked at."""
        self._alarms[self.site.number] = stands

    def alarm_anywhere(self) -> bool | None:
        """Whether a site in reach has an alarm that nobody has looked at; None: not all were heard of since the start.

        Those who are away do not count.
        """
        there = [k for k in list(self.known) if not self.is_away(k)]
        if any(self._alarms.get(k) for k in there):
            return True
        return None if any(k not in self._alarms for k in there) else False

    def news(self) -> list[SiteNews]:
        """What is known here of all sites, by their numbers.

        A neighbour that is away counts as one in this site's round and without an alarm: so those who do not know why
        it is silent neither report it as unreachable nor keep checkpoints because of it.
        """
        self.known[self.site.number] = self.outbox.t
        for j, contact in list(self.contacts.items()):
            self.known[j] = max(self.known.get(j, -1), self.outbox.t if self.is_away(j) else contact.t)
            if self.is_away(j):
                self._alarms[j] = False
        return [SiteNews(self.known.get(k, -1), self._alarms.get(k)) for k in range(max(self.known) + 1)]

    def sites_apart(self) -> list[int]:
        """Sites of which no site in reach has heard for long.

        News of a site k links away is at most 2k rounds old, so twice the number of sites counts as long. A site that
        is about to join does not count.
        """
        t, long = self.outbox.t, 2 * len(self.known)
        behind = [k for k, seen in sorted(self.known.items()) if 0 <= seen < t - long and k != self.site.number]
        return [k for k in behind if not self.is_away(k)]
