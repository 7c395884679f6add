"""What a site must remember of its record: made from its lines, at the start and as they are added.

Only the last rounds are kept. Neighbours are at most one round apart, so nobody asks for older messages or confirms
them.
"""

from typing import NamedTuple, TypeVar

from netfleet.privacy.receipts.lines import (
    Certificate,
    Line,
    Membership,
    Receipt,
    Received,
    RolledBack,
    Sent,
    Started,
    What,
)
from netfleet.privacy.receipts.signing import fingerprint, from_text

#: Rounds of which things are kept: two for which receipts are given, so a sender that lost one in a power cut gets it
#: with the next request; and one more at the sender, which may be a round ahead by then.
CONFIRMED, KEPT = 2, 3
V = TypeVar("V")


class Key(NamedTuple):
    """Which thing this is, between two sites."""

    what: What
    round: int
    exchange: int


class SentLine(NamedTuple):
    """A thing that a neighbour can get, or got."""

    number: int  # of the line
    hash: str
    entry: Sent


class RecordState:
    """Call `take` with every line in turn."""

    def __init__(self) -> None:
        self.run, self.joined = "", -1  # the round in which this site joined the last time
        self.rollbacks = 0
        self.certificates: dict[str, bytes] = {}  # neighbours' certificates by fingerprint
        self._sent: dict[str, dict[Key, SentLine]] = {}  # by neighbour
        self._lines: dict[str, dict[str, SentLine]] = {}  # the same by their hash, and those that were replaced
        self._unconfirmed: dict[str, dict[Key, SentLine]] = {}  # of each thing the last line
        self._confirmed: dict[str, set[int]] = {}  # numbers of lines
        self._received: dict[str, dict[Key, Received]] = {}

    def take(self, line: Line) -> None:
        entry = line.entry
        if isinstance(entry, Started):
            self.run = entry.run
        elif isinstance(entry, Certificate):
            certificate = from_text(entry.certificate)
            self.certificates[fingerprint(certificate)] = certificate
        elif isinstance(entry, Sent):
            self._take_sent(SentLine(line.number, line.hash, entry))
        elif isinstance(entry, Receipt):
            self._take_receipt(entry)
        elif isinstance(entry, Received):
            _keep(self._received.setdefault(entry.sender, {}), key_of(entry), entry, CONFIRMED)
        elif isinstance(entry, Membership):
            self._take_change(entry)
        elif isinstance(entry, RolledBack):
            self._take_rollback(entry)

    def _take_rollback(self, entry: RolledBack) -> None:
        """Nobody asks for what was sent before, or confirms it: all sites are back in that round."""
        self.rollbacks, self.joined = entry.number, min(self.joined, entry.round)
        for things in (self._sent, self._lines, self._unconfirmed, self._confirmed, self._received):
            things.clear()

    def _take_sent(self, sent: SentLine) -> None:
        for name in sent.entry.to:
            for things in (self._sent, self._unconfirmed):
                _keep(things.setdefault(name, {}), key_of(sent.entry), sent, KEPT)
            lines = self._lines.setdefault(name, {})
            lines[sent.hash] = sent
            for old in [line for line in lines.values() if line.entry.round <= sent.entry.round - KEPT]:
                del lines[old.hash]
                self._confirmed.setdefault(name, set()).discard(old.number)

    def _take_receipt(self, entry: Receipt) -> None:
        self._confirmed.setdefault(entry.receiver, set()).add(entry.of)
        waiting = self._unconfirmed.get(entry.receiver, {})
        for key in [key for key, sent in waiting.items() if sent.number == entry.of]:
            del waiting[key]

    def _take_change(self, entry: Membership) -> None:
        """A new link has nothing to do with what was sent over the old one."""
        if entry.event in ("joined", "rejoined"):
            self.joined = entry.round
            self._sent.clear()
            self._unconfirmed.clear()
        elif entry.event in ("admitted", "returned"):
            self._unconfirmed.pop(entry.site, None)

    # ---- as a sender ----

    def sent(self, name: str, key: Key) -> SentLine | None:
        """The last line of this thing for a neighbour."""
        return self._sent.get(name, {}).get(key)

    def sent_to_any(self, key: Key) -> SentLine | None:
        """The last line of this thing, for whomever."""
        found = [things[key] for things in self._sent.values() if key in things]
        return max(found, key=lambda line: line.number, default=None)

    def with_hash(self, name: str, hash: str) -> SentLine | None:
        """The line with this hash, if it is about something for this neighbour."""
        return self._lines.get(name, {}).get(hash)

    def is_confirmed(self, name: str, line: SentLine) -> bool:
        return line.number in self._confirmed.get(name, ())

    def is_over(self, name: str, round: int) -> bool:
        """Whether a round is so long ago that its lines are not kept, or before this site joined."""
        newest = max((line.entry.round for line in self._lines.get(name, {}).values()), default=-1)
        return round <= newest - KEPT or round < self.joined

    def unconfirmed(self, name: str) -> list[SentLine]:
        """What a neighbour has not confirmed."""
        return list(self._unconfirmed.get(name, {}).values())

    def missing_receipt(self, name: str, wanted: Key) -> Key | None:
        """The first earlier message that a neighbour has not confirmed, although it asks for this one."""
        keys = sorted(key for key in self._unconfirmed.get(name, {}) if key.what == wanted.what == "message")
        return next((key for key in keys if wanted.round - CONFIRMED < key.round and key < wanted), None)

    # ---- as a receiver ----

    def received(self, name: str, key: Key) -> Received | None:
        return self._received.get(name, {}).get(key)

    def to_confirm(self, name: str) -> list[Received]:
        """The last things of a neighbour, for which it may want receipts."""
        return list(self._received.get(name, {}).values())


def key_of(entry: Sent | Received) -> Key:
    return Key(entry.what, entry.round, entry.exchange)


def _keep(things: dict[Key, V], key: Key, value: V, rounds: int) -> None:
    """Keep a thing, and forget those of rounds that are over."""
    things[key] = value
    newest = max(each.round for each in things)
    for old in [each for each in things if each.round <= newest - rounds]:
        del things[old]
