"""Lines of a site's record: what each kind says, and its bytes.

    {"line":7,"previous":"…","time":"2027-01-31T09:15:02.123456Z","kind":"sent",…,"hash":"…"}

`hash` is SHA-256 of the line's bytes before `,"hash":`, in hexadecimal; `previous` is the hash of the line before. So
each line fixes all earlier ones. There is one way to write a line: JSON without spaces, in ASCII, its keys in the order
of the fields below. Bytes that would be understood otherwise than they are written are refused.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import ClassVar, Literal, NamedTuple, get_type_hints

from netfleet.errors import RecordError
from netfleet.registry import fits

#: The `previous` of the first line.
NOTHING = "0" * 64
#: What leaves a site in bytes of its own: a message of a round, a model for a site that joins, facts about a
#: loop, a public key for noise on links.
What = Literal["message", "model", "facts", "key"]
#: What can happen to the neighbourhood: this site joined or came back; a neighbour got a link for the first time or
#: again; this site or a neighbour left; a neighbour was given up; one was thrown out.
Event = Literal["joined", "rejoined", "admitted", "returned", "left", "lost", "evicted"]


@dataclass(frozen=True)
class Entry:
    """What a line says; a class for each kind."""

    kind: ClassVar[str]


@dataclass(frozen=True)
class Started(Entry):
    """The site's process has started; the record's first line is of this kind."""

    kind = "started"
    run: str  # hash of the run, in hexadecimal
    site: str
    number: int  # in the plan
    netfleet: str  # version
    certificate: str  # the site's, DER in base64
    authority: str  # SHA-256 of the authority's certificate


@dataclass(frozen=True)
class Repaired(Entry):
    """A crash had left the end of the file incomplete; it was cut off."""

    kind = "repaired"
    bytes: int
    digest: str  # SHA-256 of what was cut off


@dataclass(frozen=True)
class Certificate(Entry):
    """A neighbour's certificate, before the first line that needs it."""

    kind = "certificate"
    site: str
    certificate: str  # DER in base64


@dataclass(frozen=True)
class Sent(Entry):
    """From now on these neighbours can get these bytes; the line is on disk before they can."""

    kind = "sent"
    what: What
    to: tuple[str, ...]
    round: int  # −1 before round 0
    exchange: int  # its number within the round
    bytes: int
    content: str  # "float32[10330] in 41320 float32[10330] in 41320"
    digest: str  # SHA-256 of the bytes
    epsilon: float | None  # privacy spent so far; null: none is counted
    policy: str | None  # hash of the policy in force; null: there is none


@dataclass(frozen=True)
class Again(Entry):
    """A neighbour asks again for what an earlier line says; it gets the same bytes: repetitions `first` to `last`."""

    kind = "again"
    of: int  # the line
    to: str
    first: int
    last: int  # at most


@dataclass(frozen=True)
class Receipt(Entry):
    """A neighbour has confirmed with its signature what an earlier line says, and the hash of that line."""

    kind = "receipt"
    of: int  # the line
    receiver: str
    certificate: str  # SHA-256
    signature: str  # in base64


@dataclass(frozen=True)
class Received(Entry):
    """Bytes of a neighbour, with its signature and this site's."""

    kind = "received"
    what: What
    sender: str
    round: int
    exchange: int
    bytes: int
    content: str
    digest: str
    sender_line: str  # hash of the line in the sender's record
    sender_certificate: str  # SHA-256
    sender_signature: str
    signature: str  # this site's, which the sender gets as its receipt


@dataclass(frozen=True)
class Differs(Entry):
    """A message of a round was computed twice with different results, by this site or by a neighbour."""

    kind = "differs"
    site: str
    round: int
    exchange: int
    before: str  # SHA-256
    now: str


@dataclass(frozen=True)
class Unknown(Entry):
    """A neighbour confirms a line that is not in this record: lines are missing here."""

    kind = "unknown"
    receiver: str
    what: What
    round: int
    exchange: int
    digest: str
    sender_line: str


@dataclass(frozen=True)
class Status(Entry):
    """Answers number `first` to `last`, at most, to someone who asks for the site's status."""

    kind = "status"
    to: str
    first: int
    last: int
    values: tuple[str, ...]  # names of the measured values in them


@dataclass(frozen=True)
class Metrics(Entry):
    """From now on the site's metrics can be read without a certificate at this address."""

    kind = "metrics"
    address: str


@dataclass(frozen=True)
class Membership(Entry):
    """A change of the site's neighbourhood."""

    kind = "membership"
    event: Event
    site: str
    round: int  # the first with, or the first without
    why: str


@dataclass(frozen=True)
class RolledBack(Entry):
    """The site was taken back to an earlier round: messages of the rounds after it are computed again."""

    kind = "rolled-back"
    number: int  # of this rollback
    round: int
    reached: int  # the round in which the site was before


@dataclass(frozen=True)
class Ended(Entry):
    """The site's process ends in an orderly way."""

    kind = "ended"
    why: str


KINDS: dict[str, type[Entry]] = {cls.kind: cls for cls in Entry.__subclasses__()}
_HINTS = {cls: {field.name: get_type_hints(cls)[field.name] for field in fields(cls)} for cls in KINDS.values()}
_BEFORE_HASH, _AFTER_HASH = b',"hash":"', b'"}'


class Line(NamedTuple):
    """A line with its place in the chain."""

    number: int  # from 1 on
    previous: str
    time: datetime
    entry: Entry
    hash: str
    size: int  # bytes


def encode(number: int, previous: str, time: datetime, entry: Entry) -> tuple[Line, bytes]:
    """A line and its bytes, with the line break."""
    values = {name: getattr(entry, name) for name in _HINTS[type(entry)]}
    when = time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    table = {"line": number, "previous": previous, "time": when, "kind": entry.kind, **values}
    start = json.dumps(table, separators=(",", ":"), allow_nan=False).encode()[:-1]
    digest = hashlib.sha256(start).hexdigest()
    data = start + _BEFORE_HASH + digest.encode() + _AFTER_HASH + b"\n"
    return Line(number, previous, time, entry, digest, len(data)), data


def decode(data: bytes) -> Line:
    """A line from bytes of any origin (with its line break); raises RecordError and nothing else."""
    start, found, end = data.rpartition(_BEFORE_HASH)
    digest = end.removesuffix(_AFTER_HASH + b"\n").decode("ascii", "replace")
    if not found or hashlib.sha256(start).hexdigest() != digest:
        raise RecordError("its content does not have the hash that it names")
    try:
        table = json.loads(start + b"}")
        number, previous, when, kind = (table.pop(key) for key in ("line", "previous", "time", "kind"))
        if not fits(number, int) or not fits(previous, str):
            raise ValueError
        line, again = encode(number, previous, datetime.fromisoformat(when), _entry(kind, table))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise RecordError("it is not a line that netfleet writes") from None
    if again != data:
        raise RecordError("it is not written as netfleet writes it")
    return line


def _entry(kind: str, table: Mapping[str, object]) -> Entry:
    hints = _HINTS[KINDS[kind]]
    if table.keys() != hints.keys() or not all(fits(table[name], hint) for name, hint in hints.items()):
        raise ValueError
    return KINDS[kind](**{name: tuple(v) if isinstance(v, list) else v for name, v in table.items()})
