"""Whom all wait for: what an answer WAIT says besides its round.

A waits for B, B waits for C, and C is silent: B's answer to A names C, and A's answer to its neighbours does too. The
body of WAIT is these bytes; it is empty in the answer of a site that does not know, such as one of an earlier version.

| bytes | field | meaning |
|---|---|---|
| 4 | site | the number of the site that is waited for; the sender's own, if it does not wait |
| 1 | state | what that site is: 0 computing, 1 holding after an alarm, 2 silent (it does not answer) |
| 4 | seconds | for how long |
| 1 | links | between that site and the sender |

Only the neighbours of that site know this for certain. Who means harm can name any site, but nothing depends on it: a
site shows and logs it, and passes it on over at most `LINKS` links.
"""

import struct
from typing import Literal, NamedTuple, get_args

from netfleet.errors import FrameError
from netfleet.sites.network.wire import SITES

_FORMAT = struct.Struct("!IBIB")
#: The largest numbers that are passed on.
LONGEST, LINKS = 1 << 30, 255


#: What a site is that is waited for; from left to right there is more reason to look there.
State = Literal["computing", "holding", "silent"]
STATES: tuple[State, ...] = get_args(State)


class Cause(NamedTuple):
    """The site that is waited for, what it is, and for how long."""

    site: int
    state: State
    seconds: float
    links: int = 0

    @property
    def silent(self) -> bool:
        return self.state == "silent"


def pack_cause(cause: Cause) -> bytes:
    return _FORMAT.pack(
        cause.site, STATES.index(cause.state), min(int(cause.seconds), LONGEST), min(cause.links, LINKS)
    )


def unpack_cause(body: bytes | memoryview) -> Cause | None:
    """What a neighbour says; None if it says nothing."""
    if not body:
        return None
    if len(body) != _FORMAT.size:
        raise FrameError(f"an answer WAIT with {len(body)} bytes; expected none or {_FORMAT.size}")
    site, state, seconds, links = _FORMAT.unpack(body)
    if site >= SITES or state >= len(STATES) or seconds > LONGEST:
        raise FrameError(f"an answer WAIT for site {site}, state {state}, {seconds} s; one of these is too large")
    return Cause(site, STATES[state], float(seconds), links)
