"""Atomic writes (a crash or a full disk leaves the old file or the new one), and locks between processes."""

import errno
import fcntl
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from netfleet.errors import StorageError

_FULL, _FORBIDDEN = (errno.ENOSPC, errno.EDQUOT), (errno.EROFS, errno.EACCES, errno.EPERM)


def write_atomically(path: Path, write: Callable[[BinaryIO], object], mode: int = 0o666) -> None:
    """Write a file so that a crash at any moment leaves the old one or the new one, durable when this returns.

    Where that fails (a full disk), the old one stays, and StorageError says what to do.

    It is created with the mode (less the umask), so a secret with 0o600 is never anyone else's to read.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path), _removed_on_error(temporary):
        temporary.unlink(missing_ok=True)  # one that a crash left behind would keep its own mode
        with open(temporary, "wb", opener=functools.partial(os.open, mode=mode)) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names of the files in a folder durable."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def append_line(path: Path, line: str) -> None:
    """Add a line to a file, durable when this returns; where that fails, the file is as before."""
    with writing(path), open(path, "ab", buffering=0) as file:
        end = file.tell()
        try:
            data = f"{line}\n".encode()
            while data:  # a disk with little space takes a part
                data = data[file.write(data) :]
            os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                file.truncate(end)
            raise


def make_folder(path: Path) -> None:
    """A folder to write to, with those above it."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within the context, what the system says when a path cannot be written becomes one sentence with a remedy."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        if (told := full_disk(error, path)) is not None:
            raise told from None
        remedy = "check the disk, or choose another folder"
        if error.errno in _FORBIDDEN:
            remedy = "make its folder writable, or choose another folder"
        raise StorageError(f"cannot write {path}: {error.strerror or error}; {remedy}") from None


def full_disk(error: Exception, path: Path | None = None) -> StorageError | None:
    """The sentence for a full disk; None for every other error. Without a path it is the system's."""
    if not isinstance(error, OSError) or error.errno not in _FULL:
        return None
    where = path or error.filename or "to a disk"
    return StorageError(f"cannot write {where}: {error.strerror}; free some space there, or choose another folder")


@contextmanager
def _removed_on_error(temporary: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


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
