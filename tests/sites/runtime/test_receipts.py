"""What a site records, what it demands from its neighbours, and what both have after a crash."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from netfleet.engines.host import Tag
from netfleet.engines.job import Snapshot
from netfleet.errors import FrameError, RecordError, TransportError
from netfleet.privacy.receipts.lines import (
    Again,
    Certificate,
    Differs,
    Ended,
    Membership,
    Metrics,
    Receipt,
    Received,
    Sent,
    Started,
    Status,
    Unknown,
)
from netfleet.privacy.receipts.record import RECORD_FILE, read_head
from netfleet.privacy.receipts.state import Key
from netfleet.runs import checkpoint
from netfleet.sites.network.client import Client, Wanted
from netfleet.sites.network.outbox import Message, Outbox
from netfleet.sites.network.receipt_format import GivenReceipts, Note, pack_receipts, unpack_receipts
from netfleet.sites.network.receipts import NoReceipts, Receipts
from netfleet.sites.network.server import SiteServer
from netfleet.sites.network.transport import Busy, Contact, MemoryNetwork
from netfleet.sites.network.wire import Expected, Kind
from netfleet.sites.operations.logs import Log
from netfleet.sites.operations.status import SUMS, SiteStatus, Sketch
from netfleet.sites.planning.certificates import Identity, certificate_pem, issue, key_pem, load_authority, new_key
from netfleet.sites.planning.folders import load_site
from netfleet.sites.policy.settings import ShowRules
from netfleet.sites.runtime.join_leave import model_message
from netfleet.sites.runtime.membership import Membership as Members
from netfleet.sites.runtime.receipts import PrivacyState
from support.receipts import (
    RecordingSite,
    check_records,
    checked,
    entries,
    exchange,
    give,
    lines,
    message,
    pull,
    raw_lines,
    start,
    two_sites,
    write_raw,
)
from support.site_loops import FACTS, LOOPS, own_loop, train_loops
from support.site_memory import run_in_memory
from support.site_processes import plan_sites
from support.site_settings import QUADRATICS, M


@pytest.fixture
def sites(tmp_path: Path) -> tuple[RecordingSite, RecordingSite]:
    return two_sites(tmp_path)


Pair = tuple[RecordingSite, RecordingSite]


def restarted(site: RecordingSite, **options: Any) -> RecordingSite:
    """The site after a kill."""
    return start(site.folder, **options)


# ---- as a sender ----


def test_a_message_is_on_disk_before_anybody_can_get_it(sites: Pair) -> None:
    a, _ = sites
    a.receipts.offer_to_all(Tag(0, 0), message(0), ["s1", "s2"])
    (sent,) = entries(a.folder, Sent)
    assert sent == Sent("message", ("s1", "s2"), 0, 0, 28, "float32[7]", message(0).digest, None, None)
    assert read_head(a.folder).lines == len(lines(a.folder))


def test_a_message_that_was_not_announced_is_recorded_when_somebody_asks(sites: Pair) -> None:
    a, b = sites
    pull(a, b, Tag(0, 0))
    assert [sent.to for sent in entries(a.folder, Sent)] == [("s1",)]
    assert read_head(a.folder).lines == len(lines(a.folder))


def test_privacy_and_policy_in_force_are_on_record(tmp_path: Path) -> None:
    spent = iter([0.5, 0.75])
    plan_sites(tmp_path, {**QUADRATICS, "topology": {"kind": "path"}}, 2)
    site = start(tmp_path / "plan" / "s0", privacy=lambda: PrivacyState(next(spent), "ab" * 32))
    for t in range(2):
        site.receipts.offer_to_all(Tag(t, 0), message(t), ["s1"])
    assert [(sent.epsilon, sent.policy) for sent in entries(site.folder, Sent)] == [(0.5, "ab" * 32), (0.75, "ab" * 32)]
    summary = checked(site.folder).summary
    assert (summary.epsilon, summary.policies) == (0.75, ["ab" * 32])


def test_who_does_not_confirm_gets_nothing_further(sites: Pair) -> None:
    a, b = sites
    pull(a, b, Tag(0, 0))
    pull(a, b, Tag(0, 0))  # the same again
    for tag in (Tag(0, 1), Tag(1, 0)):
        with pytest.raises(FrameError, match="without a valid receipt for round 0, exchange 0; confirm each message"):
            pull(a, b, tag)
    assert len(entries(a.folder, Sent)) == 1  # nothing is on record that could not leave
    give(a, b)
    pull(a, b, Tag(0, 1))
    (receipt,) = entries(a.folder, Receipt)
    assert (receipt.of, receipt.receiver) == (2, "s1")


def test_receipts_are_given_again_and_recorded_once(sites: Pair) -> None:
    a, b = sites
    for t in range(5):
        exchange(a, b, Tag(t, 0))
    for _ in range(3):
        give(a, b)
    assert len(entries(a.folder, Receipt)) == 5
    assert len(entries(a.folder, Certificate)) == 1
    assert len(unpack_receipts(b.receipts.to_give("s0")).receipts) == 2  # of the last two rounds


def receipts_of(b: RecordingSite) -> GivenReceipts:
    return unpack_receipts(b.receipts.to_give("s0"))


def forgeries(b: RecordingSite, tmp_path: Path) -> dict[str, tuple[GivenReceipts, str]]:
    """Receipts of s1 with something wrong about them."""
    given = receipts_of(b)
    (good,) = given.receipts
    stranger = start(plan_and_folder(tmp_path / "other")).receipts  # s1 of another authority
    forged = stranger._signer.certificate
    return {
        "another digest": (given._replace(receipts=(good._replace(digest="00" * 32),)), "the signature is not s1's"),
        "another size": (given._replace(receipts=(good._replace(size=29),)), "the signature is not s1's"),
        "another line": (given._replace(receipts=(good._replace(line="00" * 32),)), "the signature is not s1's"),
        "no signature": (given._replace(receipts=(good._replace(signature=b""),)), "the signature is not s1's"),
        "another authority": (given._replace(certificate=forged), "is not signed by an authority that is known"),
        "no certificate": (given._replace(certificate=b""), "a certificate that cannot be read"),
    }


def plan_and_folder(folder: Path) -> Path:
    plan_sites(folder, {**QUADRATICS, "topology": {"kind": "path"}}, 2)
    return folder / "plan" / "s1"


def test_forged_receipts_are_refused_and_change_nothing(sites: Pair, tmp_path: Path) -> None:
    a, b = sites
    pull(a, b, Tag(0, 0))
    before = raw_lines(a.folder)
    for what, (given, words) in forgeries(b, tmp_path).items():
        with pytest.raises(FrameError, match=words):
            a.receipts.take("s1", given)
        assert raw_lines(a.folder) == before, what
        with pytest.raises(FrameError, match="without a valid receipt"):
            pull(a, b, Tag(1, 0))
    give(a, b)
    pull(a, b, Tag(1, 0))


def test_nobody_can_confirm_for_another(sites: Pair) -> None:
    a, b = sites
    a.receipts.offer_to_all(Tag(0, 0), message(0), ["s1", "s2"])
    pull(a, b, Tag(0, 0))
    with pytest.raises(FrameError, match="the certificate is of s1, not of s2"):
        a.receipts.take("s2", receipts_of(b))


def test_a_receipt_for_something_else_is_refused(sites: Pair) -> None:
    """s1 signs what it likes, but about a line that says otherwise."""
    a, b = sites
    pull(a, b, Tag(0, 0))
    note = a.receipts.offer("s1", Key("message", 0, 0), message(0))
    c = b.receipts
    (entry,) = entries(b.folder, Received)
    wrong = c._receipt(Received(**{**vars(entry), "digest": message(3).digest, "sender_line": note.line}))
    with pytest.raises(FrameError, match="a receipt for something else than line 2 of this site's record says"):
        a.receipts.take("s1", unpack_receipts(pack_receipts(c._signer.certificate, [wrong])))


# ---- as a receiver ----


def test_what_was_received_is_on_record_with_both_signatures(sites: Pair) -> None:
    a, b = sites
    pull(a, b, Tag(0, 0))
    pull(a, b, Tag(0, 0))  # the same again changes nothing
    (got,) = entries(b.folder, Received)
    assert (got.sender, got.round, got.bytes, got.digest) == ("s0", 0, 28, message(0).digest)
    assert got.sender_line == lines(a.folder)[1].hash
    checked(b.folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda note: None, "a message without a note from its sender's record"),
        (lambda note: note._replace(signature=b""), "not what its sender's note says: the signature is not s0's"),
        (lambda note: note._replace(line="00" * 32), "the signature is not s0's"),
        (lambda note: note._replace(certificate=b"x"), "a certificate that cannot be read"),
    ],
)
def test_messages_without_a_valid_note_are_refused(sites: Pair, change: Any, words: str) -> None:
    a, b = sites
    note: Note = a.receipts.offer("s1", Key("message", 0, 0), message(0))
    before = raw_lines(b.folder)
    expected = Expected(b"", 0, 0, 0, "float32[7]", 28)
    with pytest.raises(FrameError, match=words):
        b.receipts.received("s0", "message", expected, message(0).data.numpy().data, change(note))
    with pytest.raises(FrameError, match="the signature is not s0's"):  # other bytes than those on record
        b.receipts.received("s0", "message", expected, message(1).data.numpy().data, note)
    assert raw_lines(b.folder) == before


# ---- crashes ----


def test_a_replay_has_the_same_line(sites: Pair) -> None:
    a, b = sites
    exchange(a, b, Tag(0, 0))
    line = next(line for line in lines(a.folder) if isinstance(line.entry, Sent))
    again = restarted(a)
    again.receipts.offer_to_all(Tag(0, 0), message(0), ["s1"])
    assert again.receipts.offer("s1", Key("message", 0, 0), message(0)).line == line.hash
    assert len(entries(a.folder, Sent)) == 1
    assert entries(a.folder, Again) == [Again(line.number, "s1", 1, 1)]
    assert entries(a.folder, Differs) == []
    check_records([a.folder, b.folder])


def test_a_replay_with_another_result_is_said_loudly(sites: Pair) -> None:
    a, b = sites
    exchange(a, b, Tag(0, 0))
    again = restarted(a)
    again.receipts.offer_to_all(Tag(0, 0), message(7), ["s1"])
    assert [(each.before, each.now) for each in entries(a.folder, Differs)] == [(message(0).digest, message(7).digest)]
    (event,) = again.logged("differs")
    assert (event["level"], event["round"]) == ("error", 0)
    pull(again, b, Tag(0, 0), message(7))  # and the neighbour notices too
    assert [each.site for each in entries(b.folder, Differs)] == ["s0"]
    give(again, b)
    verified = checked(a.folder)
    assert "s0 computed its message of round 0, exchange 0, twice with different results" in verified.notices[0]
    check_records([a.folder, b.folder])


def test_a_receiver_can_confirm_again_after_a_crash_also_with_a_new_certificate(sites: Pair) -> None:
    a, b = sites
    pull(a, b, Tag(0, 0))
    b.receipts.sync()
    again = restarted(b, identity=renewed(b.folder))
    give(a, again)
    pull(a, again, Tag(1, 0))
    assert len(entries(a.folder, Receipt)) == 1
    assert len(entries(b.folder, Started)) == 2
    check_records([a.folder, b.folder])


def renewed(folder: Path) -> Identity:
    """A new certificate and key of the same authority."""
    place = folder.parent / "ca"
    authority, key = load_authority(place / "ca.pem", place / "ca.key"), new_key()
    certificate = certificate_pem(issue(authority, folder.name, "localhost", key.public_key()))
    return Identity(folder.name, (place / "ca.pem").read_bytes(), certificate, key_pem(key), datetime.now(UTC))


def test_receipts_that_a_power_cut_took_from_the_sender_come_again(sites: Pair) -> None:
    a, b = sites
    exchange(a, b, Tag(0, 0))
    a.receipts.offer_to_all(Tag(1, 0), message(1), ["s1"])  # synced
    give(a, b)  # not synced yet
    write_raw(a.folder, raw_lines(a.folder)[: read_head(a.folder).lines])
    assert entries(a.folder, Receipt) == []
    again = restarted(a)
    pull_with_receipts(again, b, Tag(1, 0))
    pull_with_receipts(again, b, Tag(2, 0))
    assert len(entries(a.folder, Receipt)) == 2
    check_records([a.folder, b.folder])


def pull_with_receipts(sender: RecordingSite, receiver: RecordingSite, tag: Tag) -> None:
    give(sender, receiver)
    pull(sender, receiver, tag)


def test_a_record_that_was_cut_is_noticed_when_a_neighbour_confirms_what_is_gone(sites: Pair) -> None:
    a, b = sites
    exchange(a, b, Tag(0, 0))
    a.receipts.close("stopped")
    for path in a.folder.glob("receipts.*"):
        path.unlink()
    again = restarted(a)
    for _ in range(2):
        give(again, b)
    assert [(each.receiver, each.round) for each in entries(a.folder, Unknown)] == [("s1", 0)]
    (event,) = again.logged("unknown")
    assert "s1 confirms what this site's record does not have" in event["why"]
    (notice,) = checked(a.folder).notices
    assert "s1 confirms a message of round 0 that this record does not have" in notice


def test_a_site_that_joined_anew_owes_nothing_and_is_owed_nothing(sites: Pair) -> None:
    a, b = sites
    pull(a, b, Tag(5, 0))
    a.receipts.note_change("returned", "s1", 8)
    pull(a, b, Tag(8, 0))  # over a new link
    again = restarted(b)
    again.receipts.note_change("rejoined", "s1", 8)
    again.receipts.offer_to_all(Tag(8, 0), message(1), ["s0"])
    assert entries(b.folder, Differs) == []
    events = [(each.event, each.site, each.round) for each in entries(a.folder, Membership)]
    assert events == [("returned", "s1", 8)]


def test_the_record_of_another_run_is_not_continued(sites: Pair, tmp_path: Path) -> None:
    a, _ = sites
    a.receipts.close("stopped")
    plan_sites(tmp_path / "other", {**QUADRATICS, "rounds": 7, "topology": {"kind": "path"}}, 2)
    other = tmp_path / "other" / "plan" / "s0"
    for path in a.folder.glob("receipts.*"):
        (other / path.name).write_bytes(path.read_bytes())
    with pytest.raises(RecordError, match=r"is the record of run .*, but this site's is .*; move it to another folder"):
        start(other)


# ---- status and others ----


def test_status_answers_metrics_and_changes_are_on_record(sites: Pair) -> None:
    a, _ = sites
    for _ in range(9):
        a.receipts.note_status("operator", ["accuracy", "loss"])
    a.receipts.note_status("s1", ["accuracy"])
    a.receipts.note_metrics("127.0.0.1:9400")
    a.receipts.note_change("lost", "s1", 3, "has dropped this site")
    a.receipts.close("stopped")
    found = [(each.to, each.first, each.last) for each in entries(a.folder, Status)]
    assert found == [("operator", 1, 1), ("operator", 2, 3), ("operator", 4, 7), ("operator", 8, 15), ("s1", 1, 1)]
    assert entries(a.folder, Metrics) == [Metrics("127.0.0.1:9400")]
    assert entries(a.folder, Membership) == [Membership("lost", "s1", 3, "has dropped this site")]
    assert entries(a.folder, Ended) == [Ended("stopped")]
    assert read_head(a.folder).lines == len(lines(a.folder))


def test_a_neighbour_that_repeats_itself_cannot_fill_the_disk(sites: Pair) -> None:
    a, b = sites
    for _ in range(200):
        pull(a, b, Tag(0, 0))
    assert len(entries(a.folder, Again)) == 8
    for number in range(50):
        fake = receipts_of(b).receipts[0]._replace(line=f"{number:064x}", round=9)
        entry = Received("message", "s0", 9, 0, 28, "", fake.digest, fake.line, "", "", "")
        given = pack_receipts(b.receipts._signer.certificate, [b.receipts._receipt(entry)])
        a.receipts.take("s1", unpack_receipts(given))
    assert len(entries(a.folder, Unknown)) == 10


def test_a_status_names_what_was_computed_from_data_and_is_in_it() -> None:
    record = {"round": 4, "accuracy": 0.9, "loss": 0.1, "consensus_error": None, "eta": 0.1, "bytes": 7}
    sketches = (Sketch(4, (0.0,) * SUMS),)
    whole = SiteStatus("s0", 0, "", "", "training", 4, 9, 0.0, 0, record, (), {}, (), 0, 0, sketches)
    assert whole.measured() == ["accuracy", "loss", "sketches"]
    assert whole.for_neighbour("s1", ShowRules()).measured() == ["accuracy", "loss"]


# ---- over a network in memory ----


@asynccontextmanager
async def serving(site: RecordingSite, network: MemoryNetwork) -> AsyncIterator[Outbox]:
    """The site's real server, with a real membership."""
    plan, _ = load_site(site.folder)
    outbox, log = Outbox(), Log(site.name, site.said, as_json=True)
    members = Members(site.folder, plan, 10, outbox, log.refused)
    members.start(0)
    answers = (lambda: model_message(None)), (lambda name: b"{}")
    server = SiteServer(plan, outbox, members, log.refused, site.receipts, *answers)
    async with network.transport(site.name).serve(server):
        yield outbox


