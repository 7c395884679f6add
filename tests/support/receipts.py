"""Sites that exchange messages and receipts without a network, and what their records hold."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from netfleet.engines.host import Tag
from netfleet.privacy.receipts.lines import Entry, Line, Received, Sent
from netfleet.privacy.receipts.record import HEAD_FILE, RECORD_FILE, Head, Torn, read_record
from netfleet.privacy.receipts.state import Key
from netfleet.privacy.receipts.verification import Verified, compare, verify
from netfleet.sites.network.outbox import Message
from netfleet.sites.network.receipt_format import unpack_receipts
from netfleet.sites.network.wire import Expected
from netfleet.sites.operations.logs import Log
from netfleet.sites.planning.certificates import Identity, load_identity
from netfleet.sites.planning.folders import load_site
from netfleet.sites.runtime.receipts import SiteReceipts
from support.site_processes import plan_sites

TWO: dict[str, Any] = {
    "rounds": 5,
    "topology": {"kind": "path"},
    "problem": {"kind": "quadratics", "d": 7},
    "algorithms": [{"kind": "net-fleet", "K": 2, "eta": 0.05}],
}
E = TypeVar("E", bound=Entry)


class RecordingSite(NamedTuple):
    """A site with its record and nothing else."""

    folder: Path
    receipts: SiteReceipts
    said: io.StringIO

    @property
    def name(self) -> str:
        return self.folder.name

    def logged(self, event: str) -> list[dict[str, Any]]:
        events = [json.loads(line) for line in self.said.getvalue().splitlines()]
        return [each for each in events if each["event"] == event]


def start(folder: Path, identity: Identity | None = None, **options: Any) -> RecordingSite:
    """The process of a site begins, as far as its record is concerned."""
    site, _ = load_site(folder)
    said = io.StringIO()
    own = identity or load_identity(folder, site.name)
    receipts = SiteReceipts(folder, site, own, Log(site.name, said, as_json=True), **options)
    receipts.open()
    return RecordingSite(folder, receipts, said)


def two_sites(folder: Path) -> tuple[RecordingSite, RecordingSite]:
    """Neighbours s0 and s1."""
    plan_sites(folder, TWO, 2)
    return start(folder / "plan" / "s0"), start(folder / "plan" / "s1")


def message(round: int, exchange: int = 0, size: int = 28) -> Message:
    """What a site sends in a round, the same each time that it computes it."""
    generator = torch.Generator().manual_seed(1000 * round + exchange + 1)
    return Message(f"float32[{size // 4}]", torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator))


def pull(sender: RecordingSite, receiver: RecordingSite, tag: Tag, sent: Message | None = None) -> None:
    """The receiver gets a message, without giving a receipt."""
    found = sent or message(*tag)
    note = sender.receipts.offer(receiver.name, Key("message", *tag), found)
    expected = Expected(b"", 0, *tag, found.words, found.data.numel())
    receiver.receipts.received(sender.name, "message", expected, found.data.numpy().data, note)


def give(sender: RecordingSite, receiver: RecordingSite) -> None:
    """The receiver gives its receipts, as with every request."""
    sender.receipts.take(receiver.name, unpack_receipts(receiver.receipts.to_give(sender.name)))


def exchange(sender: RecordingSite, receiver: RecordingSite, tag: Tag) -> None:
    """A message as in a round: recorded, then pulled with the receipts for those before."""
    sender.receipts.offer_to_all(tag, message(*tag), [receiver.name])
    give(sender, receiver)
    pull(sender, receiver, tag)


def lines(folder: Path) -> list[Line]:
    return [line for line in read_record(folder) if not isinstance(line, Torn)]


def entries(folder: Path, kind: type[E]) -> list[E]:
    return [line.entry for line in lines(folder) if isinstance(line.entry, kind)]


def authority(folder: Path) -> bytes:
    return x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes()).public_bytes(Encoding.DER)


def checked(folder: Path) -> Verified:
    """The folder's record is not altered."""
    return verify(folder, [authority(folder)])


def raw_lines(folder: Path) -> list[bytes]:
    return (folder / RECORD_FILE).read_bytes().splitlines(keepends=True)


def write_raw(folder: Path, data: Sequence[bytes]) -> None:
    (folder / RECORD_FILE).write_bytes(b"".join(data))


def write_head(folder: Path) -> None:
    """Let the head name the last line that there is, as somebody who covers the traces would."""
    last = lines(folder)[-1]
    (folder / HEAD_FILE).write_bytes(Head(last.number, last.hash).encode())


def check_records(folders: Sequence[Path]) -> None:
    """No record is altered, all agree, and nothing was received that its sender had not recorded."""
    for folder in folders:
        checked(folder)
    sent = {line.hash: line.entry for folder in folders for line in lines(folder) if isinstance(line.entry, Sent)}
    for folder in folders:
        for got in entries(folder, Received):
            offered = sent[got.sender_line]
            assert folder.name in offered.to
            assert (offered.round, offered.exchange, offered.digest) == (got.round, got.exchange, got.digest)
        for other in folders:
            assert other == folder or compare(folder, other) == []


def altered(data: bytes, place: int, change: Callable[[int], int] = lambda byte: byte ^ 1) -> bytes:
    return data[:place] + bytes([change(data[place])]) + data[place + 1 :]
