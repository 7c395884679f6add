"""A site's receipts: everything that leaves is on record first, and its receiver signs for it.

Before a message can be fetched, its line is on disk. The message travels with the hash of that line and this site's
signature. The neighbour records what it got, signs it together with that hash, and gives the receipt with its next
request; until then it gets no further message. After a crash the same messages have the same lines.
"""

import hashlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import netfleet
from netfleet.engines.host import Tag
from netfleet.errors import FrameError, RecordError, StorageError
from netfleet.privacy.receipts import lines
from netfleet.privacy.receipts.blocks import Blocks
from netfleet.privacy.receipts.lines import Event, Line, Receipt, Received, Sent, What
from netfleet.privacy.receipts.record import RECORD_FILE, Record
from netfleet.privacy.receipts.signing import Certificates, Signer, Statement, fingerprint, to_text
from netfleet.privacy.receipts.state import Key, RecordState, SentLine, key_of
from netfleet.sites.network.outbox import Message
from netfleet.sites.network.receipt_format import GivenReceipt, GivenReceipts, Note, pack_receipts
from netfleet.sites.network.wire import Expected
from netfleet.sites.operations.logs import Log
from netfleet.sites.planning.certificates import Identity
from netfleet.sites.planning.folders import Site
from netfleet.sites.planning.rollbacks import read_rollbacks

#: Lines about receipts for what this record does not have, per neighbour: it can make up any number of them.
MOST_UNKNOWN = 10


class PrivacyState(NamedTuple):
    """What holds when something leaves; None where there is no such thing."""

    epsilon: float | None = None  # spent so far
    policy: str | None = None  # hash of the site's policy


