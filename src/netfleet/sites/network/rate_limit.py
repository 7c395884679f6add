"""Limits what a neighbour may ask: a few requests at a time, and a budget for requests that bring nothing new.

A message that a neighbour gets for the first time is free, because it cannot ask for more of them than this site makes:
so the limit never slows the training down. Everything else costs one for the request and one for each chunk sent:
asking for the same message again, waiting in vain, invalid requests.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from netfleet.engines.host import Tag
from netfleet.sites.network.transport import Busy
from netfleet.sites.network.wire import CHUNK

#: Requests of one neighbour that are served at a time.
MOST = 4
#: The budget: what it gains in a second, its maximum, and the maximum debt. A chunk is 1 MiB.
RATE, BURST, DEBT = 50.0, 100.0, 1000.0


@dataclass
class Served:
    """What was sent for a request."""

    sent: int = 0  # bytes
    tag: Tag | None = None  # the message


@dataclass
class _Account:
    left: float
    at: float
    under_way: int = 0
    newest: Tag | None = None


class RateLimit:
    """The budgets of all callers, by name."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._accounts = clock, dict[str, _Account]()

    @contextmanager
    def serve(self, name: str) -> Iterator[Served]:
        """Serve a request, or raise Busy."""
        account, served = self._account(name), Served()
        if account.under_way >= MOST:
            raise Busy(f"a flood: more than {MOST} requests at a time")
        if account.left < 1:
            raise Busy(f"a flood: more than {RATE:.0f} requests or repeated MiB per second")
        account.under_way += 1
        account.left -= 1
        try:
            yield served
        finally:
            account.under_way -= 1
            if served.tag is not None and (account.newest is None or served.tag > account.newest):
                account.newest = served.tag
                account.left += 1
            else:
                account.left = max(account.left - served.sent / CHUNK, -DEBT)

    def _account(self, name: str) -> _Account:
        now = self._clock()
        account = self._accounts.setdefault(name, _Account(BURST, now))
        account.left, account.at = min(BURST, account.left + RATE * (now - account.at)), now
        return account
