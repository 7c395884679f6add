"""The workers one by one in a run's folder, and which process makes its runs."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from netfleet.runs.config import experiment
from netfleet.runs.process_file import PROCESS_FILE, life, process_file
from netfleet.runs.run import run_experiment
from netfleet.runs.worker_log import WORKERS_FILE, WorkerLog, keep_until

TABLE = {
    "rounds": 6,
    "topology": {"kind": "ring", "workers": 4},
    "problem": {"data": "digits", "partition": "iid", "model": "softmax"},
    "algorithms": [{"kind": "net-fleet", "K": 2, "eta": 0.1}],
    "evaluation": {"every": 2},
}


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / WORKERS_FILE).read_text().splitlines()]


def test_the_workers_one_by_one_agree_with_the_history_which_stays_the_same(tmp_path: Path) -> None:
    (with_workers,) = run_experiment(experiment(TABLE), tmp_path / "with", record_workers=True)
    (without,) = run_experiment(experiment(TABLE), tmp_path / "without")
    assert with_workers.timeless() == without.timeless()
    assert with_workers.hash == without.hash
    assert without.folder is not None
    assert with_workers.folder is not None
    assert not (without.folder / WORKERS_FILE).exists()
    found = lines(with_workers.folder)
    assert [line["round"] for line in found] == [0, 2, 4, 6]
    for line, record in zip(found, with_workers, strict=True):
        accuracy, distance = np.array(line["accuracy"]), np.array(line["distance"])
        assert len(accuracy) == 4
        parts = accuracy.mean(), accuracy.min(), accuracy.max()
        np.testing.assert_allclose(parts, [record[f"worker_accuracy_{part}"] for part in ("mean", "min", "max")], 1e-5)
        np.testing.assert_allclose(np.mean(distance**2), record["consensus_error"], 1e-5)


def test_a_resumed_run_has_every_evaluation_once(tmp_path: Path) -> None:
    run_experiment(experiment(TABLE | {"rounds": 4}), tmp_path, record_workers=True)
    (longer,) = run_experiment(experiment(TABLE), tmp_path, record_workers=True, resume=True)
    assert longer.folder is not None
    assert [line["round"] for line in lines(longer.folder)] == [0, 2, 4, 6]


def test_the_file_stays_small_and_keeps_evaluations_at_equal_distances(tmp_path: Path) -> None:
    log = WorkerLog(tmp_path, workers=100_000)  # 32 evaluations at most
    for t in range(1000):
        log.append(t, {"loss": [t / 3, math.nan]})
        assert len(lines(tmp_path)) <= 32
    rounds = [int(str(line["round"])) for line in lines(tmp_path)]
    assert rounds[0] == 0
    assert len(set(np.diff(rounds))) == 1
    assert rounds[-1] > 900
    assert lines(tmp_path)[-1]["loss"] == [pytest.approx(rounds[-1] / 3, rel=1e-5), None]
    keep_until(tmp_path, 500)
    assert [line["round"] for line in lines(tmp_path)] == [t for t in rounds if t <= 500]


def test_a_folder_says_whether_the_process_of_its_runs_lives(tmp_path: Path) -> None:
    assert life(tmp_path) == ("ended", "")
    with process_file(tmp_path):
        assert life(tmp_path) == ("alive", "")
        about = json.loads((tmp_path / PROCESS_FILE).read_text())
    assert life(tmp_path) == ("ended", "")
    (tmp_path / PROCESS_FILE).write_text(json.dumps(about | {"started": "1"}))  # another process has got this number
    assert life(tmp_path) == ("dead", "")
    (tmp_path / PROCESS_FILE).write_text(json.dumps(about | {"host": "another machine"}))
    assert life(tmp_path) == ("elsewhere", "")
    (tmp_path / PROCESS_FILE).write_text('{"pid":')
    assert life(tmp_path) == ("ended", "")


def test_a_process_that_is_killed_or_fails_is_dead(tmp_path: Path) -> None:
    program = (
        "import os, sys, pathlib; from netfleet.runs.process_file import process_file\n"
        "with process_file(pathlib.Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=dict(os.environ))
    assert killed.returncode == -9
    assert life(tmp_path) == ("dead", "")

    def fail() -> None:
        with process_file(tmp_path):
            raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        fail()
    assert life(tmp_path) == ("dead", "ValueError: no more")
