"""The append-only record of a run, one JSON line per evaluation beside its config; and histories side by side."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from netfleet.errors import CheckpointError, ConfigError
from netfleet.files import write_atomically
from netfleet.runs.config import Table

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from netfleet.engines.job import Snapshot

CONFIG_FILE, HISTORY_FILE = "config.json", "history.jsonl"

#: One evaluation: the round and what was measured, by name; None where a value does not exist.
Record = dict[str, Any]
Floats = npt.NDArray[np.float64]


@dataclass
class History:
    """What a run measured, evaluation by evaluation.

    `history["accuracy"]` is a column as an array (NaN where there is no value). Apart from `seconds`, the records of an
    experiment file's run are a function of `config`: they do not depend on threads or interruptions.
    """

    config: Table
    hash: str = ""
    label: str = ""
    seed: int = 0
    records: list[Record] = field(default_factory=list)
    diverged: str | None = None
    folder: Path | None = None
    #: All workers' state after the last round, if this process made the run; on a cluster that of this rank's workers.
    final: Snapshot | None = None
    #: The round of the checkpoint from which the run was resumed.
    resumed: int = 0

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __getitem__(self, column: str) -> Floats:
        if not any(column in record for record in self.records):
            raise KeyError(f"no column {column!r}; there are: {', '.join(self.columns)}")
        values = [record.get(column) for record in self.records]
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for record in self.records for name in record))

    @property
    def rounds(self) -> int:
        """Rounds done at the last evaluation."""
        return int(self.records[-1]["round"]) if self.records else 0

    @property
    def last(self) -> Record:
        return self.records[-1]

    def timeless(self) -> list[Record]:
        """The records without wall-clock time: equal for equal configs."""
        return [{name: value for name, value in record.items() if name != "seconds"} for record in self.records]

    def append(self, record: Record) -> None:
        """Add a record, and make it durable where the history has a folder."""
        self.records.append(dict(record))
        if self.folder is not None:
            with open(self.folder / HISTORY_FILE, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())

    def keep_until(self, rounds: int) -> None:
        """Drop the records after a round, because a resumed run measures these rounds again."""
        self.records = [record for record in self.records if record["round"] <= rounds]
        if self.folder is not None:
            text = "".join(json.dumps(record) + "\n" for record in self.records)
            write_atomically(self.folder / HISTORY_FILE, lambda file: file.write(text.encode()))

    def write_config(self) -> None:
        """Begin the run's folder: the resolved config, its hash, and an empty history."""
        assert self.folder is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        self.keep_until(-1)  # the config comes last: a folder that has one is a run
        content = {"hash": self.hash, "label": self.label, "seed": self.seed, "config": self.config}
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        write_atomically(self.folder / CONFIG_FILE, lambda file: file.write(text.encode()))

    @classmethod
    def load(cls, folder: str | Path) -> History:
        """Read a run's folder; an unfinished last line (a crash while writing) is dropped."""
        folder = Path(folder)
        try:
            about = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
            lines = (folder / HISTORY_FILE).read_text(encoding="utf-8").split("\n")
            records = [json.loads(line) for line in lines[:-1]]
            return cls(about["config"], about["hash"], about["label"], about["seed"], records, folder=folder)
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(f"{folder} does not hold a run's history ({error})") from None

    def to_dataframe(self) -> pandas.DataFrame:
        """The records as a pandas DataFrame (needs `pip install netfleet[pandas]`)."""
        try:
            import pandas
        except ImportError:
            raise ConfigError("a DataFrame needs pandas; pip install 'netfleet[pandas]'") from None

        return pandas.DataFrame(self.records).assign(algorithm=self.label, seed=self.seed)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw the curves of this run; returns the matplotlib figure, and saves it where a path is given."""
        from netfleet.report.plots import draw_curves

        figure = draw_curves([self])
        if path is not None:
            figure.savefig(path)
        return figure


class Band(NamedTuple):
    """Mean, lowest and highest over seeds at each place of the horizontal axis."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats


def group(histories: Iterable[History]) -> dict[str, list[History]]:
    """The histories of each label, labels in order of appearance."""
    groups: dict[str, list[History]] = {}
    for history in histories:
        groups.setdefault(history.label, []).append(history)
    return groups


def band(histories: Iterable[History], column: str, x: str = "round") -> Band:
    """Mean and range of a column over seeds, which meet by round; a round counts the seeds that reached it."""
    points: dict[int, list[tuple[float, float]]] = {}
    for history in histories:
        for record in history:
            place, value = record.get(x), record.get(column)
            if place is not None and value is not None and math.isfinite(value):
                points.setdefault(record["round"], []).append((place, value))
    rows = [np.array(points[t], dtype=np.float64).T for t in sorted(points)]
    statistics = [(places.mean(), values.mean(), values.min(), values.max()) for places, values in rows]
    return Band(*np.array(statistics, dtype=np.float64).reshape(-1, 4).T)


def has(histories: Iterable[History], column: str) -> bool:
    return any(record.get(column) is not None for history in histories for record in history)
