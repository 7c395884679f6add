"""Whom all wait for: what an answer WAIT says besides its round.

A waits for B, B waits for C, and C is silent: B's answer to A names C, and A's answer to its neighbours does too. The
body of WAIT is these bytes; it is empty in the answer of a site that does not know, such as one of an earlier version.

| bytes | field | meaning |
|---|---|---|
| 4 | site | the number of the site that is waited for; the sender's own, if it computes |
| 1 | silent | 1 if that site does not answer, 0 if it computes |
| 4 | seconds | for how long |
| 1 | links | between that site and the sender |

Only the neighbours of that site know this for certain. Who means harm can name any site, but nothing depends on it: a
site shows and logs it, and passes it on over at most `LINKS` links.
"""

import struct
from typing import NamedTuple

from netfleet.errors import FrameError
from netfleet.sites.network.wire import SITES

_FORMAT = struct.Struct("!IBIB")
#: The largest numbers that are passed on.
LONGEST, LINKS = 1 << 30, 255


class Cause(NamedTuple):
    """The site that is waited for, why, and for how long."""

    site: int
    silent: bool
    seconds: float
    links: int = 0

    @property
    def state(self) -> str:
        """What that site is."""
        return "silent" if self.silent else "computing"


def pack_cause(cause: Cause) -> bytes:
    return _FORMAT.pack(cause.site, cause.silent, min(int(cause.seconds), LONGEST), min(cause.links, LINKS))


def unpack_cause(body: bytes | memoryview) -> Cause | None:
    """What a neighbour says; None if it says nothing."""
    if not body:
        return None
    if len(body) != _FORMAT.size:
        raise FrameError(f"an answer WAIT with {len(body)} bytes; expected none or {_FORMAT.size}")
    site, silent, seconds, links = _FORMAT.unpack(body)
    if site >= SITES or silent > 1 or seconds > LONGEST:
        raise FrameError(f"an answer WAIT for site {site}, silent {silent}, {seconds} s; one of these is too large")
    return Cause(site, bool(silent), float(seconds), links)
