"""Whatever is done to a record is found, and named by its line."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from netfleet.cli import main
from netfleet.engines.host import Tag
from netfleet.errors import RecordError
from netfleet.privacy.receipts import verification
from netfleet.privacy.receipts.lines import (
    Again,
    Certificate,
    Ended,
    Entry,
    Line,
    Receipt,
    Received,
    Sent,
    Started,
    encode,
)
from netfleet.privacy.receipts.record import RECORD_FILE, read_record
from netfleet.privacy.receipts.verification import compare, verify
from netfleet.sites.planning.certificates import certificate_pem, new_authority
from support.receipts import (
    RecordingSite,
    altered,
    authority,
    checked,
    exchange,
    give,
    lines,
    pull,
    raw_lines,
    two_sites,
    write_head,
    write_raw,
)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> tuple[RecordingSite, RecordingSite]:
    """s0 and s1 after two rounds, with all receipts."""
    a, b = two_sites(tmp_path_factory.mktemp("sites"))
    for t in range(2):
        for one, other in ((a, b), (b, a)):
            exchange(one, other, Tag(t, 0))
    for one, other in ((a, b), (b, a)):
        give(one, other)
    for each in (a, b):
        each.receipts.close("finished")
    return a, b


@pytest.fixture
def folder(sites: tuple[RecordingSite, RecordingSite], tmp_path: Path) -> Path:
    """A copy of s0's record that a test may alter."""
    return copied(sites[0].folder, tmp_path / "s0")


def copied(source: Path, to: Path) -> Path:
    to.mkdir(parents=True)
    for name in (RECORD_FILE, "receipts.head", "ca.pem"):
        (to / name).write_bytes((source / name).read_bytes())
    return to


def kinds(folder: Path) -> list[str]:
    return [line.entry.kind for line in lines(folder)]


def test_a_good_record_is_good(sites: tuple[RecordingSite, RecordingSite], capsys: Any) -> None:
    a, b = (site.folder for site in sites)
    assert kinds(a)[0] == "started"
    assert sorted(kinds(a)[1:-1]) == ["certificate", *["receipt"] * 2, *["received"] * 2, *["sent"] * 2]
    summary = checked(a).summary
    traffic = summary.neighbours["s1"].sent["message"]
    assert (traffic.count, traffic.confirmed, traffic.unconfirmed, traffic.bytes) == (2, 2, 0, 56)
    assert traffic.rounds == (0, 1)
    assert summary.ended == "finished"
    assert compare(a, b) == compare(b, a) == []
    assert main(["receipts", "verify", str(a), "--against", str(b)]) == 0
    said = capsys.readouterr().out
    assert "no alteration found" in said
    assert f"last line {summary.hash}" in said
    assert "agree on everything" in said


def test_every_altered_byte_is_found(folder: Path) -> None:
    """The chain alone finds it, before any signature is looked at."""
    assert set(kinds(folder)) == {"started", "sent", "certificate", "receipt", "received", "ended"}
    data, file, line = (folder / RECORD_FILE).read_bytes(), os.open(folder / RECORD_FILE, os.O_WRONLY), 1
    for place in range(len(data)):
        os.pwrite(file, bytes([data[place] ^ 1]), place)
        with pytest.raises(RecordError, match=rf"^line {line} was altered"):
            list(read_record(folder))
        os.pwrite(file, data[place : place + 1], place)
        line += data[place] == ord("\n")
    os.close(file)
    checked(folder)


@pytest.mark.parametrize(
    "change", [lambda byte: byte ^ 1, lambda byte: byte ^ 128, lambda byte: ord(" "), lambda byte: 0]
)
def test_other_alterations_of_bytes_are_found_too(folder: Path, change: Callable[[int], int]) -> None:
    data, trusted = (folder / RECORD_FILE).read_bytes(), [authority(folder)]
    for place in range(0, len(data), 31):
        if (wrong := altered(data, place, change)) != data:
            (folder / RECORD_FILE).write_bytes(wrong)
            with pytest.raises(RecordError, match=r"^line \d+ was altered"):
                verify(folder, trusted)


