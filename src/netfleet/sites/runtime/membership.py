"""A site's front desk: whom it knows, what it tells whom, and what it hears of all others.

Everything here may be asked from the network's threads while the training goes on in another. A link that is agreed
upon is on disk (`links.json`) before the neighbour hears of it, and so is a link that the neighbour gave up, before it
is let go: it may not be there to be asked again. A loss by this site's own patience becomes durable with the round's
checkpoint, which is soon enough: the two ends may lose each other in different rounds.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from netfleet.errors import ConfigError, FrameError
from netfleet.files import write_atomically
from netfleet.runs.config import make, read_toml
from netfleet.sites.network.outbox import Message, Outbox
from netfleet.sites.network.transport import Contact
from netfleet.sites.network.wire import SITES, Frame, Kind
from netfleet.sites.planning.folders import NEIGHBOURS_FOLDER, Neighbour, Site
from netfleet.sites.planning.identity import OPERATOR
from netfleet.sites.planning.nodes_file import check_name
from netfleet.sites.runtime.neighbourhood import NEVER, Neighbourhood

LINKS_FILE = "links.json"


class FrontDesk:
    """Answers for a site (`transport.Desk`)."""

    def __init__(self, folder: Path, site: Site, rounds: int, outbox: Outbox, refused: Callable[[str, str], None]):
        """`folder` is the site's; rounds is how many the training has."""
        self.folder, self.site, self.rounds, self.outbox, self.refused = folder, site, rounds, outbox, refused
        self.contacts = {each.number: Contact(each) for each in site.neighbours}
        self.hood = Neighbourhood(site.number, {each.number: each.weight for each in site.neighbours})
        self.known: dict[int, int] = {}  # the latest round that is known of each site, from whomever
        self.left: int | None = None  # the first round without this site
        self.finished = False
        self.joining = False  # whether it still agrees on its links
        self.done: set[int] = set()  # neighbours that need nothing more
        self.told: set[int] = set()  # neighbours that know that this site is done
        self.losable: ConfigError | None = None  # why the method does not allow links to change
        self.snapshot: Callable[[], tuple[str, torch.Tensor]] | None = None  # the durable model: words and bytes
        self.report: Callable[[], dict[str, Any]] = dict
        self._lock, self._agreeing = threading.Lock(), threading.Lock()
        self._run = bytes.fromhex(site.run)
        self._meet_all()

    def _meet_all(self) -> None:
        for path in sorted((self.folder / NEIGHBOURS_FOLDER).glob("*.toml")):
            self.meet(path.stem)
        path = self.folder / LINKS_FILE
        if path.exists():
            try:
                found = json.loads(path.read_text(encoding="utf-8"))
                since, lost = ({int(j): int(t) for j, t in found[key].items()} for key in ("since", "lost"))
            except (ValueError, AttributeError, KeyError, TypeError) as error:
                raise ConfigError(f"{path} is not what this site has written ({error}); restore it") from None
            self.hood.since |= {j: t for j, t in since.items() if j in self.contacts}
            self.hood.lost |= {j: t for j, t in lost.items() if j in self.contacts and t >= since.get(j, 0)}

    # ---- whom it knows ----

    def meet(self, name: str) -> Contact | None:
        with self._lock:
            for contact in list(self.contacts.values()):
                if contact.about.name == name:
                    return contact
            try:
                return self._introduce(name)
            except ConfigError as error:
                self.refused(name, str(error))
                return None

    def _introduce(self, name: str) -> Contact | None:
        """A neighbour whom the operator has admitted since, by a file of its own."""
        try:
            check_name(name)
        except ConfigError:
            return None  # no site can have it
        path = self.folder / NEIGHBOURS_FOLDER / f"{name}.toml"
        if not path.is_file():
            return None
        about = make(Neighbour, read_toml(path), str(path))
        if about.name != name or about.number in self.contacts or not self.site.workers <= about.number < SITES:
            raise ConfigError(f"{path}: {about.name}, number {about.number}, is taken or wrong; restore the file")
        if sum(self.hood.weights.values()) + about.weight > 1 or about.weight <= 0:
            raise ConfigError(f"{path}: a weight of {about.weight:g} leaves this site none of its own")
        self.contacts[about.number] = Contact(about)
        self.hood.since[about.number] = NEVER
        self.hood.weights[about.number] = about.weight
        return self.contacts[about.number]

    def name(self, number: int) -> str:
        """A site's name, if it is known here; a site knows its neighbours only."""
        return self.contacts[number].about.name if number in self.contacts else f"site {number}"

    # ---- what it tells them ----

    def instead(self, j: int, request: Frame) -> Frame | None:
        number = self.site.number
        if self.joining:
            return Frame(Kind.WAIT, self._run, number, -1)
        if self.left is not None and request.t >= self.left:
            if request.t >= self.rounds:
                self.told.add(j)  # it asks for nothing more, because it has written down that this site is gone
            return Frame(Kind.LEFT, self._run, number, self.left)
        if j in self.hood.lost or self._is_old(j, request.t):
            return Frame(Kind.DROPPED, self._run, number, self.hood.lost.get(j, 0))
        if request.t >= self.rounds and self.outbox.t >= self.rounds - 2:
            self.done.add(j)  # it asks for what comes after the end: it has all it needs
            if self.finished:
                self.told.add(j)
                return Frame(Kind.DONE, self._run, number, self.rounds)
        return None

    def _is_old(self, j: int, t: int) -> bool:
        """Whether j asks for a round before its link begins: it goes on from a state of before it came anew."""
        return j in self.hood.since and t < self.hood.since[j]

    def first(self, j: int) -> int:
        return self.hood.since.get(j, 0)

    def join(self, j: int) -> Frame:
        if self.losable is not None:
            raise FrameError(str(self.losable))
        if self.joining:
            return Frame(Kind.WAIT, self._run, self.site.number, -1)
        with self._agreeing:
            t = self.first(j)
            if self.outbox.t < t != NEVER and j not in self.hood.lost:
                return Frame(Kind.JOINED, self._run, self.site.number, t)  # j did not hear of it
            t = self.outbox.t + 2
            if t >= self.rounds or self.finished or self.left is not None:
                return Frame(Kind.DONE, self._run, self.site.number, self.rounds)
            self.hood.add(j, t)
            self.write_links()
        return Frame(Kind.JOINED, self._run, self.site.number, t)

    def write_links(self) -> None:
        """Make durable which links there are."""
        since, lost = self.hood.links()
        text = json.dumps({"since": since, "lost": lost}, indent=1)
        write_atomically(self.folder / LINKS_FILE, lambda file: file.write(text.encode()))

    def model(self) -> Message:
        if self.snapshot is None:
            raise FrameError("there is no model yet; ask again later")
        return Message(*self.snapshot())

    def status(self, name: str) -> bytes:
        table = self.report()
        if name not in (OPERATOR, self.site.name):  # a neighbour is told of its own link only
            table["neighbours"] = [link for link in table["neighbours"] if link["name"] == name]
            table["sketches"], table["apart"] = [], []
        return json.dumps(table).encode()

    # ---- what it hears ----

    def start(self, t: int) -> None:
        """The training begins or goes on in round t."""
        self.outbox.t = max(self.outbox.t, t)
        self.known = dict.fromkeys(range(self.site.workers), t)

    def heard(self, j: int, t: int, rounds: Sequence[int]) -> None:
        self.contacts[j].hear(t)
        self.known[j] = max(self.known.get(j, -1), t)
        for k, seen in enumerate(rounds[: 2 * self.site.workers + 16]):  # room for some who came later
            if seen > self.known.get(k, -1) and k != self.site.number:
                self.known[k] = min(seen, self.outbox.t + 1 + self.site.workers)  # no link is longer than a round

    def gossip(self) -> list[int]:
        """The rounds of all sites, as far as they are known here."""
        self.known[self.site.number] = self.outbox.t
        for j, contact in list(self.contacts.items()):
            self.known[j] = max(self.known.get(j, -1), contact.t)
        return [self.known.get(k, -1) for k in range(max(self.known) + 1)]

    def apart(self) -> list[int]:
        """Sites that nobody whom this one can reach has heard of for long.

        News of a site k links away is at most 2k rounds old, so twice the number of sites is long. One that is about to
        join is not missed yet.
        """
        t, long = self.outbox.t, 2 * len(self.known)
        return [k for k, seen in sorted(self.known.items()) if 0 <= seen < t - long and k != self.site.number]
