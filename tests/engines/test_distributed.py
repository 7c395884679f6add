"""The cluster: the same trajectories on any number of ranks, few bytes, and what happens when a rank dies."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from netfleet import History, load_experiment, run_experiment
from netfleet.cli import main
from netfleet.engines import Job, make_engine
from netfleet.runs import checkpoint
from support.cluster_ranks import ROUNDS, cases, optimizers
from support.problems import Memory
from support.torchrun import EXPERIMENT, finish, start

RANKS = 4


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the ranks computed."""
    out = tmp_path_factory.mktemp("ranks")
    ends = finish(start([str(Path(__file__).parents[1] / "support" / "cluster_ranks.py"), str(out)], RANKS))
    assert [code for code, _, _ in ends] == [0] * RANKS, ends[0][2][-3000:]
    return out


@pytest.fixture(scope="module")
def trajectories(computed: Path) -> Mapping[int, Any]:
    """What each number of ranks computed."""
    return {n: torch.load(computed / f"{n}.pt") for n in range(1, RANKS + 1)}


@pytest.fixture(scope="module")
def simulated() -> Mapping[str, Memory]:
    found = {}
    for name, (problem, method, network) in cases().items():
        found[name] = Memory()
        make_engine("simulator").run(Job(problem, network, method, ROUNDS, found[name], None, 1))
    return found


@pytest.mark.parametrize("name", list(cases()))
def test_ranks_compute_what_the_simulator_does(name: str, trajectories: Any, simulated: Any) -> None:
    tolerance = 1e-5 if "digits" in name else 1e-10
    for n in range(1, RANKS + 1):
        ours, theirs = trajectories[n][name], simulated[name].snapshots
        assert len(ours) == len(theirs) == ROUNDS + 1
        for (t, state, sent, used), snapshot in zip(ours, theirs, strict=True):
            assert (t, sent, used) == (snapshot.t, snapshot.bytes, snapshot.samples)
            for a, b in zip(state, snapshot.state, strict=True):
                assert torch.allclose(a, b, rtol=0, atol=tolerance * (1 + float(b.norm())))


@pytest.mark.parametrize("name", [name for name, case in cases().items() if not case[1].server])
def test_without_a_server_every_number_of_ranks_has_the_same_bits(name: str, trajectories: Any) -> None:
    for n in range(2, RANKS + 1):
        for ours, theirs in zip(trajectories[n][name], trajectories[1][name], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours[1], theirs[1], strict=True)), n


