"""What doctors ask and are told: a frame each way with a short JSON text, and random bytes to measure a link with.

A question is exempt from the check of the run: two sites with different plans can so say that they have. Nothing here
comes from a site's data.
"""

import json
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, TypeVar, get_type_hints

from netfleet.errors import FrameError
from netfleet.registry import fits
from netfleet.sites.network.wire import CHUNK, Frame, Kind
from netfleet.sites.operations.logs import printable

#: Bytes of the largest text, and the least and the most random bytes of a test.
TEXT, LEAST_BYTES, MOST_BYTES = 4096, 1 << 20, 8 << 20
#: The largest number that a text may have; whole numbers up to it are exact as floats.
MOST_NUMBER = 1 << 53
_T = TypeVar("_T", "Question", "SiteAnswer")


@dataclass(frozen=True)
class Question:
    """Who asks."""

    version: str  # of netfleet
    back: bool = False  # whether the other shall dial this site, at the address that it has
    over: bool = False  # this doctor needs nothing more of the other


@dataclass(frozen=True)
class SiteAnswer:
    """What a site says of itself."""

    version: str
    run: str
    running: str  # "doctor" or "node"
    round: int  # that the site is in; -1: it does not train yet
    time: float  # of its clock: seconds since 1970, UTC
    dialled: str = ""  # the address at which it dialled the one who asked; empty: it was not asked to
    back: str = ""  # why it did not reach it there; empty: it did


def pack(said: Question | SiteAnswer) -> bytes:
    return json.dumps(asdict(said)).encode()


def unpack(cls: type[_T], body: bytes | memoryview) -> _T:
    """What a frame's body says, from bytes of any origin; raises FrameError and nothing else."""
    try:
        if len(body) > TEXT:
            raise ValueError(f"{len(body)} bytes, at most {TEXT} are taken")
        table = json.loads(bytes(body))
        found: dict[str, Any] = {key: _checked(table[key], hint, key) for key, hint in get_type_hints(cls).items()}
        return cls(**found)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FrameError(f"a frame of netfleet doctor that cannot be read ({printable(str(error))})") from None


def _checked(value: object, hint: object, key: str) -> object:
    if not fits(value, hint):
        raise ValueError(f"{key} is not of its type")
    if isinstance(value, int | float) and not abs(value) <= MOST_NUMBER:  # also what is not finite
        raise ValueError(f"{key} is no number, or beyond {MOST_NUMBER}")
    return printable(value) if isinstance(value, str) else value


def random_frames(run: bytes, sender: int, total: int) -> Iterator[Frame]:
    """Frames with that many random bytes; random, because a link may compress others."""
    data = memoryview(secrets.token_bytes(min(total, CHUNK)))
    for start in range(0, total, CHUNK):
        yield Frame(Kind.CHUNK, run, sender, -1, 0, start, total, data[: min(CHUNK, total - start)])
