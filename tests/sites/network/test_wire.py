"""Frames: what is valid comes back as it was, and nothing else comes out than FrameError, whatever goes in."""

from __future__ import annotations

import contextlib
import random
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfleet.errors import FrameError
from netfleet.privacy.receipts.lines import What
from netfleet.sites.network import wire
from netfleet.sites.network.receipt_format import (
    GivenReceipt,
    Note,
    pack_note,
    pack_receipts,
    unpack_note,
    unpack_receipts,
)
from netfleet.sites.network.wire import CHUNK, HEADER_SIZE, Assembly, Expected, Frame, Kind, decode

RUN, OTHER = bytes(range(32)), bytes(32)
WORDS = "float32[7] float64[3]"
CHECK = HEADER_SIZE - 4  # where the checksum is
#: Where the header's fields are, and how long: those of the table in `wire.py`.
FIELDS = {
    "magic": (0, 4),
    "version": (4, 1),
    "kind": (5, 1),
    "run": (6, 32),
    "sender": (38, 4),
    "t": (42, 8),
    "call": (50, 4),
    "offset": (54, 8),
    "total": (62, 8),
    "length": (70, 4),
    "check": (74, 4),
}

frames = st.builds(
    Frame,
    kind=st.sampled_from([kind for kind in Kind if kind != Kind.CHUNK]),
    run=st.binary(min_size=32, max_size=32),
    sender=st.integers(0, 2**32 - 1),
    t=st.integers(-1, 2**63 - 1),
    call=st.integers(0, 2**32 - 1),
    offset=st.integers(0, 2**64 - 1),
    total=st.integers(0, 2**64 - 1),
    body=st.binary(max_size=200),
)


def sealed(data: bytes | bytearray) -> bytes:
    """A frame whose checksum is right whatever else is wrong, as one who means harm would send it."""
    check = zlib.crc32(data[HEADER_SIZE:], zlib.crc32(data[:CHECK]))
    return bytes(data[:CHECK]) + struct.pack("!I", check) + bytes(data[HEADER_SIZE:])


def with_field(data: bytes, name: str, value: bytes) -> bytes:
    start, size = FIELDS[name]
    assert len(value) == size
    return data[:start] + value + data[start + size :]


# ---- one frame ----


def test_the_header_is_as_its_table_says() -> None:
    assert sum(size for _, size in FIELDS.values()) == HEADER_SIZE
    data = Frame(Kind.CHUNK, RUN, 1, 2, 3, 4, 10, b"bodies").encode()
    found = {name: data[start : start + size] for name, (start, size) in FIELDS.items()}
    assert found["magic"] == b"NTFL"
    assert found["run"] == RUN
    numbers = {name: int.from_bytes(value, "big") for name, value in found.items()}
    expected = {"version": 4, "kind": 3, "sender": 1, "t": 2, "call": 3, "offset": 4, "total": 10, "length": 6}
    assert {name: numbers[name] for name in expected} == expected
    assert data[HEADER_SIZE:] == b"bodies"
    assert sealed(data) == data


@given(frames)
def test_a_frame_comes_back_as_it_was(frame: Frame) -> None:
    back = decode(frame.encode())
    assert back._replace(body=bytes(back.body)) == frame


@given(st.binary(max_size=2000), st.integers(0, 2**40), st.integers(0, 2**40))
def test_a_chunk_lies_within_its_message(body: bytes, offset: int, more: int) -> None:
    frame = Frame(Kind.CHUNK, RUN, 0, 0, 0, offset, offset + len(body) + more, body)
    assert bytes(decode(frame.encode()).body) == body
    if body:
        with pytest.raises(FrameError, match="with bytes"):
            decode(frame._replace(total=offset + len(body) - 1).encode())


GOOD = Frame(Kind.HEAD, RUN, 3, 5, 1, 0, 52, WORDS.encode()).encode()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "a frame of 0 bytes is truncated"),
        (GOOD[: HEADER_SIZE - 1], "is truncated"),
        (GOOD[:-1], "20 bytes of body where its header says 21"),
        (GOOD + b"x", "22 bytes of body where its header says 21"),
        (GOOD + bytes(CHUNK), "is oversized; at most"),
        (sealed(with_field(GOOD, "magic", b"HTTP")), "begins with b'HTTP'"),
        (sealed(with_field(GOOD, "version", b"\2")), "of version 2, but this site supports 4"),
        (sealed(with_field(GOOD, "kind", b"\0")), "unknown kind 0"),
        (sealed(with_field(GOOD, "kind", b"\xff")), "unknown kind 255"),
        (sealed(with_field(GOOD, "t", struct.pack("!q", -2))), "round -2"),
        (sealed(with_field(GOOD, "length", b"\xff" * 4)), "21 bytes of body where its header says 4294967295"),
        (with_field(GOOD, "check", bytes(4)), "its checksum is wrong"),
        (with_field(GOOD, "run", OTHER), "its checksum is wrong"),
    ],
)
def test_bad_frames_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(FrameError, match=words):
        decode(data)


