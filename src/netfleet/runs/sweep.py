"""An experiment at every point of a grid over keys of its file, each point in its own folder."""

import copy
import itertools
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from netfleet.algorithms import ALGORITHMS
from netfleet.algorithms.build import WRAPPERS
from netfleet.errors import ConfigError, DataError, TopologyError
from netfleet.registry import parameters, suggestion
from netfleet.runs.build import Setting, Settings, build_job
from netfleet.runs.config import Experiment, Table, config_hash, experiment
from netfleet.runs.history import CONFIG_FILE, History, Record
from netfleet.runs.overrides import names, parse_overrides, split_override, split_values
from netfleet.runs.progress import Display, Quiet
from netfleet.runs.resume import resumable
from netfleet.runs.run import run_experiment
from netfleet.track.following import ID_FILE

REFUSED = (ConfigError, TopologyError, DataError)
LONGEST = 120  # characters of a folder's name
_EVERY_METHOD = ("kind", "label", *WRAPPERS)  # keys that all algorithms have beside their parameters


ALL = ""  # in place of a method's label


class Axis(NamedTuple):
    """A key of the experiment file and its values, as texts."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Point:
    """One value for every key, and the experiment there or why there is none."""

    values: tuple[str, ...]
    folder: str
    title: str
    experiment: Experiment | None
    refused: str | None = None


class Result(NamedTuple):
    """What was run at a point, and why what was not: by the method's label, or ALL for the point itself."""

    point: Point
    histories: tuple[History, ...]
    refused: Mapping[str, str]


def parse_axes(texts: Sequence[str]) -> list[Axis]:
    """`key=a,b,…` texts as axes."""
    axes: dict[str, Axis] = {}
    for text in texts:
        key, values = split_override(text, "--over")
        axis = Axis(key, tuple(split_values(values)))
        if "" in axis.values or len(set(axis.values)) < len(axis.values):
            raise ConfigError(f"--over {text}: a value is empty or there twice; write for example --over rounds=50,100")
        if key in axes:
            raise ConfigError(f"--over {text}: {key} was given before; give all its values at once")
        axes[key] = axis
    if not axes:
        raise ConfigError("a sweep needs a key and its values; for example --over algorithms.K=1,5,10")
    return list(axes.values())


def points(table: Table, axes: Sequence[Axis]) -> list[Point]:
    """Every combination of values; the last key varies fastest. Raises if no combination is an experiment."""
    table = _with_tables(table)
    expanded = [_expand(axis.key, table) for axis in axes]
    found, taken = [], set[str]()
    for values in itertools.product(*(axis.values for axis in axes)):
        pairs = [f"{short(axis.key)}={value}" for axis, value in zip(axes, values, strict=True)]
        changes = [f"{key}={value}" for keys, value in zip(expanded, values, strict=True) for key in keys]
        point = _point(table, values, pairs, changes, taken)
        taken.add(point.folder)
        found.append(point)
    if all(point.refused for point in found):
        raise ConfigError(f"no point of the sweep is an experiment; the first one: {found[0].refused}")
    return found


def _point(table: Table, values: tuple[str, ...], pairs: list[str], changes: list[str], taken: set[str]) -> Point:
    folder = re.sub(r"[^\w.=,+-]+", "-", ",".join(pair.replace('"', "") for pair in pairs)).strip("-.")
    if len(folder) > LONGEST or folder in taken:
        folder = f"{folder[:LONGEST]}-{config_hash(pairs)[:8]}"
    title = ", ".join(pair.replace("=", " = ", 1) for pair in pairs)
    try:
        return Point(values, folder, title, experiment(parse_overrides(changes, copy.deepcopy(table))))
    except REFUSED as error:
        return Point(values, folder, title, None, str(error))


def short(key: str) -> str:
    """A key as a reader sees it."""
    return key.removeprefix("algorithms.")


def _with_tables(table: Table) -> Table:
    """The experiment's table with every algorithm as a table of its own."""
    algorithms = table.get("algorithms", ["net-fleet"])
    listed = [algorithms] if isinstance(algorithms, Mapping) else algorithms
    return {**table, "algorithms": [{"kind": a} if isinstance(a, str) else dict(a) for a in listed]}


