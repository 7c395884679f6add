"""The paper's setting in a plain PyTorch loop and in other libraries, each in an environment of its own.

Every turn runs all of them one after the other, each in a fresh process; ratios are taken within a turn.
"""

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import ResultTable, Spread, ratio
from benchmarks.processes import Unavailable, python_of, result
from benchmarks.setting import ETA, Setting
from netfleet.compute.threads import available_threads
from netfleet.data.tensors import only

ADAPTERS = Path(__file__).with_name("adapters")
CASES = (("cnn", "ordinary"), ("cnn", "tuned"), ("softmax", "ordinary"))
NOTES = [
    "p2pfl has no adapter: 0.4.4 installs with hand-made pins; 8 nodes ran, but no round of 20 or 50 nodes in one "
    "process ended within 60 to 110 s in the settings tried (its in-memory protocol, softmax regression).",
    "“tuned” models have pooling before ReLU and channels last in memory; “ordinary” ones are as tutorials write "
    "them. netfleet is given the same model as the other library.",
    "Every library ran with 1 and with all threads; the faster is shown. An adapter's head says what it runs.",
    "Ours is NET-FLEET, which exchanges two vectors, as K-GT does; the others exchange one. FedAvg has a server.",
    "Memory is the peak of one process; Flower's actors and pfl's second process are not in it.",
]


def run(setting: Setting) -> ResultTable:
    table = ResultTable(
        f"One round of {setting.m} workers, K = {setting.K}, batch {setting.batch}, in other libraries",
        "library | model | threads | seconds per round | ÷ ours | memory, MB | ours, MB",
    )
    pythons: dict[str, str] = {}
    for script in sorted(ADAPTERS.glob("*.py")):
        if script.stem not in ("job", "ours"):
            try:
                pythons[script.stem] = python_of(script, make=setting.pick(True, True, False))
            except Unavailable as reason:
                table.notes.append(f"{script.stem}: {reason}")
    with tempfile.TemporaryDirectory() as folder:
        job, data = Path(folder) / "job.npz", setting.images()  # what adapters/job.py reads
        arrays = {
            "x": only(data.train_x).numpy(),
            "y": only(data.train_y).numpy(),
            "W": setting.topology().W().toarray(),
        }
        parts = np.stack(np.array_split(np.arange(len(data.train_y)), setting.m))
        numbers = {"batch": setting.batch, "K": setting.K, "eta": ETA, "seed": 0}
        np.savez(job, parts=parts, **arrays, **numbers)  # type: ignore[arg-type]
        for model, layout in setting.pick(CASES, CASES, CASES[2:]):
            _compare(table, pythons, setting, [str(job), "--model", model, "--layout", layout])
    table.notes += NOTES
    return table


def _compare(table: ResultTable, pythons: dict[str, str], setting: Setting, case: list[str]) -> None:
    """All libraries on one case: find each one's better number of threads, then take turns."""
    _, _, model, _, layout = case
    threads = {name: best for name in pythons if (best := _best_threads(table, name, pythons[name], setting, case))}
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in ("ours", *threads)}
    rounds = 10 if setting.pick(True, False, False) and model != "cnn" else 2
    for _ in range(setting.pick(3, 1, 1)):
        for name, found in turns.items():
            own = ["--threads", str(threads[name])] if name in threads else []
            python = [pythons.get(name, sys.executable), f"{ADAPTERS}/{name}.py"]
            found.append(result([*python, *case, *own, "--rounds", str(rounds)]))
    ours = _medians(turns["ours"])
    for name, found in turns.items():
        memory = [max(turn["peak_mb"] for turn in some) for some in (found, turns["ours"])]
        for label, key in ((name, "seconds"), (f"{name}, K-GT", "kgt")):
            if key in found[0]:
                times, used = _medians(found, key), threads.get(name, "all")
                table.add(label, f"{model}, {layout}", used, Spread.of(times), ratio(times, ours), *memory)


def _best_threads(table: ResultTable, name: str, python: str, setting: Setting, case: list[str]) -> int | None:
    """One or all; None where the library cannot run the case."""
    candidates = {1} if setting.pick(False, False, True) else {1, available_threads()}
    if len(candidates) == 1:
        return 1
    try:
        command = [python, f"{ADAPTERS}/{name}.py", *case, "--rounds", "1", "--threads"]
        trials = [(result([*command, str(n)]), n) for n in candidates]
    except Unavailable as reason:
        table.notes.append(f"{name}, {case[4]} {case[2]}: {reason}")
        return None
    return min((_medians([found])[0], n) for found, n in trials)[1]


def _medians(turns: list[dict[str, Any]], key: str = "seconds") -> list[float]:
    return [statistics.median(turn[key]) for turn in turns]
