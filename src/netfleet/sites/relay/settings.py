"""A relay's folder: `relay.toml` and `ca.pem`, made by `netfleet plan`, and later `revoked.pem`. It holds no secret.

address = "relay.example.org:7500"   # what the sites dial; they sign it
listen = "[::]:7500"
names = ["hospital-a", "operator"]   # who may use it
"""

from dataclasses import dataclass
from pathlib import Path

from netfleet.errors import ConfigError
from netfleet.runs.config import make, read_toml
from netfleet.sites.planning.nodes_file import parse_address

RELAY_FOLDER, RELAY_FILE = "relay", "relay.toml"


@dataclass(frozen=True)
class RelaySettings:
    """`relay.toml`."""

    address: str
    listen: str
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        for key in ("address", "listen"):
            parse_address(getattr(self, key), key)


def load_relay(folder: Path) -> RelaySettings:
    path = folder / RELAY_FILE
    if not path.is_file():
        raise ConfigError(f"{folder} is not a relay's folder made by netfleet plan: it has no {RELAY_FILE}")
    return make(RelaySettings, read_toml(path), str(path))


class RelayNames:
    """Who may use a relay: the names in `relay.toml`, which is read again when it changes."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._names = folder, frozenset(load_relay(folder).names)
        self._stamp = self._now()

    def _now(self) -> int:
        return (self._folder / RELAY_FILE).stat().st_mtime_ns

    def current(self) -> frozenset[str]:
        """Raises ConfigError if the file cannot be read; the next call tries again."""
        if (now := self._now()) != self._stamp:
            self._names, self._stamp = frozenset(load_relay(self._folder).names), now
        return self._names
