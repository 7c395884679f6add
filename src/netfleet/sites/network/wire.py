"""Frames: what sites send to each other, byte by byte. Bounded, versioned, checksummed; nothing is ever unpickled.

A frame is a header of fixed size, then its body:

| bytes | field | meaning |
|---|---|---|
| 4 | magic | `NTFL` |
| 1 | version | of this table |
| 1 | kind | see `Kind` |
| 32 | run | 24 bytes of the run's hash, then how often the sender was rolled back (`planning/rollbacks.py`) |
| 4 | sender | its number in the plan |
| 8 | t | the round (−1 while initialising) |
| 4 | call | the number of the exchange within it |
| 8 | offset | where the body belongs in the message |
| 8 | total | bytes of the whole message |
| 4 | length | bytes of the body |
| 4 | check | CRC-32 of all other bytes |

A message is a `NOTE` from its sender's record (`receipt_format.py`), one `HEAD`, whose body says what its bytes are
("float32[10330] float32[10330]"), then `CHUNK`s in their order. TLS keeps others from changing bytes; the checksum
finds what a faulty memory or disk did.
"""

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from netfleet.errors import FrameError
from netfleet.sites.planning.rollbacks import rollbacks_in, same_run

try:  # the same CRC-32, some times faster
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

MAGIC, VERSION = b"NTFL", 4
#: The largest body of a frame, and the longest description of a message.
CHUNK, WORDS = 1 << 20, 1 << 10
#: The most sites that a request has news of.
SITES = 1 << 16
_HEADER = struct.Struct("!4sBB32sIqIQQI")
_CHECK = struct.Struct("!I")
_NEWS = struct.Struct("!qB")
_ALARMS = (False, True, None)
HEADER_SIZE = _HEADER.size + _CHECK.size


class Kind(IntEnum):
    """What a frame says."""

    PULL = 1  # give me your message (t, call); the body has what I know of all sites, and my receipts
    HEAD = 2  # here is one: what it is
    CHUNK = 3  # some of its bytes
    WAIT = 4  # not there yet; I am in round t
    DROPPED = 5  # you are no neighbour of mine since round t
    LEFT = 6  # I have left, or leave, and round t is the first without me
    JOIN = 7  # take me as a neighbour
    JOINED = 8  # from round t on you are
    DONE = 9  # the training ended before round t
    MODEL = 10  # give me your model
    FACTS = 11  # say what you train (where sites have loops of their own)
    NOTE = 12  # the message that follows is in my record: the hash of that line, and my signature
    RECEIPTS = 13  # here are my receipts for your last messages; I ask for nothing
    NOTED = 14  # I have them
    KEY = 15  # give me your public key (where links have noise)
    CHECK = 16  # netfleet doctor: say who you are; the total are the random bytes that I want too
    CHECKED = 17  # here is what I say of myself; the bytes follow


class Frame(NamedTuple):
    """A frame as it is understood."""

    kind: Kind
    run: bytes
    sender: int
    t: int
    call: int = 0
    offset: int = 0
    total: int = 0
    body: bytes | memoryview = b""

    def encode(self) -> bytes:
        head = _HEADER.pack(MAGIC, VERSION, self.kind, *self[1:7], len(self.body))
        return b"".join((head, _CHECK.pack(crc32(self.body, crc32(head))), self.body))


