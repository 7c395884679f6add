"""Lets trackers follow the runs of an experiment; what goes wrong in a tracker does not stop a run."""

from __future__ import annotations

import re
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from netfleet.errors import ConfigError, DivergedError, StoppedError
from netfleet.files import write_atomically
from netfleet.registry import Spec, shown
from netfleet.track import TRACKERS, Status, TrackedRun, Tracker

if TYPE_CHECKING:
    from netfleet.runs.history import History, Record

#: In a run's folder: the id under which trackers know it.
ID_FILE = "track.txt"
_ID = re.compile(r"[0-9a-f]{16}")
#: A function that is called with the run, the round and the values of each record.
Function = Callable[[TrackedRun, int, Mapping[str, float]], object]
TrackPart: TypeAlias = Spec | Tracker | Function


class TrackWarning(UserWarning):
    """A tracker that failed, while the run goes on."""


class Tracking:
    """The trackers of an experiment."""

    def __init__(self, experiment: str = "", trackers: Sequence[Tracker] = ()) -> None:
        self._experiment, self._trackers = experiment, trackers

    @contextmanager
    def of(self, history: History) -> Iterator[Callable[[], None]]:
        """Within the context the trackers follow a run: from its records so far to its end.

        Gives the function to call when the history has a new record.
        """
        if not self._trackers:
            yield lambda: None
            return
        about = (history.label, history.seed, history.config, history.hash, _id(history.folder), history.folder)
        following = _Following(TrackedRun(self._experiment, *about), history, self._trackers)
        following.begin()
        try:
            yield following.catch_up
        except BaseException as error:
            following.end(_status(error))
            raise
        following.end("diverged" if history.diverged else "finished")


NO_TRACKING = Tracking()


def _status(error: BaseException) -> Status:
    """How a run ended that an error has ended."""
    if isinstance(error, DivergedError):
        return "diverged"
    return "interrupted" if isinstance(error, KeyboardInterrupt | StoppedError) else "failed"


class _Following:
    """The trackers that follow one run, without those that have failed."""

    def __init__(self, run: TrackedRun, history: History, trackers: Iterable[Tracker]) -> None:
        self._run, self._history, self._trackers, self._told = run, history, list(trackers), 0

    def begin(self) -> None:
        self._each("at the start", lambda tracker: tracker.begin(self._run))
        self.catch_up()

    def catch_up(self) -> None:
        """Tell the trackers of the records that they do not know."""
        while self._told < len(self._history):
            record = self._history.records[self._told]
            self._told += 1  # first, so that Ctrl-C in a tracker does not repeat a point
            self._tell(record)

    def _tell(self, record: Record) -> None:
        t, values = record["round"], scalars(record)
        self._each(f"in round {t}", lambda tracker: tracker.record(t, values))

    def end(self, status: Status) -> None:
        self.catch_up()  # Ctrl-C may have come between the history and the trackers
        self._each("at the end", lambda tracker: tracker.end(status))

    def _each(self, when: str, act: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                act(tracker)
            except Exception as error:
                self._trackers.remove(tracker)
                warnings.warn(self._words(tracker, when, error), TrackWarning, stacklevel=2)

    def _words(self, tracker: Tracker, when: str, error: Exception) -> str:
        cause = f"the tracker {type(tracker).__name__} failed {when}: {type(error).__name__}: {error}"
        kept = "its history is complete" + ("" if self._run.folder is None else ", and --resume tracks all of it again")
        return f"{self._run.name}: {cause}. The run goes on without it; {kept}"


def scalars(record: Record) -> dict[str, float]:
    """The numbers of a record by name, without the round and what has no value."""
    numbers = {name: value for name, value in record.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in numbers.items() if name != "round"}


def resolve_trackers(given: Any) -> tuple[dict[str, Any], ...]:
    """`track` of an experiment, a tracker or a list of them, with every default written out."""
    listed: Iterable[Spec] = given if isinstance(given, list | tuple) else [given]
    return tuple(TRACKERS.resolve(each) for each in listed)


def make_tracking(experiment: str, specs: Iterable[Spec], objects: Sequence[Tracker] = ()) -> Tracking:
    """The trackers of an experiment; raises where a package is missing."""
    return Tracking(experiment, [*map(TRACKERS.build, specs), *objects])


def divide(given: Any) -> tuple[list[Spec], list[Tracker]]:
    """What Python gives as `track`: the trackers that a file could name, and the objects."""
    single = isinstance(given, str | Mapping | Tracker) or not isinstance(given, Iterable)
    listed = [given] if single else list(given)
    specs = [each for each in listed if isinstance(each, str | Mapping)]
    return specs, [_tracker(each) for each in listed if not isinstance(each, str | Mapping)]


def _tracker(given: object) -> Tracker:
    if isinstance(given, type):
        raise ConfigError(f"track is the class {given.__name__}; make an object of it: {given.__name__}()")
    if isinstance(given, Tracker):
        return given
    if callable(given):
        return _Calls(given)
    expected = 'a name such as "tensorboard", a table with a kind, an object with begin, record and end, or a function'
    raise ConfigError(f"track: expected {expected}, got {shown(given)}")


class _Calls:
    """A function as a tracker."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def begin(self, run: TrackedRun) -> None:
        self._run = run

    def record(self, round: int, values: Mapping[str, float]) -> None:
        self._function(self._run, round, values)

    def end(self, status: Status) -> None:
        """A function is told nothing of the end."""


def _id(folder: Path | None) -> str:
    """The id of the run in a folder, which keeps it."""
    if folder is None:
        return _new_id()
    path = folder / ID_FILE
    if path.exists() and _ID.fullmatch(known := path.read_text(encoding="utf-8").strip()):
        return known
    made = _new_id()
    write_atomically(path, lambda file: file.write(f"{made}\n".encode()))
    return made


def _new_id() -> str:
    return uuid.uuid4().hex[:16]
