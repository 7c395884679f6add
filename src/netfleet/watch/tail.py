"""Reads a growing file of JSON lines: every byte once."""

import json
import os
from pathlib import Path
from typing import Any

Line = dict[str, Any]
#: Stands for the number of a file that is not there.
_NONE = -1


class Tail:
    """The lines of a file so far. A file that was replaced or cut is read from its start again."""

    def __init__(self, path: Path) -> None:
        self._path, self._file, self._at = path, _NONE, 0
        self.lines: list[Line] = []
        #: Bytes read so far, and how often the file began anew.
        self.read, self.epoch = 0, 0

    def refresh(self) -> bool:
        """Read what is new; returns whether there was anything."""
        try:
            about = self._path.stat()
        except OSError:
            return self._file != _NONE and self._begin(_NONE)
        changed = (about.st_ino != self._file or about.st_size < self._at) and self._begin(about.st_ino)
        if about.st_size == self._at:
            return changed
        with open(self._path, "rb") as file:
            if (number := os.fstat(file.fileno()).st_ino) != self._file:  # replaced a moment ago
                self._begin(number)
            file.seek(self._at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]  # the last line may be half written
        self._at += len(whole)
        self.read += len(data)
        self.lines += [json.loads(line) for line in whole.splitlines()]
        return changed or bool(whole)

    def _begin(self, file: int) -> bool:
        self._file, self._at, self.lines = file, 0, []
        self.epoch += 1
        return True
