"""The cluster: the same trajectories on any number of ranks, few bytes, and what happens when a rank dies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from netfleet import History, load_experiment, make_topology
from netfleet.cli import main
from netfleet.engines import Job, make_engine
from netfleet.engines.collective import SingleHost
from netfleet.engines.distributed import host_on
from netfleet.problems.synthetic import Quadratics
from netfleet.runs import checkpoint
from netfleet.runs.run import run_experiment
from support.cluster_ranks import AT, ROUNDS, SIZES, cases, job_of, optimizers, scheduled
from support.problems import Memory
from support.torchrun import EXPERIMENT, finish, free_port, shorten, start, until

pytestmark = pytest.mark.slow

RANKS = max(SIZES)


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
    return {n: torch.load(computed / f"{n}.pt") for n in SIZES}


@pytest.fixture(scope="module")
def simulated() -> Mapping[str, Memory]:
    found = {}
    for name in cases():
        found[name] = Memory(rounds=AT)
        make_engine("simulator").run(job_of(name, found[name]))
    return found


@pytest.mark.parametrize("name", list(cases()))
def test_ranks_compute_what_the_simulator_does(name: str, trajectories: Any, simulated: Any) -> None:
    tolerance = 1e-5 if "digits" in name else 1e-10
    for n in SIZES:
        ours, theirs = trajectories[n][name], simulated[name].snapshots
        assert len(ours) == len(theirs) == len(AT)
        for (t, state, sent, used), snapshot in zip(ours, theirs, strict=True):
            assert (t, sent, used) == (snapshot.t, snapshot.bytes, snapshot.samples)
            for a, b in zip(state, snapshot.state, strict=True):
                assert torch.allclose(a, b, rtol=0, atol=tolerance * (1 + float(b.double().norm())))


@pytest.mark.parametrize("name", [name for name, case in cases().items() if not case[1].server])
def test_without_a_server_every_number_of_ranks_has_the_same_bits(name: str, trajectories: Any) -> None:
    for n in SIZES:
        for ours, theirs in zip(trajectories[n][name], trajectories[1][name], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours[1], theirs[1], strict=True)), n


@pytest.fixture(scope="module")
def models(computed: Path) -> list[Any]:
    """What each rank's own training loop computed."""
    return [torch.load(computed / f"optimizer-{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("name", [*optimizers(), *scheduled()])
def test_an_optimizer_takes_the_simulators_rounds_also_after_saving(name: str, models: Any) -> None:
    problem, method, network = (optimizers() | scheduled())[name]
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
    assert max(own) - min(own) < 10  # apart they would be at 0 and nearly 20
    assert averaged == pytest.approx([sum(own) / RANKS] * RANKS)


def test_ranks_that_were_given_different_things_are_told(checks: Any) -> None:
    for rank in checks:
        for name, words in (("size", "parameters"), ("method", "learning rate"), ("graph", "topology")):
            assert f"the same {words}" in rank["said"][name]


class OneRank(SingleHost):
    """The collective of a cluster with one rank."""

    rank, size = 0, 1


def test_a_rank_hosts_its_workers_wherever_their_rows_are() -> None:
    problem = Quadratics(4, seed=1)
    host, _ = host_on(OneRank(), problem.at([3, 1, 0, 2]), make_topology("ring", workers=4), 1)
    assert host.problem.workers == (0, 1, 2, 3)
    x = problem.start().repeat(4, 1)
    assert torch.equal(host.problem.full_grad(x), problem.full_grad(x))


def command(folder: Path, *more: str) -> list[str]:
    path = folder / "cluster.toml"
    path.write_text(EXPERIMENT)
    return ["-m", "netfleet", "run", str(path), "--out", str(folder / "out"), "--engine", "distributed", *more]


def test_a_rank_that_dies_ends_the_run_and_others_go_on_from_its_checkpoint(tmp_path: Path) -> None:
    processes = start(command(tmp_path, "--set", "rounds=100000"), 2)
    manifest = tmp_path / "out" / "net-fleet-seed0" / "checkpoint.json"
    until(manifest.exists, processes[0].running)
    processes[1].kill()
    ends = finish(processes)
    assert ends[0][0] == 2, ends[0][2]
    assert "a process has died or a connection was lost" in ends[0][2]
    assert "--resume" in ends[0][2]
    rounds = f"rounds={checkpoint.reached(manifest.parent) + 25}"
    shorten(tmp_path / "cluster.toml", rounds, manifest.parent)
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
Ended = Mapping[str, list[tuple[int, str, list[str]]]]  # exit code, errors and threads of each rank
COMMANDS = {
    "failing": ["--engine", "distributed", "--set", 'problem={kind="sometimes:factory"}'],
    "refused": ["--engine", "distributed", "--set", "network.delay=1"],
    "no engine": [],
    "too many": ["--engine", "distributed", "--set", 'topology={kind="complete", workers=1}'],
    "diverging": ["--engine", "distributed", "--set", "algorithms.eta=50"],
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The exit code of each command on two ranks, and what each rank said; the same processes run one after another."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "sometimes.py").write_text(FAILING)
    (folder / "cluster.toml").write_text(EXPERIMENT)
    script, file = Path(__file__).parents[1] / "support" / "cluster_commands.py", str(folder / "cluster.toml")
    given = {name: ["run", file, "--out", str(folder / name), *more] for name, more in COMMANDS.items()}
    ends = finish(start([str(script), json.dumps([[free_port(), words] for words in given.values()])], 2))
    assert [code for code, _, _ in ends] == [0, 0], ends
    by_rank = [json.loads(said) for _, said, _ in ends]
    assert not (folder / "no engine").exists()
    assert not (folder / "refused").exists()
    return {name: [tuple(rank[place]) for rank in by_rank] for place, name in enumerate(given)}


def test_an_error_on_one_rank_is_said_by_that_rank(ended: Ended) -> None:
    assert [code for code, *_ in ended["failing"]] == [2, 2]
    assert "rank 1: the file is missing on this machine" in ended["failing"][1][1]
    assert "1 of 2 processes failed" in ended["failing"][0][1]


def test_an_error_on_all_ranks_is_said_once(ended: Ended) -> None:
    assert [code for code, *_ in ended["refused"]] == [2, 2]
    assert "only the simulator supports delay" in ended["refused"][0][1]
    assert ended["refused"][1][1] == ""


def test_processes_without_the_engine_for_them_are_refused(ended: Ended) -> None:
    for code, said, _ in ended["no engine"]:
        assert (code, "add --engine distributed" in said.replace("\n", " ")) == (2, True), said


def test_no_thread_of_a_process_group_outlives_it(ended: Ended) -> None:
    """Gloo's threads can abort a process that ends before they do."""
    for name, ranks in ended.items():
        assert [threads for _, _, threads in ranks] == [[], []], name


def test_all_ranks_say_that_a_run_diverged(ended: Ended) -> None:
    assert [code for code, *_ in ended["diverging"]] == [1, 1]
    assert "diverged" in ended["diverging"][0][1]


def test_tune_and_theory_refuse_the_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(tmp_path)
    for name in ("tune", "theory"):
        assert main([name, str(tmp_path / "cluster.toml"), "--set", "engine.kind=distributed"]) == 2
        assert "engine.kind=simulator" in capsys.readouterr().err


def test_more_ranks_than_workers_are_refused(ended: Ended) -> None:
    assert [code for code, *_ in ended["too many"]] == [2, 2]
    assert "2 processes for 1 worker" in ended["too many"][0][1]
