"""Reports that a site waits for neighbours: soon on the screen, and at growing intervals in the log."""

from __future__ import annotations

import time

from netfleet.runs.progress import Display, in_words
from netfleet.sites.operations.logs import Log
from netfleet.sites.runtime.membership import Membership

#: Seconds after which a wait appears on the screen, and in the log.
NOTE, LINE = 2.0, 10.0


class Waiting:
    """A context for every wait."""

    def __init__(self, membership: Membership, log: Log, display: Display) -> None:
        self._membership, self._log, self._display = membership, log, display
        self._begun = self._next = 0.0
        self._noted = False

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
