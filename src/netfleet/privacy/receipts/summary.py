"""What a record says in sum: who could get what, who confirmed it, what came from whom."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from netfleet.privacy.receipts.lines import (
    Again,
    Differs,
    Ended,
    Line,
    Membership,
    Metrics,
    Receipt,
    Received,
    Repaired,
    RolledBack,
    Sent,
    Started,
    Status,
    Unknown,
    What,
)


@dataclass
class Traffic:
    """Things of one kind in one direction, between the site and a neighbour."""

    count: int = 0
    bytes: int = 0
    confirmed: int = 0  # by the receiver's signature
    again: int = 0  # at most
    first: datetime | None = None
    last: datetime | None = None
    rounds: tuple[int, int] | None = None  # from, to
    contents: set[str] = field(default_factory=set)

    def add(self, time: datetime, entry: Sent | Received) -> None:
        self.count, self.bytes, self.last = self.count + 1, self.bytes + entry.bytes, time
        self.first = self.first or time
        low, high = self.rounds or (entry.round, entry.round)
        self.rounds = min(low, entry.round), max(high, entry.round)
        self.contents.add(entry.content)

    @property
    def unconfirmed(self) -> int:
        return self.count - self.confirmed


@dataclass
class Neighbour:
    """What was exchanged with one neighbour."""

    sent: dict[What, Traffic] = field(default_factory=dict)
    received: dict[What, Traffic] = field(default_factory=dict)


@dataclass
class Answers:
    """Answers about the site's status to one who asks."""

    count: int = 0  # at most
    first: datetime | None = None
    last: datetime | None = None
    values: set[str] = field(default_factory=set)


class Summary:
    """Call `take` with every line in turn; they have been checked before."""

    def __init__(self, lines: Iterable[Line] = ()) -> None:
        self.run = self.site = ""
        self.lines, self.hash = 0, ""
        self.first: datetime | None = None
        self.last: datetime | None = None
        self.starts: list[tuple[datetime, Started]] = []
        self.neighbours: dict[str, Neighbour] = {}
        self.status: dict[str, Answers] = {}
        self.metrics: list[tuple[datetime, str]] = []
        self.changes: list[tuple[datetime, Membership]] = []
        self.rollbacks: list[RolledBack] = []
        self.repairs = 0
        self.differs: list[Differs] = []
        self.unknown: list[Unknown] = []
        self.ended: str | None = None  # why, if the last process has ended in an orderly way
        self.epsilon: float | None = None  # the largest
        self.policies: list[str] = []
        self._sent: dict[int, Sent] = {}
        for line in lines:
            self.take(line)

    def take(self, line: Line) -> None:
        self.lines, self.hash, self.last = line.number, line.hash, line.time
        self.first = self.first or line.time
        entry = line.entry
        self.ended = entry.why if isinstance(entry, Ended) else None
        if isinstance(entry, Started):
            self.run, self.site = entry.run, entry.site
            self.starts.append((line.time, entry))
        elif isinstance(entry, Sent):
            self._take_sent(line, entry)
        elif isinstance(entry, Receipt | Again):
            self._take_about(entry)
        elif isinstance(entry, Received):
            self._neighbour(entry.sender).received.setdefault(entry.what, Traffic()).add(line.time, entry)
        elif isinstance(entry, Status):
            self._take_status(line.time, entry)
        else:
            self._take_other(line.time, entry)

    def _take_sent(self, line: Line, entry: Sent) -> None:
        self._sent[line.number] = entry
        for name in entry.to:
            self._neighbour(name).sent.setdefault(entry.what, Traffic()).add(line.time, entry)
        if entry.epsilon is not None:
            self.epsilon = max(entry.epsilon, self.epsilon or 0.0)
        if entry.policy is not None and entry.policy not in self.policies:
            self.policies.append(entry.policy)

    def _take_about(self, entry: Receipt | Again) -> None:
        name = entry.receiver if isinstance(entry, Receipt) else entry.to
        traffic = self._neighbour(name).sent[self._sent[entry.of].what]
        if isinstance(entry, Receipt):
            traffic.confirmed += 1
        else:
            traffic.again += entry.last - entry.first + 1

    def _take_status(self, time: datetime, entry: Status) -> None:
        answers = self.status.setdefault(entry.to, Answers())
        answers.count += entry.last - entry.first + 1
        answers.first, answers.last = answers.first or time, time
        answers.values.update(entry.values)

    def _take_other(self, time: datetime, entry: object) -> None:
        if isinstance(entry, Membership):
            self.changes.append((time, entry))
        elif isinstance(entry, Metrics):
            self.metrics.append((time, entry.address))
        elif isinstance(entry, RolledBack):
            self.rollbacks.append(entry)
        elif isinstance(entry, Repaired):
            self.repairs += 1
        elif isinstance(entry, Differs):
            self.differs.append(entry)
        elif isinstance(entry, Unknown):
            self.unknown.append(entry)

    def _neighbour(self, name: str) -> Neighbour:
        return self.neighbours.setdefault(name, Neighbour())


def total(parts: Iterable[Traffic]) -> Traffic:
    """Several kinds of things taken together."""
    whole = Traffic()
    for part in parts:
        whole.count, whole.bytes = whole.count + part.count, whole.bytes + part.bytes
        whole.confirmed, whole.again = whole.confirmed + part.confirmed, whole.again + part.again
    return whole
