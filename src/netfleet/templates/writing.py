"""Writes new files: all of them or, where one is there already, none."""

import shlex
from collections.abc import Mapping
from operator import methodcaller
from pathlib import Path

from netfleet.errors import ConfigError
from netfleet.files import make_folder, write_atomically


def check_folder(folder: Path) -> None:
    if not folder.is_dir():
        cause = f"there is no folder {str(folder)!r}" if not folder.exists() else f"{str(folder)!r} is not a folder"
        raise ConfigError(f"{cause}; make it (mkdir -p {shlex.quote(str(folder))}), or choose another")


def write_new(files: Mapping[Path, bytes], overwrite: bool) -> None:
    taken = [path for path in files if path.exists() or path.is_symlink()]
    if folders := [path for path in taken if path.is_dir()]:
        raise ConfigError(f"{folders[0]} is a folder where a file was expected; remove it, or give another path")
    if taken and not overwrite:
        names = ", ".join(map(str, taken))
        verb, them = ("exists", "it") if len(taken) == 1 else ("exist", "them")
        raise ConfigError(f"{names} already {verb}; give another path, or add --overwrite to replace {them}")
    for path, content in files.items():
        make_folder(path.parent)
        write_atomically(path, methodcaller("write", content))