def _expand(key: str, table: Table) -> list[str]:
    """A key; a parameter of all algorithms (`algorithms.K`) becomes that of each algorithm which has it."""
    first, *rest = names(key)
    if first != "algorithms" or len(rest) != 1:
        return [key]
    has = {i: {*parameters(ALGORITHMS[a["kind"]]), *_EVERY_METHOD} for i, a in enumerate(table["algorithms"])}
    chosen = [f"algorithms.{i}.{rest[0]}" for i, known in has.items() if rest[0] in known]
    if not chosen:
        known = sorted(set[str]().union(*has.values()) - set(_EVERY_METHOD))
        others = f"{suggestion(rest[0], known)}; they have: {', '.join(known)}"
        raise ConfigError(f"no algorithm of the experiment has a parameter {rest[0]!r}{others}")
    return chosen


def sweep(found: Sequence[Point], out: Path, display: Display | None = None) -> list[Result]:
    """Run the experiment of every point in its folder of `out`, from which the same call resumes.

    A point or a method that turns out to be impossible is marked, and the others run. A run that several points have,
    because its method does not have the key, is made once and copied.
    """
    display, made = display or Quiet(), dict[str, Path]()
    for point in found:
        if point.experiment is not None:
            resumable(point.experiment.runs(), out / point.folder)  # what cannot be resumed is found before all runs
    return [_run(point, out, display, made) for point in found]


def _run(point: Point, out: Path, display: Display, made: dict[str, Path]) -> Result:
    if point.experiment is None:
        return Result(point, (), {ALL: point.refused or ""})
    place, announced, named = out / point.folder, point.experiment.runs(), _Named(display, point.title)
    histories, refused = _finished(point.experiment, place), dict[str, str]()
    try:
        settings = Settings(point.experiment)
        if not histories:
            allowed, refused = _divide(point.experiment, settings(point.experiment.seeds[0]))
        if not histories and allowed.algorithms:
            _reuse(allowed, place, made)
            histories = run_experiment(allowed, place, resume=True, display=named, settings=settings)
    except REFUSED as error:
        histories, refused = [], {ALL: str(error)}
    for run in announced[named.seen :]:
        display.skip(run.label)
    made |= {h.hash: h.folder for h in histories if h.folder is not None and not h.diverged}
    return Result(point, tuple(histories), refused)


def _finished(experiment: Experiment, place: Path) -> list[History]:
    """The histories of a point at which nothing is left to do, else none."""
    found = []
    for run in experiment.runs():
        history = History.load(place / run.folder) if (place / run.folder / CONFIG_FILE).exists() else None
        if history is None or history.hash != run.hash or not (history.diverged or history.rounds == experiment.rounds):
            return []
        found.append(history)
    return found


def _divide(experiment: Experiment, setting: Setting) -> tuple[Experiment, dict[str, str]]:
    """The experiment with those methods that can run in its setting, and why the others cannot, by label."""
    seed, refused, allowed = experiment.seeds[0], dict[str, str](), list[Table]()
    for run, table in zip(experiment.runs(), experiment.algorithms, strict=False):  # the first seed's are first
        try:
            build_job(run.config["algorithm"], seed, experiment, setting)
            allowed.append(table)
        except REFUSED as error:
            refused[run.label] = str(error)
    return replace(experiment, algorithms=tuple(allowed)), refused


def _reuse(experiment: Experiment, place: Path, made: Mapping[str, Path]) -> None:
    """Copy the runs that another point has made already."""
    for run in experiment.runs():
        source = made.get(run.hash)
        if source is not None and source.name == run.folder and not (place / run.folder).exists():
            _copy(source, place / run.folder)


def _copy(source: Path, target: Path) -> None:
    """Copy a run's folder, whole or not at all."""
    temporary = target.parent / f".{target.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(source, temporary, ignore=shutil.ignore_patterns(ID_FILE))  # for trackers it is another run
    temporary.rename(target)


class _Named(Display):
    """Puts the name of the point before that of a run."""

    def __init__(self, display: Display, title: str) -> None:
        self.display, self.title, self.seen = display, title, 0

    def begin(self, label: str, done: int, rounds: int) -> None:
        self.seen += 1
        self.display.begin(f"{self.title}: {label}", done, rounds)

    def round(self, t: int) -> None:
        self.display.round(t)

    def record(self, record: Record) -> None:
        self.display.record(record)

    def note(self, text: str) -> None:
        self.display.note(text)

    def end(self) -> None:
        self.display.end()

    def skip(self, label: str) -> None:
        self.seen += 1
        self.display.skip(label)
