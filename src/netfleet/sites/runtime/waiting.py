"""What a site says while it waits for neighbours: at once where someone looks, and more and more seldom in the log."""

from __future__ import annotations

import time

from netfleet.runs.progress import Display, in_words
from netfleet.sites.operations.logs import Log
from netfleet.sites.runtime.membership import FrontDesk

#: Seconds after which a wait is worth a word on the screen, and a line in the log.
NOTE, LINE = 2.0, 10.0


class Waiting:
    """A context for every wait."""

    def __init__(self, desk: FrontDesk, log: Log, display: Display) -> None:
        self.desk, self.log, self.display = desk, log, display
        self._begun = self._next = 0.0
        self._noted = False

    def __enter__(self) -> None:
        self._begun, self._next, self._noted = time.monotonic(), LINE, False

    def __exit__(self, *error: object) -> None:
        if self._noted:
            self.display.note("")

    def glance(self) -> None:
        """Say whom is waited for, if it is time to."""
        waited = time.monotonic() - self._begun
        if waited < NOTE:
            return
        whom = [c for c in list(self.desk.contacts.values()) if c.waiting]
        text = "; ".join(f"{c.about.name} {c.waiting}" for c in whom) or "neighbours"
        self._noted = True
        self.display.note(f"waits {in_words(waited)} for {text}")
        if waited >= self._next:
            self._next = min(3 * self._next, self._next + 3600)
            self.log.event("waiting", level="warning", seconds=round(waited), neighbours=text)
