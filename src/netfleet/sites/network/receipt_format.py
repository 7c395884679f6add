"""Receipts on the wire, byte by byte: the body of `NOTE`, and what follows the rounds in the body of a request.

    NOTE      certificate, hash of the line in the sender's record, signature
    request   certificate, then for each receipt: what, round, exchange, bytes, SHA-256, hash of the line, signature

Certificates and signatures have their length before them. The certificate is the signer's, in DER.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple, get_args

from netfleet.errors import FrameError
from netfleet.privacy.receipts.lines import What

#: The longest certificate or signature, and the most receipts of a request.
LONGEST, MOST = 8192, 4096
_LENGTH, _THING = struct.Struct("!H"), struct.Struct("!BqIQ32s32s")
_WHATS: tuple[What, ...] = get_args(What)


class Note(NamedTuple):
    """What a sender's record says of a message, signed."""

    certificate: bytes
    line: str
    signature: bytes


class GivenReceipt(NamedTuple):
    """A receipt as a neighbour gives it."""

    what: What
    round: int
    exchange: int
    size: int  # bytes
    digest: str
    line: str  # hash of the line in the sender's record
    signature: bytes


class GivenReceipts(NamedTuple):
    """Some receipts, signed with the key of one certificate."""

    certificate: bytes = b""
    receipts: tuple[GivenReceipt, ...] = ()


def pack_note(note: Note) -> bytes:
    return _sized(note.certificate) + bytes.fromhex(note.line) + _sized(note.signature)


def unpack_note(body: bytes | memoryview) -> Note:
    """A note from bytes of any origin; raises FrameError and nothing else."""
    certificate, rest = _take(bytes(body))
    signature, end = _take(rest[32:])
    if len(rest) < 32 or end:
        raise FrameError(f"a note of {len(body)} bytes, which are not what its lengths say")
    return Note(certificate, rest[:32].hex(), signature)


def pack_receipts(certificate: bytes, receipts: Sequence[GivenReceipt]) -> bytes:
    """Nothing at all if there are none."""
    if not receipts:
        return b""
    return _sized(certificate) + b"".join(_packed(each) for each in receipts)


def unpack_receipts(data: bytes) -> GivenReceipts:
    """Receipts from bytes of any origin; raises FrameError and nothing else."""
    if not data:
        return GivenReceipts()
    found = list[GivenReceipt]()
    certificate, data = _take(data)
    while data:
        if len(data) < _THING.size or len(found) == MOST:
            raise FrameError(f"receipts that end in the middle of one, or more than {MOST}")
        what, round, exchange, size, digest, line = _THING.unpack_from(data)
        if what >= len(_WHATS):
            raise FrameError(f"a receipt for the unknown thing {what}")
        signature, data = _take(data[_THING.size :])
        found.append(GivenReceipt(_WHATS[what], round, exchange, size, digest.hex(), line.hex(), signature))
    return GivenReceipts(certificate, tuple(found))


def _packed(receipt: GivenReceipt) -> bytes:
    what, *numbers, digest, line, signature = receipt
    return _THING.pack(_WHATS.index(what), *numbers, bytes.fromhex(digest), bytes.fromhex(line)) + _sized(signature)


def _sized(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _take(data: bytes) -> tuple[bytes, bytes]:
    """What a length announces, and what follows it."""
    end = _LENGTH.size + int.from_bytes(data[: _LENGTH.size], "big")
    if len(data) < _LENGTH.size or not end <= min(len(data), _LENGTH.size + LONGEST):
        raise FrameError(f"a certificate or signature that is cut off, or longer than {LONGEST} bytes")
    return data[_LENGTH.size : end], data[end:]
