"""The examples for clusters and for a training loop of one's own do what they say."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from netfleet import History, load_experiment
from netfleet.cli import _parser
from netfleet.runs.build import build_job, build_setting
from netfleet.runs.progress import Quiet
from netfleet.runs.run import run_one
from support.torchrun import EXPERIMENT, finish, free_port, start

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
LOOPS = EXAMPLES / "own_loop"


def test_a_loop_becomes_decentralized_by_a_handful_of_lines() -> None:
    plain, ours = ((LOOPS / name).read_text().splitlines() for name in ("plain.py", "decentralized.py"))
    body = [lines[lines.index('"""', 1) :] for lines in (plain, ours)]
    changed = [line for line in difflib.ndiff(*body) if line.startswith("+ ")]
    assert len(changed) <= 12, changed


@pytest.mark.parametrize(("script", "ranks", "steps"), [("plain.py", 1, 300), ("decentralized.py", 2, 75)])
def test_both_loops_learn(script: str, ranks: int, steps: int) -> None:
    options = ["--data", "digits", "--lr", "0.05", "--steps", str(steps)]
    ends = finish(start([str(LOOPS / script), *options], ranks))
    assert [code for code, _, _ in ends] == [0] * ranks, ends[0][2]
    assert float(re.findall(r"accuracy ([\d.]+) %", ends[0][1])[-1]) > 60  # guessing: 10


def test_the_simulated_loop_is_the_same_setting() -> None:
    (only,) = load_experiment(LOOPS / "simulated.toml").runs()
    script = (LOOPS / "decentralized.py").read_text()
    assert only.config["algorithm"]["eta"] == float(re.search(r'"--lr".*default=([\d.]+)', script)[1])  # type: ignore[index]
    assert only.config["rounds"] == int(re.search(r'"--steps".*default=(\d+)', script)[1])  # type: ignore[index]
    assert f"K={only.config['algorithm']['K']}" in script
    assert f"batch_size={only.config['problem']['batch']}" in script


def test_the_slurm_script_runs_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name, text in (("scontrol", "echo 127.0.0.1"), ("srun", 'shift 2; exec "$@"')):
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "cluster.toml").write_text(EXPERIMENT)
    experiment, folder = load_experiment(tmp_path / "cluster.toml"), tmp_path / "out" / "net-fleet-seed0"
    (only,) = experiment.runs()
    job = build_job(only.config["algorithm"], 0, experiment, build_setting(experiment, 0))
    before = run_one(experiment, only, lambda: job, folder, Quiet(), stop=30, label="begun")
    script = tmp_path / "netfleet.slurm"  # with a port that is free here
    script.write_text((EXAMPLES / "cluster" / script.name).read_text().replace(":29500", f":{free_port()}"))
    slurm = {"SLURM_JOB_NODELIST": "here", "SLURM_NNODES": "1", "SLURM_CPUS_PER_TASK": "2", "SLURM_JOB_ID": "7"}
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["bash", str(script), str(tmp_path / "cluster.toml"), str(tmp_path / "out")]
    env = {**os.environ, "PATH": path, **slurm}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    after = History.load(folder)
    assert after.records[: len(before.records)] == before.records
    assert after["round"][-1] == 60 > before["round"][-1]


def test_the_manifest_asks_for_a_command_that_there_is() -> None:
    text = (EXAMPLES / "cluster" / "kubernetes.yaml").read_text()
    arguments = re.findall(r"^            - (\S+)$", text, flags=re.MULTILINE)
    where = arguments.index("netfleet")
    assert arguments[where - 1] == "-m"
    options = _parser().parse_args(arguments[where + 1 :])
    assert (options.engine, options.resume) == ("distributed", True)
    assert all(f"name: {name}" in text for name in re.findall(r"claimName: (\S+)", text))
