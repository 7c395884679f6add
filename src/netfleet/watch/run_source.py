"""The runs of an experiment's folder, or one run, as the page shows them."""

import json
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from netfleet.errors import NetfleetError
from netfleet.runs.build import build_topology
from netfleet.runs.history import CONFIG_FILE, Record, in_words
from netfleet.runs.process_file import Life, life
from netfleet.watch.news import (
    COLUMNS,
    Colours,
    Curve,
    Grid,
    Have,
    News,
    Picture,
    Query,
    Series,
    coloured,
    cut,
    number,
    other_columns,
)
from netfleet.watch.pictures import picture_of
from netfleet.watch.run_folder import RunFolder
from netfleet.watch.tail import Line

#: Seconds for which what was read is new enough for every page.
FRESH = 0.5
_MOMENT = ("worker_accuracy_min", "worker_accuracy_max", "train_loss", "bytes", "samples", "seconds", "eta")
_WORKER = {"accuracy": "accuracy", "loss": "loss", "distance": "distance from the average"}
_NO_WORKERS = (
    "This run does not write down its workers one by one, so the graph has no colours: start it with netfleet run "
    "--watch, or on a cluster with --record-workers."
)


class RunSource:
    """Reads the folder at most every half second, however many pages ask."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._runs, self._read_at = folder, dict[str, RunFolder](), 0.0
        self._single = (folder / CONFIG_FILE).exists()
        self._life: tuple[Life, str] = ("ended", "")

    def refresh(self) -> None:
        """Read what is new in all runs."""
        if time.monotonic() - self._read_at < FRESH:
            return
        places = [self.folder / CONFIG_FILE] if self._single else _begun(self.folder)
        folders = {path.parent.name: path.parent for path in places}
        self._runs = {name: self._runs.get(name) or RunFolder(folder) for name, folder in folders.items()}
        self._life = life(self.folder.parent if self._single else self.folder)
        for run in self._runs.values():
            if not (run.complete and run.epoch) or run is self._active():
                run.refresh()
        self._read_at = time.monotonic()

    def _active(self) -> RunFolder | None:
        """The run that the folder's process makes, or was making: the last that was written to."""
        unfinished = [run for run in self._runs.values() if not run.complete and not run.diverged]
        return max(unfinished, key=lambda run: run.changed, default=None)

    def news(self, query: Query) -> News:
        self.refresh()
        active = self._active()
        series = [run.series(*self._life, active=run is active) for run in self._runs.values()]
        run = self._runs.get(query.series) or active or next(iter(self._runs.values()), None)
        if run is None:
            return self._waiting()
        count = len(run.records)
        index = max(count - 1, 0) if query.index is None else min(query.index, max(count - 1, 0))
        t = int(run.records[index]["round"]) if count else None
        found = run.workers(t or 0)
        curves = {each.folder.name: self._cut(each, query) for each in self._runs.values()}
        return News(
            title=self.folder.resolve().name,
            state=next(each.state for each in series if each.id == run.folder.name),
            words=self._words(run, series, found),
            series=coloured(series),
            selected=run.folder.name,
            index=index,
            count=count,
            round=t,
            curves=curves,
            captions=COLUMNS,
            moment=self._moment(t),
            graph=json.dumps([run.about["config"].get("topology"), run.about.get("seed", 0)]),
            colours=_colours(found),
            nodes=_grid(found),
        )

    def picture(self, graph: str) -> Picture:
        return _picture(graph)

    def _cut(self, run: RunFolder, query: Query) -> Curve:
        return cut(run.records, run.epoch, query.have.get(run.folder.name, Have()), len(self._runs))

    def _waiting(self) -> News:
        alive = self._life[0] == "alive"
        words = "has no run yet; this page waits for one"
        words = f"{self.folder} {words}" + (", and its process is at work" if alive else "")
        empty = Grid([], [])
        none = Colours(None, {}, {})
        return News(self.folder.name, "waiting", [words], [], "", 0, 0, None, {}, {}, empty, "", none, empty)

    def _words(self, run: RunFolder, series: Sequence[Series], workers: Line) -> list[str]:
        shown = next(each for each in series if each.id == run.folder.name)
        words = [f"{shown.label} {shown.words}"]
        if len(series) > 1:
            counts = {
                state: sum(each.state == state for each in series) for state in dict.fromkeys(s.state for s in series)
            }
            words.append(f"{len(series)} runs: " + ", ".join(f"{count} {state}" for state, count in counts.items()))
        return words if workers else [*words, _NO_WORKERS]

    def _moment(self, t: int | None) -> Grid:
        """The records of all runs at the last evaluation up to round t."""
        rows = [(run.label, at(run.records, t)) for run in self._runs.values()]
        names = [n for n in (*COLUMNS, *_MOMENT) if any(record.get(n) is not None for _, record in rows)]
        names += other_columns((record for _, record in rows), names)
        heads = ["run", "round", *(COLUMNS.get(name, in_words(name)) for name in names)]
        cells = [[label, number(r.get("round")), *(number(r.get(name)) for name in names)] for label, r in rows]
        return Grid(heads, cells)


def _begun(folder: Path) -> list[Path]:
    """The configs of runs, in the order in which these began: that of the experiment."""
    return sorted(folder.glob(f"*/{CONFIG_FILE}"), key=lambda path: (path.stat().st_mtime_ns, path))


def at(records: Sequence[Record], t: int | None) -> Record:
    """The record of the last evaluation up to a round; an empty one if there is none."""
    place = bisect_right(records, t, key=lambda record: record["round"]) if t is not None else 0
    return records[place - 1] if place else {}


def _colours(found: Line) -> Colours:
    return Colours(found.get("round"), {_WORKER[name]: found[name] for name in _WORKER if name in found}, {})


def _grid(found: Line) -> Grid:
    names = [name for name in _WORKER if name in found]
    columns: Mapping[str, Sequence[float | None]] = {name: found[name] for name in names}
    count = len(found[names[0]]) if names else 0
    rows = [[str(i), *(columns[name][i] for name in names)] for i in range(count)]
    return Grid(["worker", *(_WORKER[name] for name in names)] if names else [], rows)


@lru_cache(8)
def _picture(graph: str) -> Picture:
    table, seed = json.loads(graph) if graph else (None, 0)
    if not isinstance(table, dict):
        return Picture([], [], [], [], "The graph is not in the run's files.")
    try:
        topology = build_topology(table, seed)
    except NetfleetError as error:
        return Picture([], [], [], [], f"The graph cannot be drawn: {error}.")
    return picture_of(topology.graph, [str(i) for i in range(topology.m)])
