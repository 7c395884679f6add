"""Prints what the verification of records has found."""

from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from netfleet.errors import ConfigError, RecordError
from netfleet.privacy.receipts.record import RECORD_FILE
from netfleet.privacy.receipts.summary import Neighbour, Summary, total
from netfleet.privacy.receipts.verification import Verified, compare, verify
from netfleet.sites.planning.certificates import read_certificate
from netfleet.sites.planning.overview import say


def read_authorities(folder: Path, given: Sequence[Path]) -> list[bytes]:
    """Certificates of the authorities that are trusted: those that are given, or the folder's `ca.pem`."""
    _check_record(folder)
    if not given and not (folder / "ca.pem").is_file():
        raise ConfigError(f"{folder} has no ca.pem, whose authority signed the certificates; give it with --ca")
    return [read_certificate(path).public_bytes(Encoding.DER) for path in given or [folder / "ca.pem"]]


def verify_folder(folder: Path, authorities: Sequence[bytes]) -> Verified:
    """Verify a folder's record; the error names file and line."""
    _check_record(folder)
    try:
        return verify(folder, authorities)
    except RecordError as error:
        raise RecordError(f"{folder / RECORD_FILE}: {error}") from None


def _check_record(folder: Path) -> None:
    if not (folder / RECORD_FILE).is_file():
        raise ConfigError(f"{folder} has no {RECORD_FILE}; expected the folder of a site that has been started")


def print_verifications(folder: Path, others: Sequence[Path], given: Sequence[Path], console: Console) -> bool:
    """Verify a record, and others, and compare them with it; whether nothing is wrong.

    The others' records are checked with the same authorities: another folder's `ca.pem` may be made up.
    """
    authorities = read_authorities(folder, given)
    good = True
    for each in (folder, *others):
        good &= _print_verification(each, authorities, console)
    for each in others if good else ():
        good &= _print_comparison(folder, each, console)
    return good


def _print_verification(folder: Path, authorities: Sequence[bytes], console: Console) -> bool:
    """Print what a record says in sum, or what is wrong with it; whether nothing is."""
    try:
        verified = verify_folder(folder, authorities)
    except RecordError as error:
        say(console, f"ALTERED: {error}")
        return False
    summary = verified.summary
    when = f"{summary.first:%Y-%m-%d %H:%M:%S} to {summary.last:%Y-%m-%d %H:%M:%S} UTC"
    say(console, f"{summary.site}: {summary.lines} lines, no alteration found; {when}")
    say(console, f"run {summary.run[:12]}, last line {summary.hash}")
    if summary.neighbours:
        console.print(_table(summary))
    for name, answers in summary.status.items():
        say(console, f"status: at most {answers.count} {'answer' if answers.count == 1 else 'answers'} to {name}")
    for _, address in summary.metrics:
        say(console, f"metrics were open to all who reach {address}")
    for notice in verified.notices:
        say(console, f"NOTE: {notice}")
    return True


def _table(summary: Summary) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for head in ("neighbour", "sent", "confirmed", "unconfirmed", "bytes", "again", "received", "bytes"):
        table.add_column(head, justify="left" if head == "neighbour" else "right", overflow="fold")
    for name, neighbour in sorted(summary.neighbours.items()):
        table.add_row(name, *cells(neighbour))
    return table


def cells(neighbour: Neighbour) -> list[str]:
    """What was sent to a neighbour and came from it, in numbers."""
    sent, received = total(neighbour.sent.values()), total(neighbour.received.values())
    numbers = str(sent.count), str(sent.confirmed), str(sent.unconfirmed), decimal(sent.bytes), str(sent.again)
    return [*numbers, str(received.count), decimal(received.bytes)]


def _print_comparison(folder: Path, other: Path, console: Console) -> bool:
    """Print how two records contradict each other; whether they do not."""
    found = compare(folder, other)
    for sentence in found[:10]:
        say(console, f"CONTRADICTION: {sentence}")
    if len(found) > 10:
        say(console, f"and {len(found) - 10} more")
    if not found:
        say(console, f"{folder} and {other} agree on everything between the two sites")
    return not found
