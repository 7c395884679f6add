"""What the parts of a running site share."""

from __future__ import annotations

from typing import NamedTuple

from netfleet.sites.network.client import Client
from netfleet.sites.network.loop_thread import LoopThread
from netfleet.sites.network.wire import Expected
from netfleet.sites.operations.logs import Log
from netfleet.sites.runtime.membership import Membership


class SiteSession(NamedTuple):
    """One site while it is connected to the others."""

    members: Membership
    client: Client
    loop: LoopThread
    log: Log

    def expected(self, j: int, t: int, call: int = 0, words: str = "", total: int = 0) -> Expected:
        """What a message of neighbour j must be."""
        return Expected(bytes.fromhex(self.members.site.run), j, t, call, words, total)