def test_deleted_swapped_inserted_and_repeated_lines_are_found(folder: Path) -> None:
    whole = raw_lines(folder)
    for i in range(len(whole)):
        changes = {"deleted": [*whole[:i], *whole[i + 1 :]], "repeated": [*whole[: i + 1], *whole[i:]]}
        if i + 1 < len(whole):
            changes["swapped"] = [*whole[:i], whole[i + 1], whole[i], *whole[i + 2 :]]
        changes["inserted"] = [*whole[:i], b"\n", *whole[i:]]
        for what, data in changes.items():
            write_raw(folder, data)
            with pytest.raises(RecordError, match=r"^line"):
                verify(folder, [authority(folder)])
            assert what


def test_a_shorter_record_is_found_at_every_byte(folder: Path) -> None:
    data = (folder / RECORD_FILE).read_bytes()
    for end in range(0, len(data), 37):
        (folder / RECORD_FILE).write_bytes(data[:end])
        with pytest.raises(RecordError, match="lines are missing at the end"):
            verify(folder, [authority(folder)])


def forged(folder: Path, change: Callable[[Line], Entry | None]) -> None:
    """Rewrite the record with other lines, each with the right hash, and cover the traces in the head."""
    made, previous = list[bytes](), "0" * 64
    for line in lines(folder):
        entry = change(line)
        if entry is not None:
            new, data = encode(len(made) + 1, previous, line.time, entry)
            made.append(data)
            previous = new.hash
    write_raw(folder, made)
    write_head(folder)


def replaced(kind: type[Entry], **values: object) -> Callable[[Line], Entry]:
    return lambda line: dataclasses.replace(line.entry, **values) if isinstance(line.entry, kind) else line.entry


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            replaced(Sent, bytes=1),
            r"line \d+ is not valid: it is no receipt of s1 for line 2 \(the signature is not s1's",
        ),
        (replaced(Sent, digest="00" * 32), "the signature is not s1's"),
        (replaced(Sent, epsilon=0.1), "the signature is not s1's"),  # though nobody signs it itself
        (replaced(Sent, to=("s2",)), "says nothing of something for s1"),
        (replaced(Received, digest="00" * 32), "the signature is not s1's"),
        (replaced(Received, sender_line="00" * 32), "the signature is not s1's"),
        (replaced(Received, signature=""), "the signature is not s0's"),
        (replaced(Receipt, receiver="s0"), "says nothing of something for s0"),
        (replaced(Receipt, of=1), "line 1 says nothing of something for s1"),
        (replaced(Receipt, certificate="00" * 32), "does not have the certificate 000000000000 of s1"),
        (replaced(Receipt, signature="?"), "a text that is not base64"),
        (replaced(Certificate, site="s2"), "the certificate is of s1, not of s2"),
        (replaced(Certificate, certificate="AAAA"), "a certificate that cannot be read"),
        (replaced(Started, run="ab" * 32), "the signature is not s1's"),
        (replaced(Started, site="s1"), "the certificate is of s0, not of s1"),
        (lambda line: None if isinstance(line.entry, Started) else line.entry, "begins with the start of the site"),
        (lambda line: Again(1, "s1", 1, 1) if isinstance(line.entry, Ended) else line.entry, "line 1 says nothing"),
    ],
)
def test_a_forged_chain_is_found_by_the_signatures(
    folder: Path, change: Callable[[Line], Entry | None], words: str
) -> None:
    checked(folder)
    forged(folder, change)
    with pytest.raises(RecordError, match=words):
        checked(folder)


def test_a_receipt_counts_once(folder: Path) -> None:
    receipt = next(line.entry for line in lines(folder) if isinstance(line.entry, Receipt))
    forged(folder, lambda line: receipt if isinstance(line.entry, Ended) else line.entry)
    with pytest.raises(RecordError, match="s1 has confirmed line 2 before"):
        checked(folder)


def test_the_past_cannot_be_rewritten_once_a_neighbour_has_signed(folder: Path) -> None:
    """Also a line that nobody signs itself: the hashes of later lines, which are signed, depend on it."""
    later = replaced(Started, netfleet="0.0.0")
    forged(folder, later)
    with pytest.raises(RecordError, match="the signature is not s1's under this"):
        checked(folder)


def test_certificates_of_another_authority_do_not_count(folder: Path) -> None:
    (folder / "ca.pem").write_bytes(certificate_pem(new_authority().certificate))
    with pytest.raises(RecordError, match=r"line 1 is not valid: the certificate of s0 is not signed by an authority"):
        checked(folder)


