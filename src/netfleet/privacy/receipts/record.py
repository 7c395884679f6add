"""The files of a site's record: lines are only ever added, and are on disk when `sync` returns.

    receipts.jsonl   the lines
    receipts.head    the number of lines that are on disk for certain, and the hash of the last of them

The head is written after its lines are on disk, so a crash leaves it behind the lines, never ahead. Fewer lines than it
names were cut off by somebody. What a crash leaves behind those lines incomplete is cut off at the next start, which
the record says.
"""

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from netfleet.errors import RecordError
from netfleet.files import sync_folder, write_atomically, writing
from netfleet.privacy.receipts.lines import NOTHING, Entry, Line, Repaired, decode, encode

RECORD_FILE, HEAD_FILE = "receipts.jsonl", "receipts.head"
#: Bytes of the head, always the same number: it is overwritten in place.
_HEAD_SIZE = 128
_REMEDY = f"restore both from a backup; to begin a new record, move {RECORD_FILE} and {HEAD_FILE} to another folder"


class Head(NamedTuple):
    """How far a record is on disk for certain."""

    lines: int
    hash: str

    def encode(self) -> bytes:
        return json.dumps(self._asdict()).encode().ljust(_HEAD_SIZE - 1) + b"\n"


class Torn(NamedTuple):
    """The incomplete end of a file, and where it begins."""

    offset: int
    data: bytes


def read_head(folder: Path) -> Head:
    path = folder / HEAD_FILE
    try:
        data = path.read_bytes()  # once: a site that runs overwrites it
        found = json.loads(data)
        head = Head(found["lines"], found["hash"])
        if not isinstance(head.lines, int) or not isinstance(head.hash, str) or head.encode() != data:
            raise ValueError("it is not written as netfleet writes it")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RecordError(f"cannot read {path} ({error}), which says how long the record is; {_REMEDY}") from None
    return head


def read_record(folder: Path) -> Iterator[Line | Torn]:
    """The lines of a record, each checked against the one before; raises RecordError at the first that is wrong.

    An incomplete end comes last, and is no error: a crash may have left it there.
    """
    path, previous, offset = folder / RECORD_FILE, NOTHING, 0
    try:
        with open(path, "rb") as file:
            for number, data in enumerate(file, start=1):
                if not data.endswith(b"\n"):
                    _check_torn(data, number)
                    yield Torn(offset, data)
                    return
                line = _following(data, number, previous)
                previous, offset = line.hash, offset + len(data)
                yield line
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}; {_REMEDY}") from None


def _following(data: bytes, number: int, previous: str) -> Line:
    try:
        line = decode(data)
    except RecordError as error:
        raise RecordError(f"line {number} was altered: {error}") from None
    if line.number != number:
        raise RecordError(f"line {number} calls itself line {line.number}: lines were removed, added or moved here")
    if line.previous != previous:
        raise RecordError(f"line {number} does not continue line {number - 1}: one of the two was replaced")
    return line


def _check_torn(data: bytes, number: int) -> None:
    """A line that is whole but for another byte in place of its line break was altered, not torn."""
    try:
        decode(data[:-1] + b"\n")
    except RecordError:
        return
    raise RecordError(f"line {number} was altered: it does not end with a line break")


def check_head(line: Line, head: Head) -> None:
    if line.number == head.lines and line.hash != head.hash:
        raise RecordError(f"line {line.number} was replaced: it does not have the hash that {HEAD_FILE} names")


def missing_lines(found: int, head: Head) -> str:
    return f"lines are missing at the end: {found} are there, but {HEAD_FILE} says that there were {head.lines}"


class Record:
    """A site's record while its process runs; lines come from any thread."""

    def __init__(self, folder: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._folder, self._now = folder, now
        self._lines, self._last, self._synced = 0, NOTHING, 0
        self._file = self._head = -1
        self._adding, self._syncing = threading.Lock(), threading.Lock()

    def open(self, replay: Callable[[Line], object] = lambda line: None) -> None:
        """Read what there is, line by line, cut off an incomplete end, and be ready to add."""
        path = self._folder / RECORD_FILE
        fresh = not (self._folder / HEAD_FILE).exists() and not path.exists()
        if fresh:
            write_atomically(self._folder / HEAD_FILE, lambda file: file.write(Head(0, NOTHING).encode()))
        head = read_head(self._folder)
        if head.lines == 0 and not path.exists():
            with writing(path):
                path.touch()
                sync_folder(self._folder)
        torn = self._read(head, replay)
        with writing(path):
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
            self._head = os.open(self._folder / HEAD_FILE, os.O_WRONLY)
            if torn is not None:
                os.ftruncate(self._file, torn.offset)
        if torn is not None:
            self.add(Repaired(len(torn.data), hashlib.sha256(torn.data).hexdigest()))
            self.sync()

    def _read(self, head: Head, replay: Callable[[Line], object]) -> Torn | None:
        """Take over the lines; what follows those that were on disk for certain may be torn, however it looks."""
        offset, end = 0, self._folder / RECORD_FILE
        try:
            for line in read_record(self._folder):
                if isinstance(line, Torn):
                    break
                check_head(line, head)
                self._lines, self._last, offset = line.number, line.hash, offset + line.size
                replay(line)
        except RecordError as error:
            if self._lines < head.lines:
                raise RecordError(f"{end}: {error}; {_REMEDY}") from None
        if self._lines < head.lines:
            raise RecordError(f"{end}: {missing_lines(self._lines, head)}; {_REMEDY}")
        with open(end, "rb") as file:
            file.seek(offset)
            rest = file.read()
        return Torn(offset, rest) if rest else None

    def add(self, *entries: Entry) -> list[Line]:
        """Write lines; a kill of the process cannot lose them any more, but a power cut can until `sync` returns."""
        with self._adding, writing(self._folder / RECORD_FILE):
            made, number, last = list[tuple[Line, bytes]](), self._lines, self._last
            for entry in entries:
                number += 1
                made.append(encode(number, last, self._now(), entry))
                last = made[-1][0].hash
            self._write(b"".join(data for _, data in made))
            self._lines, self._last = number, last
        return [line for line, _ in made]

    def _write(self, data: bytes) -> None:
        """Write all of it, or leave the file as it was (a full disk takes a part)."""
        end = os.fstat(self._file).st_size
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, end)
            raise

    def sync(self) -> None:
        """Wait until all lines that were added before are on disk."""
        with self._syncing, writing(self._folder / RECORD_FILE):
            with self._adding:
                head = Head(self._lines, self._last)
            if head.lines > self._synced:
                os.fsync(self._file)
                os.pwrite(self._head, head.encode(), 0)
                self._synced = head.lines

    def close(self) -> None:
        for file in (self._file, self._head):
            if file >= 0:
                os.close(file)
        self._file = self._head = -1
