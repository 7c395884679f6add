"""Finished runs by the hash of their config: one small JSON file each, for a repository to keep.

A file has the resolved config, its hash and the columns of the history with SIGNIFICANT digits. `read` rejects a file
whose name is not the hash of its config.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from netfleet.errors import CheckpointError
from netfleet.files import make_folder, write_atomically
from netfleet.runs.config import RunConfig, config_hash, experiment
from netfleet.runs.history import History

SIGNIFICANT = 6


class Store:
    """Results in some folders; the first also takes new ones."""

    def __init__(self, folder: Path, *others: Path) -> None:
        self.folders = list(dict.fromkeys((folder, *others)))

    def load(self, run: RunConfig) -> History | None:
        """The finished run under the label that it has here, or None."""
        path = next((p for folder in self.folders if (p := folder / file_name(run.hash)).exists()), None)
        history = read(path) if path else None
        if history:
            history.label = run.label
        return history

    def adopt(self, run: RunConfig) -> None:
        if not (self.folders[0] / file_name(run.hash)).exists() and (history := self.load(run)) is not None:
            self.save(history)

    def save(self, history: History) -> None:
        make_folder(self.folders[0])
        text = written(history)
        write_atomically(self.folders[0] / file_name(history.hash), lambda file: file.write(text.encode()))


def rehash(folder: Path) -> list[str]:
    """Give results the options that netfleet has gained since, each at its default; what each result gained.

    Sound only where the defaults compute what was computed before the options were there: verify afterwards. A config
    that today resolves to something else than more options is left as it is.
    """
    gained = []
    for path in sorted(folder.glob("*.json")):
        history = read(path)
        was = history.config
        table = {key: was[key] for key in ("rounds", "topology", "problem", "evaluation", "network") if key in was}
        rest = {"algorithms": [was["algorithm"]], "engine": {"dtype": was["dtype"]}, "seeds": [was["seed"]]}
        config = experiment(table | rest).runs()[0].config  # as an experiment file of today would resolve it
        old, new = set(_leaves(was)), set(_leaves(config))
        if old < new:
            history.config, history.hash = config, config_hash(config)
            Store(folder).save(history)
            path.unlink()
            gained.append(", ".join(sorted(f"{key} = {value}" for key, value in new - old)))
    return gained


def _leaves(table: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every value of nested tables with the path to it."""
    if isinstance(table, dict):
        for key, value in table.items():
            yield from _leaves(value, f"{path}.{key}".lstrip("."))
    else:
        yield path, json.dumps(table)


def short(run_hash: str) -> str:
    """The part of the hash that names the files and folders of a run."""
    return run_hash[:16]


def file_name(run_hash: str) -> str:
    return f"{short(run_hash)}.json"


def written(history: History) -> str:
    """A history as text: one line per column, so that a change shows in a diff."""
    columns = {name: [rounded(record.get(name)) for record in history] for name in history.columns}
    lines = [f"    {json.dumps(name)}: {json.dumps(values, separators=(',', ':'))}" for name, values in columns.items()]
    about = {"hash": history.hash, "seed": history.seed, "diverged": history.diverged, "config": history.config}
    head = "".join(f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)},\n" for key, value in about.items())
    return "{\n" + head + '  "columns": {\n' + ",\n".join(lines) + "\n  }\n}\n"


def read(path: Path) -> History:
    """The history in a file; raises where the file is damaged or its config is not the one that its hash names."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        columns: dict[str, list[Any]] = content["columns"]
        rows = zip(*columns.values(), strict=True)
        records = [{k: v for k, v in zip(columns, row, strict=True) if v is not None} for row in rows]
        history = History(content["config"], content["hash"], "", content["seed"], records, content["diverged"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is not the result of a run ({error!r}); delete it to run it again") from None
    if config_hash(history.config) != history.hash or path.name != file_name(history.hash):
        raise CheckpointError(f"{path} has a config whose hash is not the file's name; delete it to run it again")
    return history


def rounded(value: Any) -> Any:
    """A value with the digits that are stored."""
    return float(f"{value:.{SIGNIFICANT}g}") if isinstance(value, float) else value
