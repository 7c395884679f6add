"""Saved runs of one or more experiments side by side: which folders hold runs, and labels that tell them apart."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from netfleet.errors import ConfigError
from netfleet.runs.config import Table, config_hash
from netfleet.runs.history import CONFIG_FILE, HISTORY_FILE, History
from netfleet.runs.resume import differing


def find_runs(folders: Sequence[Path]) -> list[History]:
    """The runs in some folders and below them; runs of one label are those of one method in one setting.

    A label that several settings have gets the name of the folder, or what differs within one folder, added.
    """
    histories = load_histories(folders)
    names = _names(histories)
    named = [replace(history, label=names[_setting(history)]) for history in histories]
    owner: dict[tuple[str, int], History] = {}
    for history in named:
        other = owner.setdefault((history.label, history.seed), history)
        if other is not history:
            cause = f"{other.folder} and {history.folder} both hold {history.label} with seed {history.seed}"
            raise ConfigError(f"{cause}; delete or move one of them")
    return named


def load_histories(folders: Sequence[Path]) -> list[History]:
    """The runs in some folders and below them, each once, as they were saved."""
    places = dict.fromkeys(place for folder in folders for place in _places(folder))
    return sorted(map(History.load, places), key=lambda h: (_parent(h), h.label, h.seed))


def _places(folder: Path) -> list[Path]:
    found = [path.parent.resolve() for path in sorted(folder.rglob(CONFIG_FILE))]
    found = [place for place in found if (place / HISTORY_FILE).exists() and not place.name.startswith(".")]
    if not found:
        cause = f"{folder} is not a folder" if not folder.is_dir() else f"no runs in {folder}"
        advice = (
            f"give a folder that `netfleet run`, `tune` or `sweep` wrote, or nf.run ({CONFIG_FILE}, {HISTORY_FILE})"
        )
        raise ConfigError(f"{cause}; {advice}")
    return found


class _Setting(NamedTuple):
    """What the seeds of one method in one experiment share."""

    parent: Path
    label: str
    hash: str  # of the config without the seed


def _setting(history: History) -> _Setting:
    return _Setting(_parent(history), history.label, config_hash(_seedless(history.config)))


def _seedless(config: Table) -> Table:
    return {key: value for key, value in config.items() if key != "seed"}


def _parent(history: History) -> Path:
    assert history.folder is not None
    return history.folder.parent


def _names(histories: Iterable[History]) -> dict[_Setting, str]:
    """A name for each setting: its label where no other has it."""
    configs = {_setting(history): _seedless(history.config) for history in histories}
    names = {}
    for setting in configs:
        alike = [other for other in configs if other.label == setting.label]
        parents = sorted({other.parent for other in alike})
        beside = [configs[other] for other in alike if other.parent == setting.parent]
        prefix = f"{setting.parent.relative_to(_common(parents))}: " if len(parents) > 1 else ""
        names[setting] = f"{prefix}{setting.label}{suffix(configs[setting], beside)}"
    return names


def suffix(config: Table, beside: Sequence[Table]) -> str:
    """What tells a config from others that have the same label, itself among them.

    >>> suffix({"K": 5, "eta": 0.1}, [{"K": 1, "eta": 0.1}, {"K": 5, "eta": 0.1}])
    ', K = 5'
    """
    keys = dict.fromkeys(key for other in beside for key in differing(beside[0], other))
    return "".join(f", {key.removeprefix('algorithm.')} = {_at(config, key)}" for key in keys)


def _common(parents: Sequence[Path]) -> Path:
    """The folder from which the parents' names differ."""
    common = Path(os.path.commonpath(parents))
    return common.parent if common in parents else common


def _at(config: Table, key: str) -> str:
    value: object = config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def differ_beyond_algorithm(histories: Sequence[History]) -> list[str]:
    """The keys besides the algorithm and the seed in which runs differ: what a comparison of methods may hide."""
    settings = [{k: v for k, v in h.config.items() if k not in ("algorithm", "seed")} for h in histories]
    distinct = list({config_hash(setting): setting for setting in settings}.values())
    return list(dict.fromkeys(key for setting in distinct[1:] for key in differing(distinct[0], setting)))
