"""Which saved runs an experiment may resume, and how a run with fewer rounds becomes one with more."""

import json
from collections.abc import Iterable
from pathlib import Path

from netfleet.errors import CheckpointError, ConfigError
from netfleet.runs import checkpoint
from netfleet.runs.config import RunConfig, Table
from netfleet.runs.history import CONFIG_FILE, History


def differing(old: Table, new: Table, prefix: str = "") -> dict[str, tuple[object, object]]:
    """The keys whose values differ, with dots for tables within tables; None stands for a key that is missing.

    >>> differing({"rounds": 5, "topology": {"kind": "ring"}}, {"rounds": 5, "topology": {"kind": "torus"}})
    {'topology.kind': ('ring', 'torus')}
    """
    found: dict[str, tuple[object, object]] = {}
    for key in dict.fromkeys([*old, *new]):
        one, other = old.get(key), new.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            found |= differing(one, other, f"{prefix}{key}.")
        elif json.dumps(one) != json.dumps(other):  # a tuple that was read from JSON is a list
            found[f"{prefix}{key}"] = (one, other)
    return found


def check_same(run: RunConfig, folder: Path) -> History:
    """The history in the folder, which must be of this run."""
    history = History.load(folder)
    if history.hash != run.hash:
        advice = "resume with the experiment that it was started with, or choose another folder"
        raise CheckpointError(f"{folder} holds a run of another experiment: {_difference(history, run)}; {advice}")
    return history


def check_resumable(run: RunConfig, folder: Path) -> History:
    """The history in the folder, which must be of this run or of the same with fewer rounds."""
    history = History.load(folder)
    if is_longer(run, history):
        if run.config.get("privacy", {}).get("exact_rounds"):
            raise CheckpointError(
                f"{folder} cannot be resumed with more rounds: its last ones had no link noise (privacy.exact_rounds), "
                f"as the last of a longer run; choose another folder"
            )
        return history
    if (changed := differing(history.config, run.config)).keys() == {"rounds"}:
        advice = f"a resumed run can only grow; set rounds={changed['rounds'][0]} or more, or choose another folder"
        raise CheckpointError(f"{folder} holds a longer run: {_difference(history, run)}; {advice}")
    if any(key.startswith("algorithm.eta") for key in changed):
        reason = (
            "the rounds that are done had other step sizes, so the result would not be that of a run from the start"
        )
        advice = "leave eta as it is, or choose another folder"
        raise CheckpointError(f"{folder} cannot be resumed: {_difference(history, run)}; {reason}; {advice}")
    return check_same(run, folder)


def is_longer(run: RunConfig, history: History) -> bool:
    """Whether the run is that of the history with more rounds."""
    return run.config["rounds"] > history.config.get("rounds", 0) and (
        differing(history.config, run.config).keys() == {"rounds"}
    )


def check_can_grow(run: RunConfig) -> None:
    """Raise if the noise of the rounds that are done was solved for a smaller number of rounds."""
    privacy = run.config.get("privacy")
    if privacy is not None and privacy["clip"] is not None and privacy["noise"] is None:
        raise ConfigError(
            f"{run.label}: privacy.epsilon was spent on the rounds that are done, so this run cannot have more; start "
            f"another one, or give privacy.noise"
        )


def lengthen(run: RunConfig, folder: Path) -> None:
    """Turn a saved run into one with more rounds, which is resumed from its checkpoint as if it had been interrupted.

    The last round was measured because it was the last: that record is dropped, and made again if it is due. The config
    is written at the end, so that the same command repeats what a crash has cut short.
    """
    check_can_grow(run)
    history = History.load(folder)
    if checkpoint.exists(folder):
        checkpoint.assign(folder, run.hash)
    history.keep_until(history.config["rounds"] - 1)
    history.config, history.hash = run.config, run.hash
    history.save_config()


def resumable(runs: Iterable[RunConfig], out: Path) -> list[tuple[RunConfig, Path]]:
    """The runs that the folder has already, each with its folder; raises if one cannot be resumed."""
    found = [(run, out / run.folder) for run in runs if (out / run.folder / CONFIG_FILE).exists()]
    for run, folder in found:
        check_resumable(run, folder)
    return found


def _difference(history: History, run: RunConfig) -> str:
    found = differing(history.config, run.config)
    words = [f"{key} is {_show(old)} there and {_show(new)} here" for key, (old, new) in found.items()]
    return ", ".join([*words[:4], *([f"and {len(words) - 4} more"] if len(words) > 4 else [])])


def _show(value: object) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)