def test_every_wrong_bit_is_found() -> None:
    for place in range(8 * len(GOOD)):
        data = bytearray(GOOD)
        data[place // 8] ^= 1 << place % 8
        with pytest.raises(FrameError):
            decode(bytes(data))


@pytest.mark.parametrize(("run", "sender", "words"), [(OTHER, 3, "different plans"), (RUN, 4, "but came from site 4")])
def test_who_says_to_be_another_is_refused(run: bytes, sender: int, words: str) -> None:
    with pytest.raises(FrameError, match=words):
        wire.check_origin(decode(GOOD), run, sender)


# ---- messages ----


def message(data: bytes, size: int, words: str = WORDS) -> list[Frame]:
    """As `wire.message`, in chunks of any size."""
    head = Frame(Kind.HEAD, RUN, 3, 5, 1, 0, len(data), words.encode())
    starts = range(0, len(data), size)
    return [head, *(head._replace(kind=Kind.CHUNK, offset=i, body=data[i : i + size]) for i in starts)]


class Memory:
    """Where a message is put together, with bytes before and behind that nobody may touch."""

    guard = b"\xa5" * 64

    def __init__(self, total: int) -> None:
        self._all = bytearray(self.guard + b"\x5a" * total + self.guard)
        self.view = memoryview(self._all)[64 : 64 + total]
        self.assembly = Assembly(Expected(RUN, 3, 5, 1, WORDS, total), self.view)

    def check(self, arrived: bytes) -> None:
        """What was taken is there, and nothing else was written."""
        rest = len(self.view) - len(arrived)
        assert self._all == self.guard + arrived + b"\x5a" * rest + self.guard


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_messages_of_all_sizes_arrive(size: int) -> None:
    data = random.Random(size).randbytes(size)
    memory = Memory(size)
    for frame in wire.message(RUN, 3, 5, 1, WORDS, data):
        assert not memory.assembly.complete
        memory.assembly.feed(decode(frame.encode()))
    assert memory.assembly.complete
    memory.check(data)


HEAD, *PARTS = message(b"abcdefghij", 4)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ([PARTS[0]], "a frame CHUNK where another was expected"),
        ([HEAD, HEAD], "a frame HEAD where another was expected"),
        ([HEAD, PARTS[1]], "bytes 4 to 8 where those from 0 on were expected"),
        ([HEAD, PARTS[0], PARTS[0]], "bytes 0 to 4 where those from 4 on were expected"),
        ([HEAD, *PARTS, PARTS[2]], "bytes 8 to 10 where those from 10 on were expected"),
        ([HEAD, PARTS[0]._replace(body=b"")], "bytes 0 to 0 where those from 0 on were expected"),
        ([HEAD, PARTS[0]._replace(body=bytes(11))], "bytes 0 to 11"),
        ([HEAD._replace(run=OTHER)], "have different plans"),
        ([HEAD._replace(sender=4)], "says it is from site 4, but came from site 3"),
        ([HEAD._replace(t=4)], "a message of round 4, exchange 1, where round 5, exchange 1 was asked for"),
        ([HEAD, PARTS[0]._replace(t=4)], "a message of round 4"),
        ([HEAD._replace(call=0)], "a message of round 5, exchange 0"),
        ([HEAD._replace(total=11)], "a message of 11 bytes where 10 were expected"),
        ([HEAD._replace(total=2**64 - 1)], "a message of 18446744073709551615 bytes"),
        ([HEAD._replace(body=b"float32[8] float64[3]")], r"'float32\[8\] float64\[3\]' where 'float32\[7\]"),
        ([HEAD._replace(body=b"float16[7] float64[3]")], "'float16"),
        ([HEAD._replace(body=b"\xff\n" * 512)], "where 'float32"),
        ([HEAD._replace(body=b"x" * (wire.WORDS + 1))], "a description of 1025 bytes; at most 1024 are taken"),
        ([HEAD._replace(kind=Kind.PULL)], "a frame PULL where another was expected"),
    ],
)
def test_messages_that_are_not_as_expected_are_refused(sent: list[Frame], words: str) -> None:
    memory = Memory(10)
    *before, last = sent
    for frame in before:
        memory.assembly.feed(frame)
    taken = b"".join(bytes(frame.body) for frame in before[1:])
    complete = memory.assembly.complete
    with pytest.raises(FrameError, match=words):
        memory.assembly.feed(last)
    assert memory.assembly.complete == complete == (len(taken) == 10)
    memory.check(taken)


