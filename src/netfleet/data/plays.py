"""Texts in which every speech begins with its speaker's name: characters to learn, split by who says them.

    First Citizen:
    Before we proceed any further, hear me speak.

    All:
    Speak, speak.

A row is a window of some characters; its targets are the characters that follow each of them.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from netfleet.data import catalog
from netfleet.data.catalog import File
from netfleet.data.dataset import Dataset
from netfleet.data.files import locate, read
from netfleet.data.sites import PLACE, check_sites, find, site_files, this_site
from netfleet.data.sources import SOURCES
from netfleet.errors import ConfigError, DataError

Tokens = npt.NDArray[np.int64]
TEST_SHARE = 10  # the last tenth of each speaker's windows is for testing
_SPEAKER = re.compile(r"(?:\A|(?<=\n\n))([^\n:]+):\n")


class Windows(NamedTuple):
    """The rows of a speaker or a site: length + 1 characters each."""

    train: Tokens
    test: Tokens


@SOURCES.register("plays")
def plays(
    path: str | None = None,
    length: int = 64,
    least: int = 1000,
    speakers: int | None = None,
    alphabet: str | None = None,
    sites: Sequence[str] | None = None,
) -> Dataset:
    """The characters of plays (by default Shakespeare's), in windows of `length`; the groups are the speakers.

    Speakers with fewer than `least` characters are left out, and all but the `speakers` who say most; they are numbered
    by how much they say. The tokens are the characters of the whole file, or of `alphabet`, in order. With `{site}` in
    `path` each site has a text of its own, the groups are the sites, and the alphabet must be given.
    """
    _check(length, least, speakers, path, alphabet, sites)
    if path is None or PLACE not in path:
        return _by_speaker(path, length, least, speakers, alphabet)
    assert alphabet is not None
    known, files = _sorted(alphabet), site_files(path, sites)
    texts = {name: _read(file) for name, file in files.items()}
    found = {
        name: _together(_said(texts[name], files[name], least, speakers), length, known, files[name]) for name in texts
    }
    own = this_site()
    return _dataset(path if own is None else path.replace(PLACE, own), found, known, own)


def _by_speaker(path: str | None, length: int, least: int, speakers: int | None, alphabet: str | None) -> Dataset:
    file = catalog.TINYSHAKESPEARE.files[0]
    place = find(path) if path is not None else locate(catalog.TINYSHAKESPEARE)[file.name]
    text = _read(place, file if path is None else None)
    known = _sorted(text if alphabet is None else alphabet)
    said = _said(text, place, least, speakers)
    found = {name: _windows(words, length, known, place) for name, words in said.items()}
    return _dataset(catalog.TINYSHAKESPEARE.name if path is None else path, found, known, None)


def _check(
    length: int, least: int, speakers: int | None, path: str | None, alphabet: str | None, sites: Sequence[str] | None
) -> None:
    check_sites(sites)
    if length < 1:
        raise ConfigError(f"length must be at least 1 character, got {length}; try length = 64")
    if least < 2 * length + 1:
        why = "one window of a speaker is for training and one for testing"
        raise ConfigError(f"least must be at least 2 · length + 1 = {2 * length + 1}, got {least}: {why}; raise it")
    if speakers is not None and speakers < 1:
        raise ConfigError(f"speakers must be at least 1, got {speakers}; leave it out to keep all")
    if path is not None and PLACE in path and alphabet is None:
        raise ConfigError(
            f'path = "{path}" is a text for each site; add alphabet = "…" with all characters, for all sites'
        )
    if sites is not None and (path is None or PLACE not in path):
        raise ConfigError(f"sites are listed, but the text is one file; write {PLACE} into path, or leave sites out")


def _read(path: Path, file: File | None = None) -> str:
    try:
        return read(File(path.name, ()) if file is None else file, path).decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; save the text as UTF-8") from None


def _said(text: str, path: Path, least: int, speakers: int | None) -> dict[str, str]:
    """All that each speaker says, who says most first; those who say little are left out."""
    _, *pieces = _SPEAKER.split(text)
    if not pieces:
        raise DataError(f"{path}: no speaker; expected a line 'NAME:' before each speech and an empty line after it")
    speeches: dict[str, list[str]] = {}
    for name, speech in zip(pieces[::2], pieces[1::2], strict=True):
        speeches.setdefault(name, []).append(speech.strip("\n"))
    said = {name: "\n".join(parts) for name, parts in speeches.items()}
    kept = sorted((name for name in said if len(said[name]) >= least), key=lambda name: (-len(said[name]), name))
    if len(kept) < (speakers or 1):
        most = max(map(len, said.values()))
        came = f"{len(kept)} speakers have {least} characters or more (most: {most})"
        raise DataError(
            f"{path}: {came}, expected {speakers or 1} or more; lower least{' or speakers' * bool(speakers)}"
        )
    return {name: said[name] for name in kept[:speakers]}


def _sorted(characters: str) -> Tokens:
    """The code of each character, in order; its place is the token."""
    return np.unique(_codes(characters))


def _codes(text: str) -> Tokens:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.int64)


def _windows(text: str, length: int, known: Tokens, path: Path) -> Windows:
    codes = _codes(text)
    tokens = np.searchsorted(known, codes)
    strange = known[np.minimum(tokens, len(known) - 1)] != codes
    if strange.any():
        character = text[int(strange.argmax())]
        raise DataError(f"{path}: has the character {character!r}, which the alphabet has not; add it to alphabet")
    count = (len(tokens) - 1) // length
    rows = np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::length][:count]
    held = max(count // TEST_SHARE, 1)
    return Windows(rows[: count - held], rows[count - held :])


def _together(said: dict[str, str], length: int, known: Tokens, path: Path) -> Windows:
    parts = [_windows(words, length, known, path) for words in said.values()]
    return Windows(*(np.concatenate([getattr(part, key) for part in parts]) for key in Windows._fields))


def _dataset(name: str, found: dict[str, Windows], known: Tokens, own: str | None) -> Dataset:
    train, test = (
        torch.from_numpy(np.concatenate([getattr(w, key) for w in found.values()])) for key in Windows._fields
    )
    rows = (train[:, :-1], train[:, 1:], test[:, :-1], test[:, 1:], len(known))
    if own is not None:
        return Dataset(name, *rows, site=own)
    numbers = torch.arange(len(found))
    groups, test_groups = (
        numbers.repeat_interleave(torch.tensor([len(getattr(w, key)) for w in found.values()]))
        for key in Windows._fields
    )
    return Dataset(name, *rows, groups, test_groups, tuple(found))
