"""The files of a record: only added to, whole after any crash, and never silently shorter."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

import pytest

from netfleet.errors import RecordError, StorageError
from netfleet.privacy.receipts.lines import Ended, Line, Metrics, Repaired
from netfleet.privacy.receipts.record import HEAD_FILE, RECORD_FILE, Head, Record, read_head
from support.receipts import altered, lines, raw_lines, write_head, write_raw


def opened(folder: Path) -> Record:
    record = Record(folder)
    record.open()
    return record


def with_lines(folder: Path, synced: int, more: int) -> Record:
    """A record whose process has not ended."""
    record = opened(folder)
    for number in range(synced):
        record.add(Metrics(f"synced {number}"))
    record.sync()
    for number in range(more):
        record.add(Metrics(f"not synced {number}"))
    return record


def test_lines_are_added_in_batches_and_read_again(tmp_path: Path) -> None:
    record = opened(tmp_path)
    made = [*record.add(Metrics("a"), Metrics("b")), *record.add(Ended("c"))]
    record.sync()
    record.close()
    seen: list[Line] = []
    again = Record(tmp_path)
    again.open(seen.append)
    assert seen == made == lines(tmp_path)
    (last,) = again.add(Ended("d"))
    assert (last.number, last.previous) == (4, made[-1].hash)


def test_what_is_synced_is_on_disk_and_the_head_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: happened.append(Path(f"/proc/self/fd/{file}").readlink().name))
    record = with_lines(tmp_path, 2, 1)
    assert read_head(tmp_path).lines == 2
    happened.clear()
    record.sync()
    record.sync()  # there is nothing new
    assert happened == [RECORD_FILE]
    assert read_head(tmp_path) == (3, lines(tmp_path)[-1].hash)


def test_a_kill_at_any_byte_leaves_a_record_that_goes_on(tmp_path: Path) -> None:
    with_lines(tmp_path, 2, 2)
    data, durable = (tmp_path / RECORD_FILE).read_bytes(), sum(map(len, raw_lines(tmp_path)[:2]))
    head = (tmp_path / HEAD_FILE).read_bytes()
    for end in range(durable, len(data) + 1):
        (tmp_path / RECORD_FILE).write_bytes(data[:end])
        (tmp_path / HEAD_FILE).write_bytes(head)
        record = opened(tmp_path)
        record.close()
        whole, torn = data[:end].count(b"\n"), end - (data[:end].rfind(b"\n") + 1)
        found = lines(tmp_path)
        assert [isinstance(line.entry, Metrics) for line in found[:whole]] == [True] * whole
        assert len(found) == whole + bool(torn)
        if torn:
            assert isinstance(found[-1].entry, Repaired)
            assert found[-1].entry.bytes == torn
            assert read_head(tmp_path).lines == len(found)


def test_what_a_power_cut_leaves_behind_the_synced_lines_is_cut_off(tmp_path: Path) -> None:
    with_lines(tmp_path, 2, 2)
    first, second, third, fourth = raw_lines(tmp_path)
    write_raw(tmp_path, [first, second, bytes(len(third)), fourth])
    opened(tmp_path).close()
    assert [type(line.entry) for line in lines(tmp_path)] == [Metrics, Metrics, Repaired]


@pytest.mark.parametrize(
    ("left", "words"),
    [
        ([0], "lines are missing at the end: 1 are there, but receipts.head says that there were 3"),
        ([], "lines are missing at the end: 0 are there"),
        ([0, 2], "line 2 calls itself line 3: lines were removed, added or moved here"),
        ([1, 0, 2], "line 1 calls itself line 2"),
        ([0, 0, 1, 2], "line 2 calls itself line 1"),
    ],
)
def test_a_site_does_not_go_on_with_an_altered_record(tmp_path: Path, left: list[int], words: str) -> None:
    with_lines(tmp_path, 3, 0)
    whole = raw_lines(tmp_path)
    write_raw(tmp_path, [whole[i] for i in left])
    with pytest.raises(RecordError, match=words):
        opened(tmp_path)
    write_raw(tmp_path, whole)
    opened(tmp_path)


def test_a_replaced_line_or_a_missing_file_is_found(tmp_path: Path) -> None:
    with_lines(tmp_path, 3, 0)
    other = tmp_path / "other"
    other.mkdir()
    with_lines(other, 3, 0)
    mine, theirs, head = raw_lines(tmp_path), raw_lines(other), (tmp_path / HEAD_FILE).read_bytes()
    write_raw(tmp_path, [mine[0], theirs[1], mine[2]])
    with pytest.raises(RecordError, match="line 2 does not continue line 1: one of the two was replaced"):
        opened(tmp_path)
    write_raw(tmp_path, theirs)  # a whole chain, but not this one
    with pytest.raises(RecordError, match=r"line 3 was replaced: it does not have the hash that receipts\.head names"):
        opened(tmp_path)
    write_raw(tmp_path, mine)
    for place in range(len(head)):
        (tmp_path / HEAD_FILE).write_bytes(altered(head, place))
        with pytest.raises(RecordError):
            opened(tmp_path)
    for name in (HEAD_FILE, RECORD_FILE):
        (tmp_path / HEAD_FILE).write_bytes(head)
        (tmp_path / name).unlink()
        with pytest.raises(RecordError, match="cannot read"):
            opened(tmp_path)
        write_raw(tmp_path, mine)
    write_head(tmp_path)
    opened(tmp_path)


def test_a_full_disk_leaves_the_record_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, write = with_lines(tmp_path, 2, 0), os.write
    before = (tmp_path / RECORD_FILE).read_bytes()

    def full(file: int, data: bytes) -> int:
        if len(data) < 50:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data[:-40])  # a part fits

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StorageError, match="free some space"):
            record.add(Metrics("too much"))
    assert (tmp_path / RECORD_FILE).read_bytes() == before
    record.add(Metrics("later"))
    assert [line.number for line in lines(tmp_path)] == [1, 2, 3]


def test_the_head_can_be_read_while_a_site_overwrites_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heads, read = itertools.count(1), Path.read_bytes

    def overwritten(path: Path) -> bytes:
        path.write_bytes(Head(next(heads), 64 * "a").encode())
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", overwritten)
    assert read_head(tmp_path).lines == 1