# ---- the fuzzer: a batch of inputs for each example, because hypothesis takes longer for one than decoding does ----

BATCHES, BATCH = 250, 500
Mutation = Callable[[random.Random, bytearray], bytes | bytearray]


def flip(rng: random.Random, data: bytearray) -> bytearray:
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def overwrite(rng: random.Random, data: bytearray) -> bytearray:
    """A field gets an extreme or random value, or that of another."""
    start, size = FIELDS[rng.choice(list(FIELDS))]
    other, _ = FIELDS[rng.choice(list(FIELDS))]
    values = [
        bytes(size),
        b"\xff" * size,
        b"\x7f" + b"\xff" * (size - 1),
        rng.randbytes(size),
        data[other : other + size],
    ]
    data[start : start + size] = rng.choice(values)
    return data


def cut(rng: random.Random, data: bytearray) -> bytearray:
    return data[: rng.randrange(len(data) + 1)]


def extend(rng: random.Random, data: bytearray) -> bytearray:
    return data + rng.randbytes(rng.randint(1, 40))


def splice(rng: random.Random, data: bytearray) -> bytearray:
    a, b = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    c, d = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return data[:a] + data[c:d] + data[b:]


def nonsense(rng: random.Random, data: bytearray) -> bytes:
    return rng.randbytes(rng.choice([0, 1, HEADER_SIZE - 1, HEADER_SIZE, rng.randrange(300)]))


def nearly(rng: random.Random, data: bytearray) -> bytes:
    return wire.MAGIC + bytes([wire.VERSION, rng.choice(list(Kind))]) + rng.randbytes(rng.randint(60, 200))


def longer(rng: random.Random, data: bytearray) -> bytearray:
    """A body of another size, about which the header is right."""
    data = data[:HEADER_SIZE].ljust(HEADER_SIZE, b"\0") + rng.randbytes(rng.randrange(60))
    data[70:74] = struct.pack("!I", len(data) - HEADER_SIZE)
    return data


MUTATIONS: list[Mutation] = [flip, overwrite, cut, extend, splice, nonsense, nearly, longer]


def mutated(rng: random.Random, frame: Frame) -> tuple[bytes, bool]:
    """A frame after mutations, and whether its checksum was made right again."""
    data: bytes | bytearray = bytearray(frame.encode())
    for _ in range(rng.choice([1, 1, 2, 3])):
        if len(data):
            data = rng.choice(MUTATIONS)(rng, bytearray(data))
    sealing = len(data) >= HEADER_SIZE and rng.random() < 0.6
    return (sealed(data), True) if sealing else (bytes(data), False)


def any_frame(rng: random.Random) -> Frame:
    kind, body = rng.choice(list(Kind)), rng.randbytes(rng.choice([0, 1, 20, 100]))
    offset = rng.randrange(1000)
    numbers = rng.getrandbits(32), rng.randint(-1, 10), rng.randrange(4)
    return Frame(kind, RUN, *numbers, offset, offset + len(body) + rng.randrange(50), body)


def fuzz(batch: Callable[[random.Random], None]) -> None:
    @settings(max_examples=BATCHES, deadline=None)
    @given(st.integers(0, 2**64 - 1))
    def examples(seed: int) -> None:
        batch(random.Random(seed))

    examples()


def test_the_decoder_survives_100_000_inputs() -> None:
    seen: Counter[str] = Counter()

    def one(rng: random.Random) -> None:
        frame = any_frame(rng)
        data, resealed = mutated(rng, frame)
        seen["inputs"] += 1
        try:
            back = decode(data)
        except FrameError:
            seen["refused"] += 1
            return
        assert back.encode() == data  # what is taken is understood to the last byte
        assert back.kind != Kind.CHUNK or back.offset + len(back.body) <= back.total
        assert resealed or data == frame.encode()
        seen["taken"] += 1

    def batch(rng: random.Random) -> None:
        for _ in range(BATCH):
            one(rng)

    fuzz(batch)
    assert seen["inputs"] >= 100_000
    assert min(seen["taken"], seen["refused"]) > 10_000


