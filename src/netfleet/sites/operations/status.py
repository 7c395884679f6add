"""The status of a site as one typed record, and as JSON between a site and whoever asks it.

The answer of another site is checked and cleaned here before anybody uses it.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar, get_type_hints

from netfleet.errors import TransportError
from netfleet.registry import fits
from netfleet.sites.network.grpc_transport import GrpcTransport
from netfleet.sites.network.wait_cause import State
from netfleet.sites.operations.logs import printable
from netfleet.sites.planning.alarm_settings import Alarm
from netfleet.sites.planning.certificates import OPERATOR, Identity, load_identity
from netfleet.sites.planning.folders import SITE_FILE, Neighbour, Site, all_neighbours, all_sites, read_site
from netfleet.sites.policy.peers import KnownPeers, Peers
from netfleet.sites.policy.settings import ShowRules
from netfleet.sites.relay.client import RelayClient

#: Sums in a sketch, and seconds for an answer.
SUMS, TIMEOUT = 64, 5.0
#: Values of an evaluation that do not depend on the data.
_COUNTERS = ("round", "eta", "bytes", "samples", "seconds", "epsilon")
_T = TypeVar("_T")
_S = TypeVar("_S", Site, Neighbour)


class Sketch(NamedTuple):
    """Random sums of y − g after round t (see `runtime/status_builder.py`)."""

    t: int
    sums: tuple[float, ...]


@dataclass(frozen=True)
class LinkStatus:
    """A link to a neighbour, as one end sees it."""

    name: str
    number: int
    round: int  # of the neighbour, at its last sign of life
    lag: int  # rounds behind this site
    heard: float | None  # seconds since its last sign of life
    waiting: str  # why the site waits for it; empty: it does not
    lost: int | None  # the first round without it
    left: bool  # whether it wanted to leave
    there: bool  # whether it takes part now
    sent: int  # bytes
    received: int
    silent: bool = False  # whether it did not answer the last time


@dataclass(frozen=True)
class WaitStatus:
    """A wait of a site, and the site that is its cause."""

    seconds: float  # since it began
    cause: int  # the number of that site; the site's own, if a neighbour cannot reach it
    name: str  # of that site, or "site 3", as far as the site knows
    state: State  # what that site is
    since: float  # seconds for which it is so


@dataclass(frozen=True)
class SiteStatus:
    """A site's answer to `netfleet status`."""

    site: str
    number: int
    run: str
    algorithm: str
    state: str  # training, waiting, holding, finished or left
    round: int
    rounds: int
    seconds: float
    bytes: int
    record: Mapping[str, float | None]  # the last evaluation
    neighbours: tuple[LinkStatus, ...]
    known: Mapping[str, int]  # the last known round of every site, by number
    apart: tuple[str, ...]  # sites that nobody in reach has heard from for long
    refused: int
    certificate_days: int
    sketches: tuple[Sketch, ...]
    wait: WaitStatus | None = None  # None: it does not wait
    round_seconds: float | None = None  # of a round, as a mean over the last ones with their waits
    left_seconds: float | None = None  # until the last round is done, at this pace
    policy: str = ""  # the beginning of the SHA-256 of the site's policy; empty: it has none
    revocations: int = 0  # the number of the revocation list in force; 0: there is none
    version: str = ""  # of netfleet
    alarms: tuple[Alarm, ...] = ()  # that nobody has looked at
    no_inbound: tuple[str, ...] = ()  # neighbours that cannot dial this site at its address

    def for_neighbour(self, name: str, show: ShowRules) -> "SiteStatus":
        """What a neighbour may see: of the links its own, and no sketch."""
        own = tuple(link for link in self.neighbours if link.name == name)
        record = self.record if show.scores_to_neighbours else without_scores(self.record)
        return replace(self, neighbours=own, sketches=(), apart=(), no_inbound=(), record=record, alarms=())

    def for_operator(self, show: ShowRules) -> "SiteStatus":
        """What the operator may see: all, unless the site's policy says otherwise."""
        record = self.record if show.scores_to_operator else without_scores(self.record)
        alarms = tuple(each for each in self.alarms if show.scores_to_operator or each.kind == "norm")
        sketches = self.sketches if show.sketches_to_operator else ()
        return replace(self, record=record, sketches=sketches, alarms=alarms)

    def measured(self) -> list[str]:
        """Names of the values that were computed from the site's data."""
        values = [name for name, value in self.record.items() if value is not None and name not in _COUNTERS]
        return sorted([*values, *(["sketches"] if self.sketches else [])])

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def without_scores(record: Mapping[str, float | None]) -> dict[str, float | None]:
    """An evaluation without what was computed from data: losses, accuracies and other metrics."""
    return {name: value for name, value in record.items() if name in _COUNTERS}


