"""Tells a page's process that the run which started it has ended: the pipe between them is closed."""

import threading
from collections.abc import Callable
from typing import TextIO


def closed(pipe: TextIO) -> Callable[[], bool]:
    """A function that says whether the other end of a pipe is closed, by its process or by its death."""
    ended = threading.Event()

    def read() -> None:
        while pipe.readline():
            pass
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    return ended.is_set
