"""How much a neighbour may ask: a few requests at a time, and a budget for what does not bring it further.

A message that a neighbour gets for the first time costs nothing, because it cannot ask for more of them than this site
makes: the fastest rounds are not held up. All else costs one for the request and one for each chunk that is sent:
asking for the same again, waiting in vain, nonsense.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from netfleet.engines.host import Tag
from netfleet.errors import TransportError
from netfleet.sites.network.wire import CHUNK

#: Requests of one neighbour that are served at a time; more is a flood.
MOST = 4
#: The budget: what it gains in a second, at most has and at most owes. A chunk is 1 MiB.
RATE, BURST, DEBT = 50.0, 100.0, 1000.0


@dataclass
class Turn:
    """A request that is served."""

    sent: int = 0  # bytes
    tag: Tag | None = None  # the message that it was answered with


@dataclass
class _Account:
    left: float
    at: float
    under_way: int = 0
    newest: Tag | None = None


class Turns:
    """The accounts of all who may ask; whoever else comes shares one, so that there are never more."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._accounts = clock, dict[str, _Account]()

    def under_way(self, name: str) -> int:
        """How many requests of a neighbour are being served."""
        return self._accounts[name].under_way if name in self._accounts else 0

    @contextmanager
    def turn(self, name: str) -> Iterator[Turn]:
        """Serve a request, or raise TransportError."""
        account, turn = self._account(name), Turn()
        if account.under_way >= MOST:
            raise TransportError(f"a flood: more than {MOST} requests at a time")
        if account.left < 1:
            raise TransportError(f"a flood: more than {RATE:.0f} requests or repeated MiB per second")
        account.under_way += 1
        account.left -= 1
        try:
            yield turn
        finally:
            account.under_way -= 1
            _settle(account, turn)

    def _account(self, name: str) -> _Account:
        now = self._clock()
        account = self._accounts.setdefault(name, _Account(BURST, now))
        account.left, account.at = min(BURST, account.left + RATE * (now - account.at)), now
        return account


def _settle(account: _Account, turn: Turn) -> None:
    if turn.tag is not None and (account.newest is None or turn.tag > account.newest):
        account.newest = turn.tag
        account.left += 1
    else:
        account.left = max(account.left - turn.sent / CHUNK, -DEBT)
