"""Where the files of a published collection are: where the user says, NETFLEET_DATA, the cache, the mirrors."""

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from netfleet.data.catalog import Collection, File
from netfleet.data.download import fetch, md5_of
from netfleet.data.formats import unpack
from netfleet.errors import DataError, StorageError

Found = dict[str, Path]  # from the published name of a file to the file on this machine


def locate(collection: Collection, path: str | None = None, environ: Mapping[str, str] = os.environ) -> Found:
    """Every file of a collection, downloaded to the cache where no folder has it yet.

    A `path` that the user gives must have the files: there is no fallback from it.
    """
    if path is not None:
        return _at(collection, Path(path).expanduser())
    cache = cache_folder(environ) / collection.folder
    for folder in (*_shared_folders(collection, environ), cache):
        if not missing(collection, folder):
            return _files(collection, folder)
    fetch(collection, missing(collection, cache), cache)
    return _files(collection, cache)


def read(file: File, path: Path) -> bytes:
    """The content of a file, without gzip; where it is the file as published, its MD5 is checked."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from None
    if path.name == file.name:
        check_md5(data, file, path)
    return unpack(data, str(path))


def check_md5(data: bytes, file: File, where: object) -> None:
    """Raise unless the data is what was published."""
    came = md5_of(data)
    if file.md5 not in (None, came):
        raise DataError(f"{where}: damaged, or another file; MD5 {came}, expected {file.md5}; delete it and run again")


def missing(collection: Collection, folder: Path) -> list[File]:
    """The files of a collection that a folder does not have."""
    return [file for file in collection.files if _variant(file, folder) is None]


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The user's cache folder for netfleet; it is laid out as NETFLEET_DATA is."""
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "netfleet"
    try:
        return Path.home() / ".cache" / "netfleet"
    except RuntimeError:  # a user whom the system does not know, as in some containers
        return _own_temporary_folder()


def _own_temporary_folder() -> Path:
    """A folder that stays, which nobody else can have made or write to: code is loaded from it."""
    folder = Path(tempfile.gettempdir()) / f"netfleet-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise StorageError(f"this user has no home, and {folder} is not safe to use; set XDG_CACHE_HOME to a folder")
    return folder


def _at(collection: Collection, path: Path) -> Found:
    for place in collection.near:
        if not missing(collection, path / place):
            return _files(collection, path / place)
    if not path.is_dir():
        raise DataError(
            f"{collection.name}: path = '{path}' is not a folder; give the folder that has "
            f"{_names(list(collection.files))}"
        )
    raise DataError(
        f"{collection.name}: path = '{path}' has no {_names(missing(collection, path))}; copy what is missing "
        f"there, correct path, or leave path out to let netfleet find or download the files"
    )


def _shared_folders(collection: Collection, environ: Mapping[str, str]) -> list[Path]:
    """Folders under NETFLEET_DATA to look in."""
    if not environ.get("NETFLEET_DATA"):
        return []
    root = Path(environ["NETFLEET_DATA"]).expanduser()
    if not root.is_dir():
        raise DataError(f"NETFLEET_DATA = '{root}' is not a folder; correct it or unset it")
    # MNIST and Fashion-MNIST have the same file names: here, unlike in a folder of their own, the MD5 decides
    paths = [(file, root / file.name) for file in collection.files]
    own = all(path.is_file() and file.md5 in (None, md5_of(path.read_bytes())) for file, path in paths)
    return [root / collection.folder, *([root] if own else [])]


def _files(collection: Collection, folder: Path) -> Found:
    return {file.name: path for file in collection.files if (path := _variant(file, folder)) is not None}


def _variant(file: File, folder: Path) -> Path | None:
    """The file as published, or unpacked under its name without `.gz`."""
    paths = (folder / file.name, folder / file.name.removesuffix(".gz"))
    return next((path for path in paths if path.is_file()), None)


def _names(files: list[File]) -> str:
    packed = any(file.name.endswith(".gz") for file in files)
    return ", ".join(file.name for file in files) + (" (with or without .gz)" if packed else "")