def parse_status(data: bytes, name: str) -> SiteStatus:
    """The status of the site with this name, from bytes of any origin; raises TransportError and nothing else."""
    try:
        table = json.loads(data)
    except (ValueError, RecursionError):
        raise TransportError("answered something that is not JSON") from None
    try:
        links = tuple(_record(LinkStatus, each) for each in table["neighbours"])
        sketches = tuple(_record(Sketch, dict(zip(Sketch._fields, each, strict=True))) for each in table["sketches"])
        wait = None if table["wait"] is None else _record(WaitStatus, table["wait"])
        alarms = tuple(_record(Alarm, dict(zip(Alarm._fields, each, strict=True))) for each in table["alarms"])
        inner = {"neighbours": links, "sketches": sketches, "wait": wait, "alarms": alarms}
        status = _record(SiteStatus, {**table, **inner})
    except (KeyError, TypeError, ValueError):
        status = None
    if status is None or status.site != name or any(len(sketch.sums) != SUMS for sketch in status.sketches):
        raise TransportError("answered something that is not this site's status; it may run another version")
    return status


def _record(cls: type[_T], table: Mapping[str, object]) -> _T:
    """A record from a table that has all of its fields, each of its type; unknown keys are ignored."""
    return cls(**{key: _checked(table[key], hint) for key, hint in get_type_hints(cls).items()})


def _checked(value: object, hint: object) -> object:
    """A value of the right type, without control characters that a terminal would obey."""
    if not fits(value, hint):
        raise ValueError
    if isinstance(value, dict):
        inner = hint.__args__[1]  # type: ignore[attr-defined]
        return {printable(str(key)): _checked(each, inner) for key, each in value.items()}
    if isinstance(value, list):
        return tuple(printable(each) if isinstance(each, str) else each for each in value)
    return printable(value) if isinstance(value, str) else value


class StatusAnswer(NamedTuple):
    """A site's status, or why there is none."""

    name: str
    status: SiteStatus | None
    why: str = ""
    left: bool = False  # a neighbour says that this site, which does not answer, has left the training

    @property
    def missing(self) -> bool:
        """Whether the site should have answered."""
        return self.status is None and not self.left


def without_left(answers: Sequence[StatusAnswer]) -> list[StatusAnswer]:
    """The answers, where those that have left need not answer any more."""
    links = [link for answer in answers if answer.status is not None for link in answer.status.neighbours]
    left = {link.name for link in links if link.left}
    return [a._replace(left=True, why="has left the training") if a.missing and a.name in left else a for a in answers]


def ask_folder(folder: Path) -> list[StatusAnswer]:
    """Ask all sites of a plan's or operator's folder, or a site and its neighbours from the site's own folder."""
    if (folder / SITE_FILE).is_file():
        site = read_site(folder)
        identity = load_identity(folder, site.name)
        own = replace(site, address=site.address or site.listen)
        known = KnownPeers(folder, identity.ca)
        return ask_all([own, *_taking_part(all_neighbours(folder), known)], identity, peers=known)
    operator = folder / OPERATOR if (folder / OPERATOR).is_dir() else folder
    identity = load_identity(operator, OPERATOR)
    sites, peers = all_sites(operator), KnownPeers(operator, identity.ca)
    return ask_all(_taking_part(sites, peers), identity, peers=peers)


def _taking_part(sites: Sequence[_S], peers: Peers) -> list[_S]:
    """Without those that the operator has evicted."""
    return [site for site in sites if peers.why_evicted(site.name) is None]


def ask_all(
    sites: Sequence[Site | Neighbour],
    identity: Identity,
    timeout: float = TIMEOUT,
    peers: Peers | None = None,
) -> list[StatusAnswer]:
    """Ask all of them at once, those that cannot be dialled through the relay that a site names; without `peers`
    whoever has a certificate of the authority may answer.
    """
    relay = next((site.relay for site in sites if isinstance(site, Site)), "")

    async def ask() -> list[StatusAnswer]:
        transport = GrpcTransport(identity, peers=peers, relay=RelayClient(relay, identity) if relay else None)
        try:
            return without_left(await asyncio.gather(*(_ask(site, transport, timeout) for site in sites)))
        finally:
            await transport.close()

    return asyncio.run(ask())


async def _ask(site: Site | Neighbour, transport: GrpcTransport, timeout: float) -> StatusAnswer:
    try:
        return StatusAnswer(site.name, parse_status(await transport.status(site, timeout), site.name))
    except TransportError as error:
        return StatusAnswer(site.name, None, str(error))
