"""An event loop in a thread of its own, for a program that computes in the main thread."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import TimeoutError as NotYet
from typing import TypeVar

_T = TypeVar("_T")
#: Seconds between two calls of `meanwhile`.
INTERVAL = 0.5


class LoopThread:
    """Runs coroutines in its thread while the context lasts; the one place where the training waits for the network."""

    def __enter__(self) -> "LoopThread":
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)
        self._thread.start()
        return self

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)

    def wait(self, work: Coroutine[object, object, _T], meanwhile: Callable[[], object] = lambda: None) -> _T:
        """Run a coroutine and wait for its result; `meanwhile` is called now and then, and signals interrupt it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            while True:
                try:
                    return future.result(timeout=INTERVAL)
                except NotYet:
                    if future.done():  # meanwhile, or its own timeout
                        return future.result()
                    meanwhile()
        except BaseException:
            future.cancel()
            raise