def stream(rng: random.Random, sent: list[Frame]) -> Iterable[tuple[bytes, bool]]:
    """A message's frames with some left out, swapped, repeated, of another message or mutated."""
    frames = list(sent)
    for _ in range(rng.choice([0, 0, 1, 2])):
        a, b = rng.randrange(len(frames)), rng.randrange(len(frames))
        action = rng.randrange(4)
        if action == 0:
            frames[a], frames[b] = frames[b], frames[a]
        elif action == 1:
            frames.insert(a, frames[b])
        elif action == 2 and len(frames) > 1:
            del frames[a]
        else:
            frames.insert(a, any_frame(rng))
    for frame in frames:
        yield mutated(rng, frame) if rng.random() < 0.25 else (frame.encode(), False)


@pytest.mark.slow
def test_the_assembly_survives_100_000_inputs() -> None:
    """Frames that are refused are left out here; a site gives the message up instead."""
    seen: Counter[str] = Counter()

    def one(rng: random.Random) -> None:
        data = rng.randbytes(rng.randrange(1, 120))
        memory, taken, trusted = Memory(len(data)), b"", True
        for each, resealed in stream(rng, message(data, rng.randint(10, 40))):
            seen["inputs"] += 1
            try:
                frame = decode(each)
                memory.assembly.feed(frame)
            except FrameError:
                seen["refused"] += 1
            else:
                taken += bytes(frame.body) if frame.kind == Kind.CHUNK else b""
                trusted = trusted and not resealed
        memory.check(taken)
        if memory.assembly.complete:
            seen["complete"] += 1
            assert len(taken) == len(data)
            assert taken == data or not trusted
        else:
            seen["incomplete"] += 1

    def batch(rng: random.Random) -> None:
        for _ in range(BATCH // 4):
            one(rng)

    fuzz(batch)
    assert seen["inputs"] >= 100_000
    assert min(seen["refused"], seen["complete"], seen["incomplete"]) > 1000


@settings(max_examples=2000)
@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_taken_or_refused(data: bytes, seal: bool) -> None:
    sent = sealed(data) if seal and len(data) >= HEADER_SIZE else data
    with contextlib.suppress(FrameError):
        assert decode(sent).encode() == sent


@settings(max_examples=500)
@given(st.binary(max_size=300))
def test_any_bytes_are_notes_and_receipts_or_refused(data: bytes) -> None:
    with contextlib.suppress(FrameError):
        assert pack_note(unpack_note(data)) == data
    with contextlib.suppress(FrameError):
        given_ = unpack_receipts(data)
        assert not given_.receipts or pack_receipts(*given_) == data
    with contextlib.suppress(FrameError):
        news, rest = wire.unpack_request(data)
        assert wire.pack_request(news, rest) == data


hashes = st.binary(min_size=32, max_size=32).map(bytes.hex)
some_receipts = st.lists(
    st.builds(
        GivenReceipt,
        what=st.sampled_from(get_args(What)),
        round=st.integers(-1, 2**62),
        exchange=st.integers(0, 2**31),
        size=st.integers(0, 2**62),
        digest=hashes,
        line=hashes,
        signature=st.binary(max_size=600),
    ),
    min_size=1,
    max_size=4,
)


@given(st.binary(max_size=2000), some_receipts, hashes)
def test_notes_and_receipts_come_back_as_they_were(certificate: bytes, receipts: list[GivenReceipt], line: str) -> None:
    packed = pack_receipts(certificate, receipts)
    assert unpack_receipts(packed) == (certificate, tuple(receipts))
    for end in range(1, len(packed), 17):
        with contextlib.suppress(FrameError):
            found = unpack_receipts(packed[:end])
            assert found.receipts == tuple(receipts[: len(found.receipts)])
    note = Note(certificate, line, receipts[0].signature)
    assert unpack_note(pack_note(note)) == note
    for end in range(len(pack_note(note))):
        with pytest.raises(FrameError):
            unpack_note(pack_note(note)[:end])


ours = st.builds(
    HEAD._replace,
    kind=st.sampled_from([Kind.HEAD, Kind.CHUNK, Kind.CHUNK, Kind.WAIT]),
    offset=st.integers(0, 12),
    total=st.just(10),
    body=st.just(WORDS.encode()) | st.binary(max_size=12),
)


@given(st.lists(ours))
def test_frames_that_were_never_decoded_do_no_harm_either(sent: list[Frame]) -> None:
    memory, taken = Memory(10), b""
    for frame in sent:
        with contextlib.suppress(FrameError):
            memory.assembly.feed(frame)
            taken += bytes(frame.body) if frame.kind == Kind.CHUNK else b""
    memory.check(taken)
