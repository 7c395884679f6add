"""How often a site was rolled back to an earlier round: `rollbacks.json` in its folder.

Sites may train with each other only if all of them were rolled back alike. So every frame says how often its sender
was, in its field for the run (`network/wire.py`).
"""

import json
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from netfleet.errors import ConfigError
from netfleet.files import write_atomically

ROLLBACKS_FILE = "rollbacks.json"
#: Bytes of the hash of the run that a frame has; the rest of its 32 bytes are the rollbacks.
_HASH, _REST = 24, struct.Struct("!HIH")
_MOST = 0xFFFF


class Rollbacks(NamedTuple):
    """The rollbacks of a site so far; two sites are alike if these are equal."""

    number: int = 0
    to: int = 0  # the round of the last one
    check: int = 0  # of all their rounds in turn

    def next(self, to: int) -> "Rollbacks":
        """With a further one to this round."""
        if self.number >= _MOST:
            raise ConfigError(f"a training cannot be rolled back more than {_MOST:,} times; plan a new one")
        return Rollbacks(self.number + 1, to, zlib.crc32(_REST.pack(self.number, to, self.check)) & 0xFFFF)

    def is_possible(self, rounds: int) -> bool:
        """Whether a training of so many rounds can have been rolled back like this."""
        return self.to < rounds if self.number else self == NONE

    @property
    def key(self) -> int:
        """All of it in one number, for noise that must be another after other rollbacks; 0: there was none."""
        return int.from_bytes(_REST.pack(*self))

    def run_id(self, run: str) -> bytes:
        """What frames of the run with this hash (hexadecimal) have after these rollbacks."""
        return bytes.fromhex(run)[:_HASH] + _REST.pack(*self)

    def __str__(self) -> str:
        if not self.number:
            return "was not rolled back"
        return f"was rolled back {'once' if self.number == 1 else f'{self.number} times, last'} to round {self.to}"


NONE = Rollbacks()


class Pending(NamedTuple):
    """What the file says: the rollbacks, and whether the last one is not complete."""

    rollbacks: Rollbacks = NONE
    pending: bool = False
    reached: int = 0  # the round in which the site was before the last one
    rejoins: bool = False  # pending until the site has the state of its neighbours, whose rollbacks these are


def same_run(a: bytes, b: bytes) -> bool:
    """Whether two frames are of the same run, whatever was rolled back."""
    return a[:_HASH] == b[:_HASH]


def rollbacks_in(run_id: bytes) -> Rollbacks:
    return Rollbacks(*_REST.unpack(run_id[_HASH:]))


def read_rollbacks(folder: Path) -> Pending:
    """What the file in a site's folder says; without a file nothing was rolled back."""
    path = folder / ROLLBACKS_FILE
    if not path.exists():
        return Pending()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        rollbacks = Rollbacks(*(int(found[name]) for name in Rollbacks._fields))
        _REST.pack(*rollbacks)
        return Pending(rollbacks, bool(found["pending"]), int(found["reached"]), bool(found.get("rejoins")))
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise ConfigError(f"{path} is damaged ({error}); restore it from a copy") from None


def write_rollbacks(folder: Path, known: Pending) -> None:
    state = {"reached": known.reached, "pending": known.pending, "rejoins": known.rejoins}
    text = json.dumps({**known.rollbacks._asdict(), **state}, indent=1)
    write_atomically(folder / ROLLBACKS_FILE, lambda file: file.write(text.encode()))
