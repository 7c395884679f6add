"""An event loop in a thread of its own, for a program that computes in the main thread."""

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import ParamSpec, TypeVar

_T = TypeVar("_T")
_P = ParamSpec("_P")
#: Seconds between two calls of `meanwhile`.
INTERVAL = 0.5


async def in_thread(function: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T:
    """Run what takes long in a thread; but here, when the interpreter shuts down and lends no threads any more."""
    try:
        work = asyncio.get_running_loop().run_in_executor(None, functools.partial(function, *args, **options))
    except RuntimeError:
        return function(*args, **options)
    return await work


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

    def start(self, work: Coroutine[object, object, _T]) -> Future[_T]:
        """Run a coroutine while the caller does something else."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[object, object, _T], meanwhile: Callable[[], object] = lambda: None) -> _T:
        """Run a coroutine and wait for its result; `meanwhile` is called now and then, and signals interrupt it."""
        future = self.start(work)
        try:
            while True:
                try:
                    return future.result(timeout=INTERVAL)
                except NotYet:
                    if future.done():  # meanwhile, or its own timeout
                        return future.result()
                    meanwhile()
        except BaseExceptionGroup as group:  # of a task group; what comes after the first is its consequence
            raise _first(group) from None
        except BaseException:
            future.cancel()
            raise


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
