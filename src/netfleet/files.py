"""Atomic writes (a crash leaves the old file or the new one, never half of it), and locks between processes."""

import fcntl
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def write_atomically(path: Path, write: Callable[[BinaryIO], object], mode: int = 0o666) -> None:
    """Write a file so that a crash at any moment leaves the old one or the new one, durable when this returns.

    It is created with the mode (less the umask), so a secret with 0o600 is never anyone else's to read.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # one that a crash left behind would keep its own mode
    with open(temporary, "wb", opener=functools.partial(os.open, mode=mode)) as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Lock a file or folder, and yield whether no other process has it; the lock ends with the process."""
    handle, mine = os.open(path, os.O_RDONLY), False
    try:
        with suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = True
        yield mine
    finally:
        os.close(handle)
