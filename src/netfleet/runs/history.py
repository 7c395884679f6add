"""The append-only record of a run, one JSON line per evaluation beside its config; and histories side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from netfleet.errors import CheckpointError, ConfigError
from netfleet.files import append_line, make_folder, write_atomically, writing
from netfleet.runs import worker_log
from netfleet.runs.config import Table
from netfleet.runs.scores import SCORES_FILE, Score, as_csv, read_scores

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from netfleet.engines.job import Snapshot

CONFIG_FILE, HISTORY_FILE, DIVERGED_FILE = "config.json", "history.jsonl", "diverged.txt"

#: One evaluation: the round and what was measured, by name; None where a value does not exist.
Record = dict[str, Any]
Floats = npt.NDArray[np.float64]
#: Which value of a column counts: of the last evaluation, of the best one, or after a round.
At = Literal["last", "best"] | int


_LOWER = (
    "loss",
    "error",
    "norm",
    "distance",
    "stationarity",
    "rmse",
    "mae",
    "perplexity",
    "bytes",
    "samples",
    "seconds",
)


def higher_is_better(column: str) -> bool:
    """Whether a larger value is the better one; so of a metric of your own, unless its name says error or loss."""
    return not any(word in column for word in _LOWER)


def metric_columns(histories: Iterable[History]) -> list[str]:
    """The columns of the metrics that the experiments asked for."""
    asked = ((history.config.get("evaluation") or {}).get("metrics", []) for history in histories)
    return list(dict.fromkeys(name.rpartition(":")[2] for names in asked for name in names))


_WORDS = {"auroc": "AUROC", "f1": "F1", "r2": "R²", "rmse": "RMSE", "mae": "MAE"}


def in_words(column: str) -> str:
    """A column as a reader sees it."""
    return _WORDS.get(column, column.replace("_", " "))


def is_percent(column: str) -> bool:
    """Whether a column is shown in per cent."""
    return "accuracy" in column


def describe(record: Record) -> str:
    """An evaluation in a few words."""
    if record.get("accuracy") is not None:
        quality = f"accuracy {100 * record['accuracy']:.1f} %"
    elif record.get("distance2") is not None:
        quality = f"‖x̄ − x*‖² {record['distance2']:.2e}"
    else:
        quality = f"loss {record['loss']:.4g}" if record.get("loss") is not None else f"round {record.get('round')}"
    apart = record.get("consensus_error")
    return quality if apart is None else f"{quality}  consensus error {apart:.1e}"


@dataclass(repr=False)
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
    #: Of x̄ at the end, where the experiment asks for metrics.
    scores: list[Score] = field(default_factory=list)
    #: The round of the checkpoint from which the run was resumed.
    resumed: int = 0

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __repr__(self) -> str:
        measured = describe(self.last) if self.records else "nothing measured"
        end = " (diverged)" if self.diverged else ""
        return f"<History of {self.label}, seed {self.seed}: round {self.rounds}, {measured}{end}>"

    def _repr_html_(self) -> str:
        from netfleet.report.table import summary_html

        return summary_html([self])

    def __getitem__(self, column: str) -> Floats:
        if not any(column in record for record in self.records):
            raise KeyError(f"no column {column!r}; there are: {', '.join(self.columns)}")
        values = [record.get(column) for record in self.records]
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for record in self.records for name in record))

    @property
    def kind(self) -> str:
        """The kind of its method: "net-fleet"."""
        table = self.config.get("algorithm")
        return str(table.get("kind", "")) if isinstance(table, dict) else ""

    @property
    def rounds(self) -> int:
        """Rounds done at the last evaluation."""
        return int(self.records[-1]["round"]) if self.records else 0

    @property
    def last(self) -> Record:
        return self.records[-1]

    def value(self, column: str, at: At = "last") -> float | None:
        """The last or best value of a column, or that after a round; None if there is none."""
        if at not in ("last", "best") and not isinstance(at, int):
            raise ConfigError(f'at must be "last", "best" or a round, got {at!r}')
        values = [r[column] for r in self.records if r.get(column) is not None and at in ("last", "best", r["round"])]
        if not values:
            return None
        best = max if higher_is_better(column) else min
        value = float(best(v for v in values) if at == "best" else values[-1])
        return value if math.isfinite(value) else None

    def timeless(self) -> list[Record]:
        """The records without wall-clock time: equal for equal configs."""
        return [{name: value for name, value in record.items() if name != "seconds"} for record in self.records]

    def append(self, record: Record) -> None:
        """Add a record, and make it durable where the history has a folder."""
        if self.folder is not None:
            append_line(self.folder / HISTORY_FILE, json.dumps(record))
        self.records.append(dict(record))

    def save_scores(self, scores: list[Score]) -> None:
        """Keep the scores of the trained model, in a file too where the history has a folder."""
        self.scores = scores
        if self.folder is not None:
            write_atomically(self.folder / SCORES_FILE, lambda file: file.write(as_csv(scores).encode()))

    def keep_until(self, rounds: int) -> None:
        """Drop the records after a round, because a resumed run measures these rounds again."""
        self.records = [record for record in self.records if record["round"] <= rounds]
        if self.folder is not None:
            text = "".join(json.dumps(record) + "\n" for record in self.records)
            write_atomically(self.folder / HISTORY_FILE, lambda file: file.write(text.encode()))
            (self.folder / DIVERGED_FILE).unlink(missing_ok=True)
            worker_log.keep_until(self.folder, rounds)
            if rounds < self.config.get("rounds", 0):  # the scores are those of the end
                (self.folder / SCORES_FILE).unlink(missing_ok=True)

    def mark_diverged(self, reason: str, *, durable: bool) -> None:
        """Say that and why the run ended with a non-finite value, in its folder too where this process writes there."""
        self.diverged = reason
        if self.folder is not None and durable:
            write_atomically(self.folder / DIVERGED_FILE, lambda file: file.write(f"{reason}\n".encode()))

    def write_config(self) -> None:
        """Begin the run's folder: the resolved config, its hash, and an empty history."""
        assert self.folder is not None
        make_folder(self.folder)
        self.keep_until(-1)  # the config comes last: a folder that has one is a run
        self.save_config()

    def save_config(self) -> None:
        """Write the config and what the run is called."""
        assert self.folder is not None
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
            ended = folder / DIVERGED_FILE
            diverged = ended.read_text(encoding="utf-8").strip() if ended.exists() else None
            scores, named = read_scores(folder), (about["config"], about["hash"], about["label"], about["seed"])
            return cls(*named, records, diverged, folder, scores=scores)
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(f"{folder} does not hold a run's history ({error})") from None

    def to_dataframe(self) -> pandas.DataFrame:
        """The records as a pandas DataFrame (needs `pip install netfleet[pandas]`); see `to_dataframe`."""
        return to_dataframe([self])

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw the curves of this run; returns the matplotlib figure, and saves it where a path is given."""
        from netfleet.report.plots import draw_curves

        return save_figure(draw_curves([self]), path)


def save_figure(figure: Figure, path: str | Path | None) -> Figure:
    """The figure, saved where a path is given."""
    if path is not None:
        with writing(Path(path)):
            figure.savefig(path)
    return figure


def to_dataframe(histories: Iterable[History]) -> pandas.DataFrame:
    """A tidy frame: a row per evaluation with the method's kind and label, the seed, what was measured, the folder."""
    try:
        import pandas
    except ImportError:
        raise ConfigError("a data frame needs pandas, not installed here; pip install 'netfleet[pandas]'") from None
    rows = [
        {
            "kind": history.kind,
            "label": history.label,
            "seed": history.seed,
            **record,
            "folder": str(history.folder or ""),
        }
        for history in histories
        for record in history
    ]
    first = ["kind", "label", "seed", "round"]
    names = dict.fromkeys([*first, *(name for row in rows for name in row if name != "folder"), "folder"])
    return pandas.DataFrame(rows, columns=list(names))


LARGEST_DRAWN = 1e100  # beyond, matplotlib's logarithmic axes overflow


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
            if place is not None and value is not None and abs(value) < LARGEST_DRAWN:
                points.setdefault(record["round"], []).append((place, value))
    rows = [np.array(points[t], dtype=np.float64).T for t in sorted(points)]
    statistics = [(places.mean(), values.mean(), values.min(), values.max()) for places, values in rows]
    return Band(*np.array(statistics, dtype=np.float64).reshape(-1, 4).T)


def has(histories: Iterable[History], column: str) -> bool:
    return any(record.get(column) is not None for history in histories for record in history)
