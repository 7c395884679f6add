"""The workers one by one at some evaluations, for the page of `netfleet watch`: `workers.jsonl` in a run's folder.

It is written only where it was asked for, and it stays small: once it has as many evaluations as it may, every other
one goes, and from then on only every other one is added.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from netfleet.files import append_line, write_atomically

WORKERS_FILE = "workers.jsonl"
#: Evaluations in a file, and numbers of workers times evaluations.
MOST, ROOM = 512, 200_000
_DIGITS = 6

Line = dict[str, object]


class WorkerLog:
    """Adds evaluations to the file of a run's folder."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._path, self._limit = folder / WORKERS_FILE, max(32, min(MOST, ROOM // workers))
        self._lines = read_lines(self._path)
        self._stride, self._seen = 1, len(self._lines)

    def append(self, t: int, values: Mapping[str, Sequence[float]]) -> None:
        """Add the values of all workers after round t, by name, unless this evaluation is left out."""
        self._seen += 1
        if (self._seen - 1) % self._stride:
            return
        line = {"round": t, **{name: [_short(value) for value in each] for name, each in values.items()}}
        self._lines.append(json.dumps(line))
        append_line(self._path, self._lines[-1])
        if len(self._lines) >= self._limit:
            self._lines, self._stride = self._lines[::2], 2 * self._stride
            _write(self._path, self._lines)


def keep_until(folder: Path, rounds: int) -> None:
    """Drop the evaluations after a round."""
    path = folder / WORKERS_FILE
    if path.exists():
        _write(path, [line for line in read_lines(path) if json.loads(line)["round"] <= rounds])


def read_lines(path: Path) -> list[str]:
    """The whole lines of a file; none if it is not there."""
    return path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []


def _write(path: Path, lines: Sequence[str]) -> None:
    write_atomically(path, lambda file: file.write("".join(f"{line}\n" for line in lines).encode()))


def _short(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