def decode(data: bytes) -> Frame:
    """A frame from bytes of any origin; raises FrameError and nothing else."""
    if len(data) < HEADER_SIZE:
        raise FrameError(f"a frame of {len(data)} bytes is truncated; its header alone has {HEADER_SIZE}")
    if len(data) > HEADER_SIZE + CHUNK:
        raise FrameError(f"a frame of {len(data)} bytes is oversized; at most {HEADER_SIZE + CHUNK} are taken")
    magic, version, kind, run, sender, t, call, offset, total, length = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise FrameError(f"not a netfleet frame: it begins with {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise FrameError(f"a frame of version {version}, but this site supports {VERSION}; update the older of the two")
    if kind not in Kind._value2member_map_:
        raise FrameError(f"a frame of the unknown kind {kind}")
    if len(data) != HEADER_SIZE + length:
        raise FrameError(f"a frame with {len(data) - HEADER_SIZE} bytes of body where its header says {length}")
    body = memoryview(data)[HEADER_SIZE:]
    (check,) = _CHECK.unpack_from(data, _HEADER.size)
    if check != crc32(body, crc32(data[: _HEADER.size])):
        raise FrameError("a corrupt frame: its checksum is wrong")
    if t < -1 or (offset + length > total and kind == Kind.CHUNK):
        raise FrameError(f"a frame of round {t} with bytes {offset} to {offset + length} of {total}")
    return Frame(Kind(kind), run, sender, t, call, offset, total, body)


def message(run: bytes, sender: int, t: int, call: int, words: str, data: bytes | memoryview) -> Iterator[Frame]:
    view = memoryview(data).cast("B")
    yield Frame(Kind.HEAD, run, sender, t, call, 0, len(view), words.encode())
    for start in range(0, len(view), CHUNK):
        yield Frame(Kind.CHUNK, run, sender, t, call, start, len(view), view[start : start + CHUNK])


class SiteNews(NamedTuple):
    """What a site knows of another one, at first or at second hand."""

    round: int  # the latest in which it was; -1: not known
    alarm: bool | None = None  # whether it had an alarm then that nobody had looked at; None: not known


def pack_request(news: Sequence[SiteNews], receipts: bytes = b"") -> bytes:
    """The body of a request: of how many sites there is news, the news by their numbers, then receipts."""
    packed = (_NEWS.pack(t, _ALARMS.index(alarm)) for t, alarm in news)
    return b"".join((len(news).to_bytes(4, "big"), *packed, receipts))


def unpack_request(body: bytes | memoryview) -> tuple[tuple[SiteNews, ...], bytes]:
    """The news of all sites and the receipts that a request's body has."""
    count = int.from_bytes(body[:4], "big")
    end = 4 + _NEWS.size * count
    if count > SITES or len(body) < end:
        raise FrameError(
            f"a request of {len(body)} bytes with news of {count} sites; expected {_NEWS.size} bytes for each of at "
            f"most {SITES} sites"
        )
    found = tuple(_NEWS.iter_unpack(body[4:end]))
    if any(alarm >= len(_ALARMS) for _, alarm in found):
        raise FrameError("a request that says of a site's alarm neither yes, no nor unknown (0 to 2)")
    return tuple(SiteNews(t, _ALARMS[alarm]) for t, alarm in found), bytes(body[end:])


class Expected(NamedTuple):
    """What a message must be to be taken."""

    run: bytes
    sender: int
    t: int
    call: int
    words: str
    total: int


class Assembly:
    """A message that arrives frame by frame, into memory that lies ready; what does not fit is refused."""

    def __init__(self, expected: Expected, into: memoryview) -> None:
        self.expected, self._into, self._have, self._begun = expected, into, 0, False

    @property
    def complete(self) -> bool:
        return self._begun and self._have == self.expected.total

    def feed(self, frame: Frame) -> None:
        expected = self.expected
        check_origin(frame, expected.run, expected.sender)
        if (frame.t, frame.call) != (expected.t, expected.call):
            raise FrameError(
                f"a message of round {frame.t}, exchange {frame.call}, where round {expected.t}, exchange "
                f"{expected.call} was asked for"
            )
        if frame.total != expected.total:
            raise FrameError(f"a message of {frame.total} bytes where {expected.total} were expected")
        if frame.kind == Kind.HEAD and not self._begun:
            self._head(frame)
        elif frame.kind == Kind.CHUNK and self._begun:
            self._chunk(frame)
        else:
            raise FrameError(f"a frame {frame.kind.name} where another was expected")

    def _head(self, frame: Frame) -> None:
        if len(frame.body) > WORDS:
            raise FrameError(f"a description of {len(frame.body)} bytes; at most {WORDS} are taken")
        words = bytes(frame.body).decode("utf-8", "replace")
        if words != self.expected.words:
            raise FrameError(f"a message of {words[:100]!r} where {self.expected.words!r} was expected")
        self._begun = True

    def _chunk(self, frame: Frame) -> None:
        end = frame.offset + len(frame.body)
        if frame.offset != self._have or not self._have < end <= self.expected.total:
            raise FrameError(f"bytes {frame.offset} to {end} where those from {self._have} on were expected")
        self._into[self._have : end] = frame.body
        self._have = end


def check_origin(frame: Frame, run: bytes, sender: int, whatever_rollbacks: bool = False) -> None:
    """A frame must be of this run after the same rollbacks, and say who its sender's certificate says it is."""
    if not same_run(frame.run, run):
        raise FrameError(
            f"a frame of run {frame.run.hex()[:12]}, but this node's is {run.hex()[:12]}: the two have different plans"
        )
    if frame.run != run and not whatever_rollbacks:
        theirs, ours = rollbacks_in(frame.run), rollbacks_in(run)
        where, to = ("there", ours.to) if theirs.number < ours.number else ("here", theirs.to)
        raise FrameError(
            f"the sender {theirs} and this site {ours}, so they cannot train together; {where}: "
            f"netfleet rollback DIR --to {to}, or netfleet node DIR --rejoin"
        )
    if frame.sender != sender:
        raise FrameError(f"a frame that says it is from site {frame.sender}, but came from site {sender}")