@pytest.fixture(scope="module")
def models(computed: Path) -> list[Any]:
    """What each rank's own training loop computed."""
    return [torch.load(computed / f"optimizer-{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("name", list(optimizers()))
def test_an_optimizer_takes_the_simulators_rounds_also_after_saving(name: str, models: Any) -> None:
    problem, method, network = optimizers()[name]
    memory = Memory()
    make_engine("simulator").run(Job(problem, network, method, ROUNDS, memory, None, 1))
    for t in range(ROUNDS):
        ours = torch.stack([rank[name][t] for rank in models])
        assert torch.allclose(ours, memory.snapshots[t + 1].state.x, rtol=0, atol=1e-10)


@pytest.fixture(scope="module")
def checks(computed: Path) -> list[Any]:
    """What each rank saw besides."""
    return [torch.load(computed / f"checks-{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("kind", ["dsgd", "net-fleet", "ld-sgd"])
def test_an_optimizer_averages_the_statistics_of_batch_norm(kind: str, checks: Any) -> None:
    own, averaged = zip(*(rank["means"][kind] for rank in checks), strict=True)
    assert max(own) - min(own) < 10  # apart they would be at 0 and nearly 30
    assert averaged == pytest.approx([sum(own) / RANKS] * RANKS)


def test_ranks_that_were_given_different_things_are_told(checks: Any) -> None:
    for rank in checks:
        for name, words in (("size", "number of parameters"), ("method", "method"), ("graph", "topology")):
            assert f"the same {words}" in rank["said"][name]


def command(folder: Path, *more: str) -> list[str]:
    path = folder / "cluster.toml"
    path.write_text(EXPERIMENT)
    return ["-m", "netfleet", "run", str(path), "--out", str(folder / "out"), "--engine", "distributed", *more]


def test_a_rank_that_dies_ends_the_run_and_others_go_on_from_its_checkpoint(tmp_path: Path) -> None:
    processes = start(command(tmp_path, "--set", "rounds=100000"), 2)
    manifest = tmp_path / "out" / "net-fleet-seed0" / "checkpoint.json"
    for _ in range(1200):
        if manifest.exists() or processes[0].poll() is not None:
            break
        time.sleep(0.05)
    processes[1].kill()
    ends = finish(processes)
    assert ends[0][0] == 2, ends[0][2]
    assert "a process has died or a connection was lost" in ends[0][2]
    assert "--resume" in ends[0][2]
    t = checkpoint.reached(manifest.parent)
    rounds = f"rounds={t + 25}"
    (run_,) = load_experiment(tmp_path / "cluster.toml", [rounds]).runs()
    about = json.loads((manifest.parent / "config.json").read_text())
    (manifest.parent / "config.json").write_text(json.dumps(about | {"hash": run_.hash, "config": run_.config}))
    manifest.write_text(manifest.read_text().replace(about["hash"], run_.hash))  # the same run, ended sooner
    ends = finish(start(command(tmp_path, "--set", rounds, "--resume"), 3))
    assert [code for code, _, _ in ends] == [0, 0, 0], ends[0][2]
    ours = History.load(manifest.parent)
    (theirs,) = run_experiment(load_experiment(tmp_path / "cluster.toml", [rounds]))
    assert [r["round"] for r in ours] == [r["round"] for r in theirs]
    for name in ("loss", "consensus_error", "distance2", "grad_norm2", "bytes", "samples"):
        assert np.allclose(ours[name], theirs[name], rtol=1e-9, atol=1e-12), name


def test_without_torchrun_the_command_says_how_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert main(command(tmp_path)[2:]) == 2
    assert "torchrun --nproc-per-node" in capsys.readouterr().err


FAILING = """
import os
from netfleet.errors import DataError
from netfleet.problems.synthetic import Quadratics

def factory(workers, seed):
    if os.environ["RANK"] == "1":
        raise DataError("the file is missing on this machine")
    return Quadratics(workers, seed=seed)
"""


def test_an_error_on_one_rank_is_said_by_that_rank(tmp_path: Path) -> None:
    (tmp_path / "sometimes.py").write_text(FAILING)
    more = ["--set", 'problem={kind="sometimes:factory"}']
    ends = finish(start(command(tmp_path, *more), 2, PYTHONPATH=f"{tmp_path}:{Path(__file__).parents[1]}"))
    assert [code for code, _, _ in ends] == [2, 2]
    assert "rank 1: the file is missing on this machine" in ends[1][2]


def test_processes_without_the_engine_for_them_are_refused(tmp_path: Path) -> None:
    arguments = [word for word in command(tmp_path) if word not in ("--engine", "distributed")]
    for code, _, errors in finish(start(arguments, 2)):
        assert (code, "add --engine distributed" in errors.replace("\n", " ")) == (2, True), errors
    assert not (tmp_path / "out").exists()


def test_all_ranks_say_that_a_run_diverged(tmp_path: Path) -> None:
    ends = finish(start(command(tmp_path, "--set", "algorithms.eta=50"), 2))
    assert [code for code, _, _ in ends] == [1, 1]
    assert "diverged" in ends[0][2]


def test_tune_and_theory_refuse_the_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(tmp_path)
    for name in ("tune", "theory"):
        assert main([name, str(tmp_path / "cluster.toml"), "--set", "engine.kind=distributed"]) == 2
        assert "engine.kind=simulator" in capsys.readouterr().err


def test_mpi_is_refused_where_torch_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.distributed.is_mpi_available():
        pytest.skip("this torch has MPI")
    assert main([*command(tmp_path)[2:], "--set", "engine.backend=mpi"]) == 2
    assert "built with MPI" in capsys.readouterr().err


def test_more_ranks_than_workers_are_refused(tmp_path: Path) -> None:
    ends = finish(start(command(tmp_path, "--set", "topology.workers=2"), 3))
    assert [code for code, _, _ in ends] == [2, 2, 2]
    assert "3 processes for 2 workers" in ends[0][2]
