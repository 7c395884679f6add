"""What a site hears from its neighbours about its own address: who cannot dial it, and why."""

from typing import Protocol


class Events(Protocol):
    """A site's log."""

    def event(self, what: str, *, level: str = "info", **fields: object) -> None: ...


class Inbound:
    """Which neighbours could not dial this site, as they say. Every change is logged once, if there is a log."""

    def __init__(self, address: str = "", log: Events | None = None) -> None:
        self._address, self._log, self._unable = address, log, set[str]()

    def not_dialled(self, name: str, why: str) -> None:
        """A neighbour says that it could not dial this site, and asks over a connection that this site has made."""
        if name in self._unable or self._log is None:
            return
        self._unable.add(name)
        cure = (
            f"let {name} through the firewall to {self._address} (netfleet plan prints the rules), or plan this site "
            f"without an address; until then {name} asks over the connection that this site makes"
        )
        self._log.event("no_inbound", level="warning", neighbour=name, address=self._address, why=why, cure=cure)

    def dialled(self, name: str) -> None:
        """A neighbour has asked over a connection that it made itself."""
        if name in self._unable and self._log is not None:
            self._unable.discard(name)
            self._log.event("inbound", neighbour=name, address=self._address)