class SiteReceipts:
    """`network.receipts.Receipts` of one site; called from the training and from the network's threads."""

    def __init__(
        self,
        folder: Path,
        site: Site,
        identity: Identity,
        log: Log,
        privacy: Callable[[], PrivacyState] = PrivacyState,
        check_signer: Callable[[str, bytes], None] = lambda name, certificate: None,
    ) -> None:
        """`check_signer` raises CertificateError unless this neighbour may sign with this certificate (DER)."""
        self._folder, self._site, self._log, self._privacy = folder, site, log, privacy
        self._record, self._state, self._signer = Record(folder), RecordState(), Signer(identity)
        self._certificates, self._check_signer = Certificates([self._signer.authority]), check_signer
        self._lock = threading.RLock()
        self._is_open = False
        self._first = 0  # the line with which this process began
        self._served, self._answers = Blocks(), Blocks()
        self._signatures: dict[bytes, bytes] = {}  # made by this process, by what they are under
        self._unknown: dict[str, set[str]] = {}

    def open(self) -> None:
        """Read the record, and begin to add to it; the site's folder must be locked."""
        if self._is_open:
            return
        self._record.open(self._state.take)
        if self._state.run not in ("", self._site.run):
            raise RecordError(
                f"{self._folder / RECORD_FILE} is the record of run {self._state.run[:12]}, but this site's is "
                f"{self._site.run[:12]}; move it to another folder with its receipts.head, and keep both"
            )
        self._is_open = True
        about = self._site.run, self._site.name, self._site.number, netfleet.__version__
        own, authority = to_text(self._signer.certificate), fingerprint(self._signer.authority)
        (begun,) = self._add(lines.Started(*about, own, authority))
        self._first = begun.number
        if (back := self._site.rollbacks).number != self._state.rollbacks:
            self._add(lines.RolledBack(back.number, back.to, read_rollbacks(self._folder).reached))
        self.sync()

    def close(self, why: str) -> None:
        """The process ends; what the site still sends would not be on record, so it must not serve any more."""
        if not self._is_open:
            return
        try:
            self._add(lines.Ended(why))
            self.sync()
        except StorageError as error:
            self._log.event("failed", level="error", why=error)
        finally:
            self._record.close()
            self._is_open = False

    def sync(self) -> None:
        """Wait until everything so far is on disk."""
        self._record.sync()

    def _add(self, *entries: lines.Entry) -> list[Line]:
        with self._lock:
            made = self._record.add(*entries)
            for line in made:
                self._state.take(line)
        return made

    # ---- as a sender ----

    def offer_to_all(self, tag: Tag, message: Message, names: Sequence[str]) -> None:
        """Record a message of a round before anybody can get it."""
        if names:
            self._line(names, Key("message", *tag), message)
            self.sync()

    def offer(self, to: str, key: Key, message: Message) -> Note:
        with self._lock:
            if (missing := self._state.missing_receipt(to, key)) is not None:
                raise FrameError(
                    f"a request for round {key.round}, exchange {key.exchange}, without a valid receipt for round "
                    f"{missing.round}, exchange {missing.exchange}; confirm each message before you ask for the next"
                )
        line = self._line([to], key, message)
        self._count(to, line)
        self.sync()
        statement = self._statement(line)
        return Note(self._signer.certificate, line.hash, self._sign(statement.by_sender()))

    def _line(self, names: Sequence[str], key: Key, message: Message) -> SentLine:
        """The line that says that these neighbours can get a message; it is written if there is none."""
        digest, privacy = message.digest, self._privacy()
        with self._lock:
            before = self._state.sent_to_any(key)
            if before is not None and before.entry.digest != digest and key.what == "message":
                self._note_difference(self._site.name, key, before.entry.digest, digest)
            known = {name: self._state.sent(name, key) for name in names}
            missing = tuple(name for name, line in known.items() if line is None or line.entry.digest != digest)
            if missing:
                size = message.data.numel()
                entry = Sent(key.what, missing, key.round, key.exchange, size, message.words, digest, *privacy)
                self._add(entry)
            line = self._state.sent(names[0], key)
            assert line is not None
            return line

    def _count(self, to: str, line: SentLine) -> None:
        """Record that a neighbour gets the same again, also if it may have got it from an earlier process."""
        with self._lock:
            repeated = self._served.next((to, line.number), begin=-int(line.number > self._first))
            if repeated is not None:
                self._add(lines.Again(line.number, to, *repeated))

    def _statement(self, line: SentLine) -> Statement:
        entry = line.entry
        about = entry.what, entry.round, entry.exchange, entry.bytes, entry.digest
        return Statement(self._site.run, self._site.name, *about, line.hash)

    def _sign(self, data: bytes) -> bytes:
        """Signed once by this process, which may have another certificate than the one before."""
        if data not in self._signatures:
            if len(self._signatures) > 1000:
                self._signatures.clear()
            self._signatures[data] = self._signer.sign(data)
        return self._signatures[data]

    def take(self, giver: str, given: GivenReceipts) -> None:
        for receipt in given.receipts:
            with self._lock:
                line = self._state.with_hash(giver, receipt.line)
                if self._is_known(giver, receipt) if line is None else self._state.is_confirmed(giver, line):
                    continue
            self._check_receipt(giver, given.certificate, receipt)
            if line is None:
                self._note_unknown(giver, receipt)
            elif self._statement(line)[2:7] != receipt[:5]:
                raise FrameError(f"a receipt for something else than line {line.number} of this site's record says")
            else:
                self._confirm(giver, given.certificate, receipt, line)

    def _is_known(self, giver: str, receipt: GivenReceipt) -> bool:
        """Whether a receipt without a line needs no attention: it is old, was noted before, or is one of too many."""
        seen = self._unknown.get(giver, set())
        over = self._state.is_over(giver, receipt.round)
        return over or receipt.line in seen or len(seen) >= MOST_UNKNOWN

    def _check_receipt(self, giver: str, certificate: bytes, receipt: GivenReceipt) -> None:
        statement = Statement(self._site.run, self._site.name, *receipt[:6])
        try:
            self._certificates.verify(giver, certificate, receipt.signature, statement.by_receiver(giver))
        except RecordError as error:
            raise FrameError(f"a receipt for round {receipt.round}, exchange {receipt.exchange}: {error}") from None
        self._check_signer(giver, certificate)

    def _confirm(self, giver: str, certificate: bytes, receipt: GivenReceipt, line: SentLine) -> None:
        with self._lock:
            if not self._state.is_confirmed(giver, line):  # else another request was quicker
                entry = Receipt(line.number, giver, fingerprint(certificate), to_text(receipt.signature))
                self._add(*self._introduced(giver, certificate), entry)

    def _introduced(self, name: str, certificate: bytes) -> list[lines.Entry]:
        """A neighbour's certificate, if the record does not have it yet."""
        known = fingerprint(certificate) in self._state.certificates
        return [] if known else [lines.Certificate(name, to_text(certificate))]

    def _note_unknown(self, giver: str, receipt: GivenReceipt) -> None:
        self._unknown.setdefault(giver, set()).add(receipt.line)
        about = receipt.what, receipt.round, receipt.exchange, receipt.digest, receipt.line
        self._add(lines.Unknown(giver, *about))
        why = f"{giver} confirms what this site's record does not have; were lines removed, or is it an old copy?"
        self._log.event("unknown", level="error", neighbour=giver, round=receipt.round, why=why)

    def _note_difference(self, site: str, key: Key, before: str, now: str) -> None:
        self._add(lines.Differs(site, key.round, key.exchange, before, now))
        why = f"it was computed again with another result: {before[:12]} before, {now[:12]} now"
        self._log.event("differs", level="error", neighbour=site, round=key.round, exchange=key.exchange, why=why)

    def unconfirmed(self, name: str) -> bool:
        """Whether a neighbour has not confirmed a message yet."""
        with self._lock:
            return any(line.entry.what == "message" for line in self._state.unconfirmed(name))

    # ---- as a receiver ----

    def received(self, sender: str, what: What, expected: Expected, data: memoryview, note: Note | None) -> None:
        if note is None:
            raise FrameError("a message without a note from its sender's record")
        digest, key = hashlib.sha256(data).hexdigest(), Key(what, expected.t, expected.call)
        statement = Statement(self._site.run, sender, *key, len(data), digest, note.line)
        try:
            self._certificates.verify(sender, note.certificate, note.signature, statement.by_sender())
        except RecordError as error:
            raise FrameError(f"a message that is not what its sender's note says: {error}") from None
        self._check_signer(sender, note.certificate)
        signature = self._sign(statement.by_receiver(self._site.name))
        with self._lock:
            before = self._state.received(sender, key)
            if before is not None and (before.digest, before.sender_line) == (digest, note.line):
                return  # the same again
            if before is not None and before.digest != digest and what == "message":
                self._note_difference(sender, key, before.digest, digest)
            signed = fingerprint(note.certificate), to_text(note.signature), to_text(signature)
            about = expected.t, expected.call, len(data), expected.words, digest, note.line
            self._add(*self._introduced(sender, note.certificate), Received(what, sender, *about, *signed))

    def to_give(self, to: str) -> bytes:
        with self._lock:
            things = self._state.to_confirm(to)
        return pack_receipts(self._signer.certificate, [self._receipt(each) for each in things])

    def _receipt(self, entry: Received) -> GivenReceipt:
        key, about = key_of(entry), (entry.bytes, entry.digest, entry.sender_line)
        statement = Statement(self._site.run, entry.sender, *key, *about)
        return GivenReceipt(*key, *about, self._sign(statement.by_receiver(self._site.name)))

    # ---- other things ----

    def note_status(self, to: str, values: Sequence[str]) -> None:
        """Record an answer about the site's status before it leaves; one line stands for many answers."""
        with self._lock:
            block = self._answers.next((to, 0))
            if block is not None:
                self._add(lines.Status(to, *block, tuple(values)))
        self.sync()

    def note_metrics(self, address: str) -> None:
        self._add(lines.Metrics(address))
        self.sync()

    def note_change(self, event: Event, site: str, round: int, why: str = "") -> None:
        """Record a change of the neighbourhood."""
        self._add(lines.Membership(event, site, round, why))
        self.sync()
