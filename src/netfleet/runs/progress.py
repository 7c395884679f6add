"""The progress display of a run: a bar in a terminal or a notebook, a few lines in a log."""

import html
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from netfleet.environment import in_notebook, speaks
from netfleet.runs.history import Record, describe

REFRESH = 0.2  # seconds between two changes of a notebook's line


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


Quiet = Display


class Live(Display):
    """Shows the speed, the time left, accuracy and consensus error of the current run; finished runs stay visible."""

    def __init__(self, console: Console, runs: int = 1) -> None:
        self.console, self.runs, self._begun = console, runs, 0
        numbers = (BarColumn(bar_width=24), MofNCompleteColumn(), _RoundsPerSecond(), _TimeLeft(compact=True))
        label, note = (TextColumn(f"{{task.{name}}}") for name in ("description", "fields[note]"))
        self._progress = Progress(label, *numbers, note, console=console, disable=not console.is_terminal)

    def __enter__(self) -> "Live":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
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
        """What subclasses add to a line of the log."""
        return ""


class Overall(Live):
    """Shows the current run, how many of all runs are done, and how long the others will take."""

    def __init__(self, console: Console, runs: int) -> None:
        super().__init__(console, runs)
        self._clock, self._worked = time.monotonic(), 0.0
        self._all = self._progress.add_task("all runs", total=runs, note="", left="")

    def begin(self, label: str, done: int, rounds: int) -> None:
        super().begin(label, done, rounds)
        self._at = done

    def round(self, t: int) -> None:
        super().round(t)
        self._worked += (t - self._at) / self._rounds
        self._at = t
        done = self._begun - 1 + t / self._rounds
        left = (time.monotonic() - self._clock) * (self.runs - done) / self._worked
        self._progress.update(self._all, completed=int(done), left=f"{in_words(left)} left")

    def record(self, record: Record) -> None:
        super().record(record)
        self._progress.update(self._task, note=describe(record).partition("  ")[0])  # labels of points are long

    def end(self) -> None:
        super().end()
        self._progress.update(self._task, visible=False)
        self._progress.update(self._all, completed=self._begun)

    def skip(self, label: str) -> None:
        super().skip(label)
        self._progress.update(self._all, completed=self._begun)


class InNotebook(Display):
    """A line for each run that changes in place, by means of IPython alone: rich would need ipywidgets for it."""

    def __init__(self, runs: int = 1) -> None:
        self.runs, self._begun = runs, 0

    def begin(self, label: str, done: int, rounds: int) -> None:
        from IPython.display import display

        self._begun += 1
        self._label = f"[{self._begun}/{self.runs}] {label}" if self.runs > 1 else label
        self._rounds, self._t, self._note, self._shown = rounds, done, "", time.monotonic()
        self._line = display(self._content(), raw=True, display_id=True)  # type: ignore[no-untyped-call]

    def round(self, t: int) -> None:
        self._t = t
        if time.monotonic() - self._shown > REFRESH:
            self._show()

    def record(self, record: Record) -> None:
        self._note = describe(record)

    def end(self) -> None:
        self._show()

    def skip(self, label: str) -> None:
        self._begun += 1

    def _show(self) -> None:
        self._line.update(self._content(), raw=True)
        self._shown = time.monotonic()

    def _content(self) -> dict[str, str]:
        """What is shown, by the type of the content; a notebook chooses the one that it can show."""
        text = f"{self._label}  {self._t}/{self._rounds}  {self._note}"
        bar = f'<progress value="{self._t}" max="{self._rounds}"></progress>'
        return {"text/plain": text, "text/html": f"{bar} {html.escape(text)}"}


@contextmanager
def progress_display(progress: bool | None, runs: int) -> Iterator[Display]:
    """The display of Python's runs; None shows progress where somebody can watch: in a terminal or a notebook."""
    notebook = in_notebook()
    if not speaks() or not (notebook or sys.stderr.isatty() if progress is None else progress):
        yield Quiet()
    elif notebook:
        yield InNotebook(runs)
    else:
        with Live(Console(stderr=True), runs) as live:
            yield live


class _RoundsPerSecond(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None or "left" in task.fields else f"{speed:.3g} rounds/s")


class _TimeLeft(TimeRemainingColumn):
    """The time left of a run by its own speed; a task with a field `left` brings its own text."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["left"], "progress.remaining") if "left" in task.fields else super().render(task)


def in_words(seconds: float) -> str:
    """A duration to its two largest units."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
