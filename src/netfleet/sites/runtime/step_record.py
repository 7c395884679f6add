"""How many local steps each round took, where rounds have limited time: a round that is repeated takes as many.

A line is on disk before the number matters to anything that leaves the site.
"""

import json
from pathlib import Path

from netfleet.errors import CheckpointError
from netfleet.files import append_line

STEPS_FILE = "steps.jsonl"


class StepRecord:
    """The `StepRecord` of a site, in the run's folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / STEPS_FILE
        self._steps = _read(self._path) if self._path.exists() else {}

    def read(self, t: int) -> int | None:
        return self._steps.get(t)

    def write(self, t: int, steps: int) -> None:
        append_line(self._path, json.dumps({"round": t, "steps": steps}))
        self._steps[t] = steps


def _read(path: Path) -> dict[int, int]:
    try:
        *lines, last = path.read_text(encoding="utf-8").split("\n")
        if last:  # a crash cut it off; nothing that depends on it has left
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        found = [json.loads(line) for line in lines]
        return {int(entry["round"]): int(entry["steps"]) for entry in found}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); restore it from a copy, or start with --rejoin") from None
