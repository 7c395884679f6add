"""One run of an experiment, read from its folder while it goes on."""

import json
import time
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from netfleet.runs.history import CONFIG_FILE, DIVERGED_FILE, HISTORY_FILE, Record
from netfleet.runs.process_file import Life
from netfleet.runs.progress import in_words
from netfleet.runs.worker_log import WORKERS_FILE
from netfleet.watch.news import Series
from netfleet.watch.tail import Line, Tail

#: Evaluations over which the pace is a mean, and by how many times its usual pause a run elsewhere is overdue.
LATELY, OVERDUE = 20, 10
_PATIENCE = 60.0


class RunFolder:
    """The records of a run so far."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.about = folder, dict[str, Any]()
        self._history, self._workers = Tail(folder / HISTORY_FILE), Tail(folder / WORKERS_FILE)
        self._seen = deque[tuple[float, int]](maxlen=LATELY)
        self._config_time = 0.0
        self.diverged = ""

    def refresh(self) -> None:
        """Read what is new."""
        path = self.folder / CONFIG_FILE
        if path.exists() and (changed := path.stat().st_mtime) != self._config_time:
            self.about, self._config_time = json.loads(path.read_text(encoding="utf-8")), changed
        first = self._history.epoch == 0
        if self._history.refresh() and self.records and not first:  # what was there before tells nothing of the pace
            self._seen.append((time.monotonic(), self.round))
        self._workers.refresh()
        ended = self.folder / DIVERGED_FILE
        self.diverged = ended.read_text(encoding="utf-8").strip() if ended.exists() else ""

    @property
    def records(self) -> Sequence[Record]:
        return self._history.lines

    @property
    def epoch(self) -> int:
        return self._history.epoch

    @property
    def bytes_read(self) -> int:
        return self._history.read + self._workers.read

    @property
    def round(self) -> int:
        return int(self.records[-1]["round"]) if self.records else 0

    @property
    def rounds(self) -> int:
        return int(self.about.get("config", {}).get("rounds", 0))

    @property
    def label(self) -> str:
        return f"{self.method}, seed {self.about.get('seed', 0)}"

    @property
    def method(self) -> str:
        return str(self.about.get("label", self.folder.name))

    @property
    def changed(self) -> float:
        """When its history last grew."""
        path = self.folder / HISTORY_FILE
        return path.stat().st_mtime if path.exists() else 0.0

    @property
    def complete(self) -> bool:
        return bool(self.records) and 0 < self.rounds <= self.round

    def workers(self, t: int) -> Line:
        """The workers one by one at the last evaluation up to round t that has them."""
        return next((line for line in reversed(self._workers.lines) if line["round"] <= t), {})

    def pace(self) -> float | None:
        """Seconds per round: as seen from here or, before that, in rounds alone."""
        if len(self._seen) > 1 and self._seen[-1][1] > self._seen[0][1]:
            (began, first), (now, last) = self._seen[0], self._seen[-1]
            return (now - began) / (last - first)
        lately = self.records[-LATELY:]
        if len(lately) < 2 or lately[-1].get("seconds") is None or lately[-1]["round"] <= lately[0]["round"]:
            return None
        return float((lately[-1]["seconds"] - lately[0]["seconds"]) / (lately[-1]["round"] - lately[0]["round"]))

    def series(self, life: Life, error: str, active: bool) -> Series:
        """The run in one line; `active` says that of the folder's runs the process makes this one."""
        state, why = self._state(life if active else "ended", error)
        words = f"{state}: round {self.round} of {self.rounds or '?'}{why}"
        if state == "running" and (pace := self.pace()) is not None:
            words += f"; {_seconds(pace)} per round, {in_words(pace * (self.rounds - self.round))} left"
        return Series(self.folder.name, self.label, self.method, state, words, self.round, self.rounds)

    def _state(self, life: Life, error: str) -> tuple[str, str]:
        if self.diverged:
            return "diverged", f"; {self.diverged}"
        if self.complete:
            return "done", ""
        if life == "dead":
            return "died", f"; its process ended with {error}" if error else "; its process is gone"
        if life == "elsewhere":
            return self._state_elsewhere()
        return ("running" if life == "alive" else "stopped"), ""

    def _state_elsewhere(self) -> tuple[str, str]:
        """Of another machine's process one sees what it writes."""
        silent = time.time() - self.changed
        usual = max((b - a for (a, _), (b, _) in pairwise(self._seen)), default=0.0)
        if silent < max(_PATIENCE, OVERDUE * usual):
            return "running", ""
        return (
            "silent",
            f"; nothing new for {in_words(silent)} from its process on another machine, which may have died",
        )


def _seconds(pace: float) -> str:
    return f"{pace:.2g} s" if pace < 9.95 else in_words(pace)
