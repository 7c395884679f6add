"""The paper's setting in a plain PyTorch loop and in other libraries, each in an environment of its own.

Every turn runs all of them one after the other, each in a fresh process; ratios are taken within a turn.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import setting
from benchmarks.environments import Unavailable, environment
from benchmarks.measure import Report, Spread, ratio
from netfleet.compute.threads import available_threads

ADAPTERS = Path(__file__).with_name("adapters")
#: Peers that have no adapter, and why.
ABSENT = {
    "p2pfl": "0.4.4 installs with hand-made pins; 8 nodes ran, but no round of 20 or 50 nodes in one process ended "
    "within 60 to 110 s in the settings tried (its in-memory protocol, softmax regression)."
}
_CASES = (("cnn", "ordinary"), ("cnn", "tuned"), ("softmax", "ordinary"))
_TIMEOUT = 900


def run(quick: bool) -> Report:
    """Seconds per round of every peer ÷ ours."""
    report = Report(
        "peers",
        "One round of 50 workers, K = 10, batch 32, in other libraries",
        ("library", "model", "threads", "seconds per round", "÷ ours", "memory, MB", "ours, MB"),
    )
    names = [path.stem for path in sorted(ADAPTERS.glob("*.py")) if path.stem not in ("job", "ours")]
    pythons: dict[str, str] = {}
    for name in names:
        try:
            pythons[name] = environment(ADAPTERS / f"{name}.py")
        except Unavailable as reason:
            report.notes.append(f"{name}: not installed: {reason}")
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.npz"
        _write_job(job)
        for model, layout in _CASES:
            _compare(report, pythons, job, ["--model", model, "--layout", layout], quick)
    report.notes += [f"{name}: {reason}" for name, reason in ABSENT.items()]
    report.notes += [
        "“tuned” models have pooling before ReLU and channels last in memory; “ordinary” ones are as tutorials write "
        "them. netfleet is given the same model as the peer.",
        "Every library ran with 1 and with all threads; the faster is shown. An adapter's head says what it runs.",
        "Ours is NET-FLEET, which exchanges two vectors, as K-GT does; the others exchange one. FedAvg has a server.",
        "Memory is the peak of one process; Flower's actors and pfl's second process are not in it.",
    ]
    return report


def _compare(report: Report, pythons: dict[str, str], job: Path, case: list[str], quick: bool) -> None:
    """All libraries on one case: find each one's better number of threads, then take turns."""
    arguments: dict[str, list[str]] = {}
    for name, python in pythons.items():
        trials = {}
        for threads in sorted({1, available_threads()}):
            options = [str(job), *case, "--threads", str(threads)]
            try:
                trials[threads] = _seconds(_execute(python, name, [*options, "--rounds", "1"]))
            except Unavailable as reason:
                report.notes.append(f"{name}, {case[3]} {case[1]}: {reason}")
                break
        if trials:
            arguments[name] = [str(job), *case, "--threads", str(min(trials, key=trials.__getitem__))]
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in ["ours", *arguments]}
    rounds = ["--rounds", "2" if quick or case[1] == "cnn" else "10"]
    for _ in range(1 if quick else 3):
        turns["ours"].append(_execute(sys.executable, "ours", [str(job), *case, *rounds]))
        for name, options in arguments.items():
            turns[name].append(_execute(pythons[name], name, [*options, *rounds]))
    ours = [_seconds(turn) for turn in turns["ours"]]
    for name, found in turns.items():
        times = [_seconds(turn) for turn in found]
        memory = [f"{max(turn['peak_mb'] for turn in t)}" for t in (found, turns["ours"])]
        used = "all" if name == "ours" else arguments[name][-1]
        report.add(name, f"{case[1]}, {case[3]}", used, Spread.of(times), ratio(times, ours), *memory)
        if "kgt" in found[0]:
            times = [statistics.median(turn["kgt"]) for turn in found]
            report.add(f"{name}, K-GT", f"{case[1]}, {case[3]}", used, Spread.of(times), ratio(times, ours), *memory)


def _seconds(found: dict[str, Any]) -> float:
    return float(statistics.median(found["seconds"]))


def _execute(python: str, name: str, arguments: list[str]) -> dict[str, Any]:
    """Run an adapter and read the line that it ends with."""
    command = [python, str(ADAPTERS / f"{name}.py"), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"took more than {_TIMEOUT} s") from None
    if done.returncode != 0:
        raise Unavailable((done.stderr.strip().splitlines() or ["no output"])[-1])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _write_job(path: Path) -> None:
    data, topology = setting.images(), setting.network()
    parts = np.stack(np.array_split(np.arange(len(data.train_y)), setting.M))
    np.savez(
        path,
        x=data.train_x.numpy(),
        y=data.train_y.numpy(),
        parts=parts,
        W=topology.W().toarray(),
        batch=setting.BATCH,
        K=setting.K,
        eta=setting.ETA,
        seed=0,
    )