async def ask(site: RecordingSite, network: MemoryNetwork, receipts: Receipts, t: int) -> Kind:
    """s1 asks s0 once for the message of a round."""
    plan, _ = load_site(site.folder)
    client = Client(plan, network.transport(site.name), lambda who, why: None, receipts)
    into = bytearray(28)
    wanted = Wanted(Expected(plan.run_id, 0, t, 0, "float32[7]", 28), memoryview(into))
    return (await client._attempt(Contact(plan.neighbours[0]), Kind.PULL, wanted)).kind


def test_a_neighbour_without_receipts_gets_one_message(sites: Pair) -> None:
    a, b = sites

    async def scenario() -> None:
        network = MemoryNetwork()
        async with serving(a, network) as outbox:
            for t in range(2):
                outbox.post(Tag(t, 0), message(t))
            assert await ask(b, network, NoReceipts(), 0) == Kind.CHUNK
            with pytest.raises(TransportError, match="refuses: a request for round 1, exchange 0, without a valid"):
                await ask(b, network, NoReceipts(), 1)
            assert await ask(b, network, b.receipts, 0) == Kind.CHUNK
            assert await ask(b, network, b.receipts, 1) == Kind.CHUNK

    asyncio.run(scenario())
    check_records([a.folder, b.folder])
    assert any("without a valid receipt" in event["why"] for event in a.logged("refused"))


