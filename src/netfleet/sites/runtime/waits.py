"""For whom a site waits, since when, and which site is the cause.

Sites cannot wait for each other in a circle: who waits for a message of some round has sent its own of that round. So
old answers, which may name each other for a moment, are replaced by true ones when the neighbours are asked again,
which is about once a second.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from netfleet.sites.network.transport import Contact
from netfleet.sites.network.wait_cause import LINKS, STATES, Cause


class Waits:
    """The waits of one site. The training's thread begins and ends them, others ask."""

    def __init__(self, number: int, contacts: Mapping[int, Contact]) -> None:
        """`contacts` are the neighbours by number, also those that come later."""
        self._number, self._contacts = number, contacts
        self._begun: float | None = None
        self._ended = time.monotonic()  # the last wait
        self._held: float | None = None

    def begin(self) -> None:
        self._begun = time.monotonic()

    def end(self) -> None:
        self._begun, self._ended = None, time.monotonic()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """The site holds after an alarm."""
        self._held = time.monotonic()
        try:
            yield
        finally:
            self._held = None

    @property
    def holds(self) -> bool:
        return self._held is not None

    @property
    def seconds(self) -> float | None:
        """How long the current wait has lasted; None: the site computes."""
        return None if self._begun is None else time.monotonic() - self._begun

    def cause(self) -> Cause:
        """The site that this one waits for in the end; itself, if it computes or holds."""
        now, held = time.monotonic(), self._held
        if held is not None:
            return Cause(self._number, "holding", now - held)
        asked = [each for each in list(self._contacts.values()) if each.asked is not None]
        if self._begun is None or not asked:
            return Cause(self._number, "computing", now - self._ended)
        return worst(cause_of(contact, self._number, now) for contact in asked)


def worst(causes: Iterable[Cause]) -> Cause:
    """The one to look at first: a silent site before one that holds or computes, then the longest."""
    return max(causes, key=lambda cause: (STATES.index(cause.state), cause.seconds))


def cause_of(contact: Contact, own: int, now: float) -> Cause:
    """The cause of the wait for a neighbour.

    That one may wait for this site. Then it cannot reach it, and this site is the cause; or its answer is too old.
    """
    number, told = contact.neighbour.number, contact.cause
    asked = now if contact.asked is None else contact.asked
    if contact.silent:
        return Cause(number, "silent", now - (asked if contact.last_heard is None else contact.last_heard), 1)
    if told is None or told.links >= LINKS or (told.site == own and not told.silent):
        return Cause(number, "computing", now - asked, 1)
    since = 0.0 if contact.last_heard is None else now - contact.last_heard
    return told._replace(seconds=told.seconds + since, links=told.links + 1)
