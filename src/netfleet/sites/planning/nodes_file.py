"""nodes.toml: which sites train together, and where the others reach them.

    patience = 0                     # seconds after which an unreachable neighbour is given up; 0: never
    rejoin = false                   # whether a site that was given up comes back by itself
    keep = 16                        # checkpoints that each site keeps, for netfleet rollback
    on_alarm = "continue"            # what a site does after an alarm; "hold": wait until somebody has looked
    alarm = { norm = 100 }           # how unusual numbers must be for that (`alarm_settings.py`)
    relay = "10.0.0.9:7500"          # what sites dial whose neighbours cannot dial them, nor they their neighbours
    [[nodes]]
    name = "hospital-a"              # letters, digits, - and _
    address = "10.0.0.1:7400"        # what the others dial; IPv6 as [::1]:7400
    listen = "0.0.0.0:7400"          # default: all interfaces, on the address's port
    reachable = false                # in place of an address: nobody can dial the site, it only dials out
    request = "hospital-a.csr"       # its certificate request, relative to this file; default: netfleet makes a key
    rows = 303                       # its training rows, for problem.weights = "rows" where sites load their own data

Sites and workers have the same order.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

from netfleet.errors import ConfigError
from netfleet.runs.config import Table, make, read_toml
from netfleet.sites.planning.alarm_settings import KEEP, USUAL, AlarmSettings, OnAlarm, check_keep, read_alarm

#: Names that have a folder of their own in a plan.
RESERVED = ("operator", "ca")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")


class Address(NamedTuple):
    """A host, as an IP address in its short form or a name in lower case, and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class NodeEntry:
    """One `[[nodes]]` table of nodes.toml."""

    name: str
    address: str = ""
    listen: str = ""
    request: str = ""
    rows: int = 0
    reachable: bool = True

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.reachable != bool(self.address):
            raise ConfigError(
                f"{self.name} needs either an address, which the others dial, or reachable = false if nobody can dial "
                f"it; got address = {self.address!r} and reachable = {str(self.reachable).lower()}"
            )
        if self.rows < 0:
            raise ConfigError(f"rows of {self.name} must be its number of training rows, got {self.rows}")
        if self.host in ("0.0.0.0", "::"):
            raise ConfigError(
                f"address of {self.name}: other machines cannot reach {self.address}; write the address at which the "
                f"other sites reach it, and listen = {self.address!r} if it should listen everywhere"
            )
        self.listened  # noqa: B018 (raises)

    @property
    def dialled(self) -> str:
        """The address at which the others reach the site, in its short form; empty if they cannot."""
        return str(parse_address(self.address, f"address of {self.name}")) if self.address else ""

    @property
    def host(self) -> str:
        return parse_address(self.address, f"address of {self.name}").host if self.address else ""

    @property
    def listened(self) -> str:
        """Where the site listens; empty: nowhere."""
        everywhere = f"[::]:{parse_address(self.address, 'address').port}" if self.address else ""
        return (
            str(parse_address(self.listen or everywhere, f"listen of {self.name}")) if self.listen or everywhere else ""
        )


@dataclass(frozen=True)
class NodesFile:
    """nodes.toml: all sites in the order of the workers."""

    nodes: tuple[NodeEntry, ...]
    patience: float = 0.0
    rejoin: bool = False
    keep: int = KEEP
    on_alarm: OnAlarm = "continue"
    alarm: AlarmSettings = USUAL
    relay: str = ""

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ConfigError("there are no sites; add a [[nodes]] table with a name for each, and its address")
        check_patience(self.patience)
        check_keep(self.keep, self.on_alarm)
        _check_unique((node.name for node in self.nodes), "name")
        _check_unique((node.dialled for node in self.nodes if node.address), "address")
        if self.relay:
            _check_relay(self.relay, self.nodes)
        check_hosts(self.nodes)


def load_nodes(path: Path) -> NodesFile:
    table = read_toml(path)
    found = tables(table, "nodes", path)
    try:
        nodes = [make(NodeEntry, each, f"[[nodes]] number {number}") for number, each in enumerate(found, start=1)]
        nodes = [replace(n, request=str(path.parent / n.request)) if n.request else n for n in nodes]
        return make(NodesFile, {**table, "nodes": nodes, "alarm": read_alarm(table)}, "the file")
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def tables(table: Table, key: str, path: Path) -> list[Table]:
    """The `[[key]]` tables of a file."""
    found = table.get(key, [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ConfigError(f"{path}: {key} must be [[{key}]] tables, got {found!r}")
    return found


def check_name(name: str) -> None:
    """Raise unless the name is valid for a folder, a certificate and a host."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"name {name!r} is not valid for a site; use up to 63 letters, digits, - and _, a letter or digit first"
        )
    if name.lower() in RESERVED:
        raise ConfigError(f"name {name!r} is reserved ({', '.join(RESERVED)}); call the site something else")


def check_patience(seconds: float) -> None:
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ConfigError(f"patience must be a number of seconds, 0 (wait for ever) or more, got {seconds}")


def parse_address(text: str, where: str) -> Address:
    """The host and port of "host:port"; an IPv6 host stands in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or (":" in host) != (host.startswith("[") and host.endswith("]")):
        raise ConfigError(f'{where} must be "host:port", with an IPv6 host in brackets ("[::1]:7400"), got {text!r}')
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise ConfigError(f"{where} must end in a port from 1 to 65535, got {text!r}")
    return Address(_host(host, where), int(port))


def _host(host: str, where: str) -> str:
    try:
        found = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        found = None
    zoned = isinstance(found, IPv6Address) and found.scope_id is not None
    if found is not None and not zoned and isinstance(found, IPv6Address) == host.startswith("["):
        return str(found)
    labels = host.split(".")
    if len(host) > 253 or labels[-1].isdigit() or not all(_LABEL.fullmatch(label) for label in labels):
        raise ConfigError(f"{where}: {host!r} is neither an IP address nor a host's name; for example 10.0.0.1:7400")
    return host.lower()


def _check_unique(values: Iterable[str], what: str) -> None:
    """Raise if two are equal up to case: host names and some file systems ignore case."""
    seen: set[str] = set()
    for value in values:
        if value.lower() in seen:
            raise ConfigError(f"two sites have the {what} {value!r}; each needs one of its own")
        seen.add(value.lower())


def _check_relay(relay: str, nodes: Iterable[NodeEntry]) -> None:
    """Raise unless the relay has an address and a folder of its own."""
    address = str(parse_address(relay, "relay"))
    for node in nodes:
        if node.name.lower() == "relay" or node.dialled == address:
            raise ConfigError(f"{node.name} has the name or the address of the relay, {address}; change one of them")


def check_hosts(nodes: Iterable[NodeEntry]) -> None:
    """Raise if a site's host has the name of another site: its certificate would then be valid for both."""
    names = {node.name.lower(): node.name for node in nodes}
    for node in nodes:
        host = node.host
        if host in RESERVED or names.get(host, node.name) != node.name:
            raise ConfigError(
                f"the host of {node.name}, {host!r}, is the name of another site, whose certificate it would share; "
                f"write its IP address or its full name"
            )
