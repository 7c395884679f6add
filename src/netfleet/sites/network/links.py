"""The connections that a site makes to one neighbour, and which of them it uses now."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc
import grpc.aio

#: Seconds between two looks whether a neighbour that was about to stop is there again, and how often.
REST, RESTS = 0.5, 10
#: Seconds without a connection to a neighbour's address until the relay is used.
DIRECT_FIRST = 2.0


@dataclass
class Link:
    """A connection to the neighbour's address, if it has one, and one through the relay, if there is one."""

    roots: bytes
    direct: grpc.aio.Channel | None
    relay: Callable[[], grpc.aio.Channel] | None
    failure: str = ""  # why the neighbour could not be dialled the last time; empty: it could, or nobody has tried
    _since: float | None = None  # when somebody first wanted to use the address and could not
    _relayed: grpc.aio.Channel | None = None

    @property
    def ready(self) -> bool:
        """Whether a request can be sent directly at once; if not, the connection is made meanwhile."""
        if self.direct is None or not _is_ready(self.direct):
            self._since = time.monotonic() if self._since is None else self._since
            return False
        self.failure, self._since = "", None
        return True

    @property
    def ready_by_relay(self) -> bool:
        return self._relayed is not None and _is_ready(self._relayed)

    @property
    def channel(self) -> grpc.aio.Channel | None:
        """The connection to use now: the relay's where there is no address, or no connection to it for too long."""
        if self.relay is None or self.ready or not self._gone():
            return self.direct
        if self._relayed is None:
            self._relayed = self.relay()
        return self._relayed

    def _gone(self) -> bool:
        return self.direct is None or (self._since is not None and time.monotonic() - self._since >= DIRECT_FIRST)

    async def rest(self) -> None:
        """Leave a neighbour alone that has ended its calls: it is about to stop. But it is there if this site's own
        requests have made a connection again.
        """
        for _ in range(RESTS):
            await asyncio.sleep(REST)
            if self.ready or self.ready_by_relay or self.channel is None:
                return

    async def close(self) -> None:
        for channel in (self.direct, self._relayed):
            if channel is not None:
                await channel.close()


def _is_ready(channel: grpc.aio.Channel) -> bool:
    return bool(channel.get_state(try_to_connect=True) == grpc.ChannelConnectivity.READY)
