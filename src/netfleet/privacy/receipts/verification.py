"""Checks a record offline: the chain, every signature, and that lines refer to lines that are there.

It needs `receipts.jsonl`, `receipts.head` and the authority's certificate, and no key. What no check of one record can
find is a site that rewrites the end of its own history which no neighbour has signed yet, or that returns an old copy
of both files. The neighbours' records have the hashes of the missing lines, with the site's signature: `compare`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from netfleet.errors import RecordError
from netfleet.privacy.receipts.lines import Again, Certificate, Line, Receipt, Received, Sent, Started
from netfleet.privacy.receipts.record import Torn, check_head, missing_lines, read_head, read_record
from netfleet.privacy.receipts.signing import Certificates, Statement, fingerprint, from_text
from netfleet.privacy.receipts.summary import Summary


class Verified(NamedTuple):
    """A record in which no alteration was found."""

    summary: Summary
    notices: tuple[str, ...]  # what somebody should look at


def verify(folder: Path, authorities: Sequence[bytes]) -> Verified:
    """Check a record against the certificates of these authorities; raises RecordError at the first altered line."""
    head, summary, checks, torn = read_head(folder), Summary(), Checks(Certificates(authorities)), 0
    for line in read_record(folder):
        if isinstance(line, Torn):
            torn = len(line.data)
            break
        check_head(line, head)
        checks.check(line)
        summary.take(line)
    if summary.lines < head.lines:
        raise RecordError(missing_lines(summary.lines, head))
    if summary.lines == 0:
        raise RecordError("the record is empty; expected a line about the start of the site")
    return Verified(summary, tuple(_notices(summary, torn)))


def _notices(summary: Summary, torn: int) -> Iterator[str]:
    if torn:
        yield (
            f"the last line is incomplete ({torn} bytes): the site was killed while it wrote, or writes now; "
            f"the next start cuts it off"
        )
    for differs in summary.differs:
        yield (
            f"{differs.site} computed its message of round {differs.round}, exchange {differs.exchange}, twice with "
            f"different results ({differs.before[:12]} and {differs.now[:12]})"
        )
    for back in summary.rollbacks:
        yield (
            f"the site was rolled back from round {back.reached} to round {back.round} (rollback {back.number}); "
            f"messages of later rounds were computed again"
        )
    for unknown in summary.unknown:
        yield (
            f"{unknown.receiver} confirms a {unknown.what} of round {unknown.round} that this record does not have; "
            f"compare both records: --against"
        )


class Checks:
    """Checks of one line after the other, beyond the chain."""

    def __init__(self, certificates: Certificates) -> None:
        self._certificates = certificates
        self._started: Started | None = None
        self._known: dict[str, tuple[str, bytes]] = {}  # certificates by fingerprint: whose, and DER
        self._sent: dict[int, tuple[str, Sent]] = {}  # by number: hash, and what
        self._confirmed: set[tuple[int, str]] = set()

    def check(self, line: Line) -> None:
        try:
            self._check(line)
        except RecordError as error:
            raise RecordError(f"line {line.number} is not valid: {error}") from None

    def _check(self, line: Line) -> None:
        entry = line.entry
        if isinstance(entry, Started):
            self._check_started(entry)
        elif self._started is None:
            raise RecordError("a record begins with the start of the site")
        elif isinstance(entry, Certificate):
            certificate = from_text(entry.certificate)
            self._certificates.key(entry.site, certificate)
            self._known[fingerprint(certificate)] = entry.site, certificate
        elif isinstance(entry, Sent):
            self._sent[line.number] = line.hash, entry
        elif isinstance(entry, Receipt):
            self._check_receipt(entry, self._started)
        elif isinstance(entry, Received):
            self._check_received(entry, self._started)
        elif isinstance(entry, Again):
            self._referred(entry.of, entry.to)

    def _check_started(self, entry: Started) -> None:
        before = self._started or entry
        if (entry.run, entry.site, entry.number) != (before.run, before.site, before.number):
            raise RecordError(f"it is of {entry.site} in run {entry.run[:12]}, not of {before.site}, {before.run[:12]}")
        self._certificates.key(entry.site, from_text(entry.certificate))
        self._started = entry

    def _referred(self, number: int, name: str) -> tuple[str, Sent]:
        """The line about something for a neighbour, to which another line refers."""
        hash, entry = self._sent.get(number, ("", None))
        if entry is None or name not in entry.to:
            raise RecordError(f"line {number} says nothing of something for {name}")
        return hash, entry

    def _check_receipt(self, entry: Receipt, site: Started) -> None:
        hash, sent = self._referred(entry.of, entry.receiver)
        if (entry.of, entry.receiver) in self._confirmed:
            raise RecordError(f"{entry.receiver} has confirmed line {entry.of} before")
        statement = _statement(site.run, site.site, sent, hash)
        try:
            self._verify(entry.receiver, entry.certificate, entry.signature, statement.by_receiver(entry.receiver))
        except RecordError as error:
            altered = f"line {entry.of}, one before it or the receipt was altered"
            raise RecordError(
                f"it is no receipt of {entry.receiver} for line {entry.of} ({error}): {altered}"
            ) from None
        self._confirmed.add((entry.of, entry.receiver))

    def _check_received(self, entry: Received, site: Started) -> None:
        statement = _statement(site.run, entry.sender, entry, entry.sender_line)
        self._verify(entry.sender, entry.sender_certificate, entry.sender_signature, statement.by_sender())
        own = from_text(site.certificate), from_text(entry.signature)
        self._certificates.verify(site.site, *own, statement.by_receiver(site.site))

    def _verify(self, name: str, certificate: str, signature: str, data: bytes) -> None:
        whose, found = self._known.get(certificate, ("", b""))
        if whose != name:
            raise RecordError(f"the record does not have the certificate {certificate[:12]} of {name}")
        self._certificates.verify(name, found, from_text(signature), data)


def _statement(run: str, sender: str, entry: Sent | Received, line: str) -> Statement:
    return Statement(run, sender, entry.what, entry.round, entry.exchange, entry.bytes, entry.digest, line)


# ---- two records ----


class _Side:
    """What one record says about the exchange with another site, now."""

    def __init__(self, folder: Path, other: str) -> None:
        self.folder, self.run, self.site = folder, "", ""
        self.sent: dict[str, Line] = {}  # by hash
        self.received: dict[str, Line] = {}  # by the hash of the sender's line
        self.confirmed: dict[str, Line] = {}  # receipts by the hash of the line that they confirm
        self._numbers: dict[int, str] = {}
        for line in read_record(folder):
            if not isinstance(line, Torn):
                self._take(line, other)

    def _take(self, line: Line, other: str) -> None:
        entry = line.entry
        if isinstance(entry, Started):
            self.run, self.site = entry.run, entry.site
        elif isinstance(entry, Sent):
            self.sent[line.hash], self._numbers[line.number] = line, line.hash
        elif isinstance(entry, Received) and entry.sender == other:
            self.received[entry.sender_line] = line
        elif isinstance(entry, Receipt) and entry.receiver == other:
            self.confirmed[self._numbers[entry.of]] = line


def compare(folder: Path, other: Path) -> list[str]:
    """How the records of two sites, each verified, contradict each other; none: they agree.

    The sites may be running. A site writes its line before the other can write the one that refers to it, so what one
    record says is looked for in a later reading of the other.
    """
    names = [_owner(folder), _owner(other)]
    a, b = _Side(folder, names[1]), _Side(other, names[0])
    if a.run != b.run:
        return [f"{other} is the record of run {b.run[:12]}, but {folder} is that of run {a.run[:12]}"]
    return [*_contradictions(a, b), *_contradictions(b, _Side(folder, names[1]))]


def _owner(folder: Path) -> str:
    line = next(read_record(folder), None)
    return line.entry.site if isinstance(line, Line) and isinstance(line.entry, Started) else ""


def _contradictions(record: _Side, later: _Side) -> Iterator[str]:
    """What a record says about another site, and a later reading of that site's record does not have."""
    for hash, line in record.received.items():
        got, sent = line.entry, later.sent.get(hash)
        assert isinstance(got, Received)
        about = f"{record.site} received a {got.what} of round {got.round} from {later.site} (line {line.number})"
        if sent is None:
            yield f"{about} with its signature, but {later.site}'s record has no such line: lines are missing there"
        elif not isinstance(sent.entry, Sent) or _differs(sent.entry, got, record.site):
            yield f"{about}, but line {sent.number} of {later.site}'s record says something else"
    for hash, line in record.confirmed.items():
        if hash not in later.received:
            yield (
                f"{later.site} confirmed line {record.sent[hash].number} of {record.site}'s record (line "
                f"{line.number}), but its own record does not have it: lines are missing there"
            )


def _differs(sent: Sent, got: Received, receiver: str) -> bool:
    same = ("what", "round", "exchange", "bytes", "digest")
    return receiver not in sent.to or any(getattr(sent, name) != getattr(got, name) for name in same)
