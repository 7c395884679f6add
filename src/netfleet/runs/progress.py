"""The progress display of a run: a bar in a terminal, a few lines in a log."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from types import TracebackType
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from netfleet.runs.history import Record


class Display:
    """What a run reports its progress to; this one shows nothing."""

    def begin(self, label: str, done: int, rounds: int) -> None:
        """A run starts, or resumes after `done` rounds."""

    def round(self, t: int) -> None:
        """Round t is done."""

    def record(self, record: Record) -> None:
        """An evaluation was made."""

    def note(self, text: str) -> None:
        """What the run does at the moment; empty: nothing special."""

    def end(self) -> None:
        """The run is over."""

    def skip(self, label: str) -> None:
        """A run that was announced is not made."""


class Quiet(Display):
    """No display."""


class Live(Display):
    """Rounds per second, time left, accuracy and consensus error of the run under way; finished runs stay visible."""

    def __init__(self, console: Console, runs: int = 1) -> None:
        self.console, self.runs = console, runs
        self._begun = 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            _RoundsPerSecond(),
            _TimeLeft(compact=True),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Live:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, label: str, done: int, rounds: int) -> None:
        self._begun += 1
        self.label = f"[{self._begun}/{self.runs}] {label}" if self.runs > 1 else label
        self._rounds, self._said, self._measured = rounds, 0, ""
        self._task = self._progress.add_task(self.label.replace("[", r"\["), total=rounds, completed=done, note="")

    def round(self, t: int) -> None:
        self._progress.update(self._task, completed=t)

    def record(self, record: Record) -> None:
        self._measured = note = describe(record)
        self._progress.update(self._task, note=note)
        quarters = 4 * record["round"] // self._rounds
        if not self.console.is_terminal and quarters > self._said:  # a log gets four lines a run
            self._said = quarters
            line = f"{self.label}: round {record['round']}/{self._rounds}  {note}{self.aside()}"
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)
            self.console.file.flush()

    def note(self, text: str) -> None:
        self._progress.update(self._task, note=text.replace("[", r"\[") or self._measured)

    def end(self) -> None:
        self._progress.stop_task(self._task)

    def skip(self, label: str) -> None:
        self._begun += 1

    def aside(self) -> str:
        """What a line of the log ends with."""
        return ""


class Work(NamedTuple):
    """What a run still needs."""

    rounds: int
    cost: float  # of a round, comparable between runs of one kind
    kind: Hashable = None  # runs of one kind take time in proportion to their cost


class LiveTotal(Live):
    """As `Live`, with a bar over all runs and the time that they still need.

    `work` has what every run still needs by the run's label. The time of a kind's unit of cost is the one seen since
    this display began, else the one in `paces`, else the mean over what was seen.
    """

    def __init__(
        self, console: Console, work: Mapping[str, Work], paces: Mapping[Hashable, float] | None = None
    ) -> None:
        super().__init__(console, len(work))
        self._work, self._paces = dict(work), dict(paces or {})
        self._seen: dict[Hashable, tuple[float, float]] = {}  # cost done and its seconds, by kind
        self._total = self._progress.add_task("% of all", total=100, note="", left="", visible=len(work) > 1)

    def begin(self, label: str, done: int, rounds: int) -> None:
        super().begin(label, done, rounds)
        self._name, self._at, self._clock = label, done, time.monotonic()
        self._work[label] = self._work[label]._replace(rounds=rounds - done)

    def round(self, t: int) -> None:
        super().round(t)
        now, work = time.monotonic(), self._work[self._name]
        cost, seconds = self._seen.get(work.kind, (0.0, 0.0))
        self._seen[work.kind] = cost + (t - self._at) * work.cost, seconds + now - self._clock
        self._work[self._name] = work._replace(rounds=work.rounds - (t - self._at))
        self._at, self._clock = t, now
        self._progress.update(self._total, completed=int(100 * self.part), left=f"{in_words(self.left)} left")

    def end(self) -> None:
        super().end()
        self._work.pop(self._name)  # also where it stopped early
        self._progress.update(self._task, visible=False)

    def skip(self, label: str) -> None:
        super().skip(label)
        self._work.pop(label)

    @property
    def left(self) -> float:
        """Seconds until all runs are done, as far as one can tell."""
        return sum(work.rounds * work.cost * self._pace(work.kind) for work in self._work.values())

    @property
    def part(self) -> float:
        """Of the time for all runs, how much has passed."""
        passed = sum(seconds for _, seconds in self._seen.values())
        return passed / (passed + self.left) if passed else 0.0

    def aside(self) -> str:
        """The part that is done and the time that is left."""
        return f"; {100 * self.part:.0f} % of all, {in_words(self.left)} left" if self._seen else ""

    def _pace(self, kind: Hashable) -> float:
        """Seconds for a unit of cost."""
        if kind in self._paces and kind not in self._seen:
            return self._paces[kind]
        seen = [self._seen[kind]] if kind in self._seen else list(self._seen.values())
        cost = sum(cost for cost, _ in seen)
        return sum(seconds for _, seconds in seen) / cost if cost else 0.0


class _RoundsPerSecond(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None or "left" in task.fields else f"{speed:.3g} rounds/s")


class _TimeLeft(TimeRemainingColumn):
    """Of a run by its own speed, of all runs by what their display reckons."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["left"], "progress.remaining") if "left" in task.fields else super().render(task)


def in_words(seconds: float) -> str:
    """A duration to its two largest units."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def describe(record: Record) -> str:
    """The two numbers to watch."""
    if record.get("accuracy") is not None:
        quality = f"accuracy {100 * record['accuracy']:.1f} %"
    elif record.get("distance2") is not None:
        quality = f"‖x̄ − x*‖² {record['distance2']:.2e}"
    else:
        quality = f"loss {record['loss']:.4g}"
    apart = record["consensus_error"]
    return quality if apart is None else f"{quality}  consensus error {apart:.1e}"
