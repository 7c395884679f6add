"""The live display of a run: a bar in a terminal, a line now and then in a log."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class Display(Protocol):
    """What a run reports its progress to."""

    def begin(self, label: str, done: int, rounds: int) -> None:
        """A run begins, or goes on after `done` rounds."""

    def round(self, t: int) -> None:
        """Round t is done."""

    def record(self, record: dict[str, Any]) -> None:
        """An evaluation was taken."""

    def end(self) -> None:
        """The run is over."""


class Quiet:
    """No display."""

    def begin(self, label: str, done: int, rounds: int) -> None: ...
    def round(self, t: int) -> None: ...
    def record(self, record: dict[str, Any]) -> None: ...
    def end(self) -> None: ...


class Live:
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
        self._rounds, self._said = rounds, 0
        self._task = self._progress.add_task(self.label.replace("[", r"\["), total=rounds, completed=done, note="")

    def round(self, t: int) -> None:
        self._progress.update(self._task, completed=t)

    def record(self, record: dict[str, Any]) -> None:
        note = describe(record)
        self._progress.update(self._task, note=note)
        quarters = 4 * record["round"] // self._rounds
        if not self.console.is_terminal and quarters > self._said:  # a log gets four lines a run
            self._said = quarters
            line = f"{self.label}: round {record['round']}/{self._rounds}  {note}{self.aside()}"
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)
            self.console.file.flush()

    def end(self) -> None:
        self._progress.stop_task(self._task)

    def aside(self) -> str:
        """What a line of the log ends with."""
        return ""


class LiveTotal(Live):
    """As `Live`, with a bar over all runs: the work that remains says how much time is left.

    `costs` has for the label of every run the rounds that it still needs and the work of one.
    """

    def __init__(self, console: Console, costs: Mapping[str, tuple[int, float]]) -> None:
        super().__init__(console, len(costs))
        self._costs, self._started = dict(costs), time.monotonic()
        self._done = 0.0  # work
        self._total = self._progress.add_task("% of all", total=100, note="", left="", visible=len(costs) > 1)

    def begin(self, label: str, done: int, rounds: int) -> None:
        super().begin(label, done, rounds)
        self._name, self._first, self._before = label, done, self._done
        self._costs[label] = (rounds - done, self._costs[label][1])

    def round(self, t: int) -> None:
        super().round(t)
        self._done = self._before + (t - self._first) * self._costs[self._name][1]
        self._progress.update(self._total, completed=int(100 * self.part), left=f"{self._left()} left")

    def end(self) -> None:
        super().end()
        self._progress.update(self._task, visible=False)

    @property
    def part(self) -> float:
        """Of all work, how much is done."""
        whole = sum(rounds * cost for rounds, cost in self._costs.values())
        return min(1.0, self._done / whole) if whole else 1.0

    def aside(self) -> str:
        """The part that is done and the time that is left."""
        return f"; {100 * self.part:.0f} % of all, {self._left()} left" if self._done else ""

    def _left(self) -> str:
        return in_words((time.monotonic() - self._started) * (1 / self.part - 1)) if self._done else "?"


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
    minutes = seconds / 60
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes // 60:.0f} h {minutes % 60:.0f} min"


def describe(record: dict[str, Any]) -> str:
    """The two numbers to watch."""
    if record.get("accuracy") is not None:
        quality = f"accuracy {100 * record['accuracy']:.1f} %"
    elif record.get("distance2") is not None:
        quality = f"‖x̄ − x*‖² {record['distance2']:.2e}"
    else:
        quality = f"loss {record['loss']:.4g}"
    return f"{quality}  consensus error {record['consensus_error']:.1e}"
