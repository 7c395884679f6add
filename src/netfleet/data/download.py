"""From a public mirror to a folder: a file appears there complete and checked, or not at all."""

import hashlib
import http.client
import os
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from netfleet.data.catalog import Collection, File
from netfleet.errors import DataError

TIMEOUT = 30.0  # seconds without an answer or a byte
CHUNK = 1 << 18


def fetch(collection: Collection, files: list[File], folder: Path) -> None:
    """Download these files of a collection into a folder; where that fails, a DataError says what else to do."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if collection.archive is not None:
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                packed = Path(scratch) / collection.archive.name
                download(collection.url + packed.name, packed, collection.archive.md5)
                extract(packed, collection.folder, files, folder)
            return
        for file in files:
            download(collection.url + (file.address or file.name), folder / file.name, file.md5)
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the connection
        raise DataError(
            f"{collection.name}: {', '.join(file.name for file in files)} not found on this machine, and the "
            f"download from {collection.url} failed ({error}); get online and run again, set path (or the "
            f"environment variable NETFLEET_DATA) to a folder that has the files, or copy them to {folder}"
        ) from None  # the reason is in the sentence


def download(url: str, target: Path, md5: str | None = None, timeout: float = TIMEOUT) -> None:
    """Fetch a file; it gets its name only when it is complete and has the MD5."""
    with (
        urllib.request.urlopen(url, timeout=timeout) as answer,
        _progress(target.name, answer.length) as progress,
        atomic(target) as out,
    ):
        digest, size, expected = hashlib.md5(usedforsecurity=False), 0, answer.length
        while chunk := answer.read(CHUNK):
            out.write(chunk)
            digest.update(chunk)
            size += len(chunk)
            progress.advance(progress.task_ids[0], len(chunk))
        if expected not in (None, size):
            raise ConnectionError(f"{url} broke off after {size} of {expected} bytes")
        if md5 not in (None, digest.hexdigest()):
            raise DataError(
                f"{url}: came with MD5 {digest.hexdigest()}, expected {md5}; run again later, or copy the "
                f"original to {target}"
            )


def extract(archive: Path, folder: str, files: list[File], target: Path) -> None:
    """Write the expected members `folder/name` of a tar, and nothing else that it may hold, to the target."""
    try:
        with tarfile.open(archive) as tar:
            for file in files:
                name = f"{folder}/{file.name}"
                member = tar.extractfile(name) if tar.getmember(name).isfile() else None  # never a link or a device
                if member is None:
                    raise tarfile.ReadError(f"{name} is not a plain file")
                data = member.read()
                if file.md5 not in (None, md5_of(data)):
                    raise tarfile.ReadError(f"{file.name} has MD5 {md5_of(data)}, expected {file.md5}")
                with atomic(target / file.name) as out:
                    out.write(data)
    except (tarfile.TarError, KeyError, EOFError, zlib.error) as error:
        raise DataError(f"{archive.name}: cannot be unpacked ({error}); copy the files to {target}") from None


@contextmanager
def atomic(target: Path) -> Iterator[IO[bytes]]:
    """A new file that takes the target's name when the block ends well and vanishes when it does not."""
    handle, name = tempfile.mkstemp(prefix=target.name + ".", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            yield out
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def md5_of(data: bytes) -> str:
    """The MD5 of the data, as published lists write it; it finds damage, not malice."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _progress(name: str, total: int | None) -> Progress:
    """A bar on stderr, where that is a terminal, which leaves nothing behind."""
    console = Console(stderr=True)
    columns = TextColumn("downloading {task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    progress.add_task(name, total=total)
    return progress