def test_a_site_that_cannot_record_sends_nothing(sites: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = sites

    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def scenario() -> None:
        network = MemoryNetwork()
        async with serving(a, network) as outbox:
            outbox.post(Tag(0, 0), message(0))
            with monkeypatch.context() as patch:
                patch.setattr(os, "write", full)
                with pytest.raises(Busy, match="cannot write to its disk"):
                    await ask(b, network, NoReceipts(), 0)
            assert await ask(b, network, b.receipts, 0) == Kind.CHUNK

    asyncio.run(scenario())
    assert any("No space left" in event["why"] for event in a.logged("refused"))
    check_records([a.folder, b.folder])


def test_the_records_of_a_training_agree_and_everything_is_confirmed(tmp_path: Path) -> None:
    rounds = 4
    run_in_memory(tmp_path, {**QUADRATICS, "rounds": rounds}, M)
    folders = [tmp_path / "plan" / f"s{i}" for i in range(M)]
    check_records(folders)
    for folder in folders:
        summary = checked(folder).summary
        assert summary.ended == "finished"
        assert len(summary.neighbours) == 2
        for neighbour in summary.neighbours.values():
            sent, received = neighbour.sent["message"], neighbour.received["message"]
            assert (sent.count, sent.unconfirmed, received.count) == (rounds, 0, rounds)
            assert sent.rounds == (0, rounds - 1)
        assert len(entries(folder, Sent)) == rounds  # one line for both neighbours


def test_what_a_site_has_used_is_on_record_before_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut could take from it what its neighbour wants to have confirmed."""
    save, seen = checkpoint.save, list[tuple[int, int]]()

    def saving(folder: Path, snapshot: Snapshot, *rest: Any) -> None:
        durable = lines(folder.parent)[: read_head(folder.parent).lines]
        used = [line for line in durable if isinstance(line.entry, Received) and line.entry.round < snapshot.t]
        seen.append((snapshot.t, len(used)))
        save(folder, snapshot, *rest)

    monkeypatch.setattr(checkpoint, "save", saving)
    run_in_memory(tmp_path, {**QUADRATICS, "rounds": 3}, M)
    assert sorted(seen) == sorted([(t, 2 * t) for t in range(4)] * M)  # two neighbours each


def test_sites_with_loops_of_their_own_have_records_with_their_facts(tmp_path: Path) -> None:
    plan = plan_sites(tmp_path, LOOPS, 3)
    train_loops(tmp_path, plan, lambda i: own_loop(i, FACTS))
    folders = [tmp_path / "plan" / f"s{i}" for i in range(3)]
    check_records(folders)
    for folder in folders:
        for neighbour in checked(folder).summary.neighbours.values():
            assert {what: each.unconfirmed for what, each in neighbour.sent.items()} == {"facts": 0, "message": 0}
            assert set(neighbour.received) == {"facts", "message"}


def test_a_message_is_hashed_once(sites: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    a, _ = sites
    sent = Message("float32[7]", torch.zeros(28, dtype=torch.uint8))
    a.receipts.offer_to_all(Tag(0, 0), sent, ["s1", "s2", "s3"])
    monkeypatch.setattr("netfleet.sites.network.outbox.hashlib.sha256", None)
    for name in ("s1", "s2", "s3"):
        a.receipts.offer(name, Key("message", 0, 0), sent)
    assert (a.folder / RECORD_FILE).exists()