def test_what_one_record_hides_the_other_shows(
    sites: tuple[RecordingSite, RecordingSite], folder: Path, capsys: Any
) -> None:
    """s0 cuts the end of its record, with the head, so that nothing is wrong with what is left."""
    keep = kinds(folder).index("sent") + 1
    write_raw(folder, raw_lines(folder)[:keep])
    write_head(folder)
    checked(folder)
    other = sites[1].folder
    found = compare(folder, other)
    assert len(found) == 1 + 2  # s1 received a second message, and s0 confirmed two of s1's
    assert "with its signature, but s0's record has no such line: lines are missing there" in found[0]
    assert all("s0 confirmed line" in sentence for sentence in found[1:])
    assert main(["receipts", "verify", str(folder), "--against", str(other), "--ca", str(other / "ca.pem")]) == 1
    assert "CONTRADICTION: s1 received a message of round 1 from s0" in capsys.readouterr().out


def test_records_of_running_sites_do_not_contradict_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sites go on while their records are compared."""
    a, b = two_sites(tmp_path)
    rounds, read = itertools.count(), verification.read_record

    def go_on() -> None:
        t = next(rounds)
        for one, other in ((a, b), (b, a)):
            exchange(one, other, Tag(t, 0))

    def reading(folder: Path) -> Any:
        found = list(read(folder))
        go_on()
        return iter(found)

    go_on()
    monkeypatch.setattr(verification, "read_record", reading)
    for _ in range(3):
        assert compare(a.folder, b.folder) == []
        assert compare(b.folder, a.folder) == []
    assert next(rounds) > 10


def test_records_of_two_runs_are_not_compared(
    sites: tuple[RecordingSite, RecordingSite], tmp_path: Path, capsys: Any
) -> None:
    a, b = two_sites(tmp_path)
    forged(b.folder, replaced(Started, run="ab" * 32))
    (found,) = compare(a.folder, b.folder)
    assert found.startswith(f"{b.folder} is the record of run abababababab, but {a.folder} is that of run ")


def test_another_folders_authority_is_not_trusted(folder: Path, tmp_path: Path, capsys: Any) -> None:
    other = two_sites(tmp_path / "fake")[1].folder  # somebody's own authority, with names of this plan
    assert main(["receipts", "verify", str(folder), "--against", str(other)]) == 1
    assert "the certificate of s1 is not signed by an authority that is known here" in capsys.readouterr().out


def test_verify_needs_no_key_and_says_what_is_missing(folder: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["receipts", "verify", str(folder)]) == 0
    (folder / "ca.pem").rename(tmp_path / "ca.pem")
    assert main(["receipts", "verify", str(folder)]) == 2
    assert "has no ca.pem, whose authority signed the certificates; give it with --ca" in capsys.readouterr().err
    assert main(["receipts", "verify", str(folder), "--ca", str(tmp_path / "ca.pem")]) == 0
    (tmp_path / "ca.pem").rename(folder / "ca.pem")
    (folder / RECORD_FILE).write_bytes(altered((folder / RECORD_FILE).read_bytes(), 100))
    assert main(["receipts", "verify", str(folder)]) == 1
    assert "ALTERED: " in capsys.readouterr().out
    (folder / RECORD_FILE).unlink()
    assert main(["receipts", "verify", str(folder)]) == 2
    assert "has no receipts.jsonl; expected the folder of a site" in capsys.readouterr().err


def test_a_torn_end_is_no_alteration(sites: tuple[RecordingSite, RecordingSite], folder: Path, capsys: Any) -> None:
    with open(folder / RECORD_FILE, "ab") as file:
        file.write(raw_lines(folder)[-1][:40])
    assert main(["receipts", "verify", str(folder)]) == 0
    assert "NOTE: the last line is incomplete (40 bytes)" in capsys.readouterr().out


def test_messages_that_nobody_confirmed_are_counted(tmp_path: Path) -> None:
    a, b = two_sites(tmp_path)
    exchange(a, b, Tag(0, 0))
    pull(a, b, Tag(0, 0))
    a.receipts.sync()
    traffic = checked(a.folder).summary.neighbours["s1"].sent["message"]
    assert (traffic.count, traffic.confirmed, traffic.unconfirmed, traffic.again) == (1, 0, 1, 1)
