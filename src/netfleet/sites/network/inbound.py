"""What a site hears from its neighbours about its own address: who cannot dial it, and why."""

import time
from collections.abc import Callable
from typing import Protocol

#: Seconds after which what a neighbour says counts.
GRACE = 10.0


class Events(Protocol):
    """A site's log."""

    def event(self, what: str, *, level: str = "info", **fields: object) -> None: ...


class Inbound:
    """Which neighbours cannot dial this site at its address, as they say. Every change is logged once.

    A site without an address is not told what it knows. One that has just started is not there for a moment; it counts
    only what neighbours still say after `GRACE` seconds.
    """

    def __init__(
        self, address: str = "", log: Events | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._address, self._log, self._clock = address, log, clock
        self._since, self._unable = dict[str, float](), set[str]()

    @property
    def unable(self) -> tuple[str, ...]:
        """Neighbours that cannot dial this site, by name."""
        return tuple(sorted(self._unable.copy()))

    def not_dialled(self, name: str, why: str) -> None:
        """A neighbour could not dial this site; it asks over a connection that this site has made."""
        if name in self._unable or self._log is None or not self._address:
            return
        if self._clock() - self._since.setdefault(name, self._clock()) < GRACE:
            return
        self._unable.add(name)
        cure = (
            f"let {name} through the firewall to {self._address} (netfleet plan prints the rules), or plan this site "
            f"with reachable = false; until then {name} asks over connections that this site makes"
        )
        self._log.event("no_inbound", level="warning", neighbour=name, address=self._address, why=why, cure=cure)

    def dialled(self, name: str) -> None:
        """A neighbour has asked over a connection that it made itself."""
        self._since.pop(name, None)
        if name in self._unable and self._log is not None:
            self._unable.discard(name)
            self._log.event("inbound", neighbour=name, address=self._address)
