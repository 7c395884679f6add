"""An event loop in a thread of its own, for a program that does its work in the main one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import TimeoutError as NotYet
from typing import Any, TypeVar

_T = TypeVar("_T")
#: Seconds after which whoever waits looks around.
GLANCE = 0.5


class Bridge:
    """The one place where the training waits for the network; signals interrupt it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, _T], glance: Callable[[], object] = lambda: None) -> _T:
        """Do it over there, and wait for it here; `glance` is called now and then meanwhile."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            while True:
                try:
                    return future.result(timeout=GLANCE)
                except NotYet:
                    if future.done():  # meanwhile, or its own time-out
                        return future.result()
                    glance()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the loop and its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=5)
