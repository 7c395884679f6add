"""A signal stops all ranks after the same round, which is saved; and a rank that hangs ends the job."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from netfleet import ConfigError, History, NetFleet, Topology, load_experiment
from netfleet.engines import Job, make_engine
from netfleet.engines.job import Recorder, Snapshot
from netfleet.engines.ranks import SECONDS, TIMEOUT, reaching, timeout_from_environment
from netfleet.engines.stopping import StoppableRecorder, StopRequest, rounds_within
from netfleet.errors import EngineError, StoppedError, TransportError
from netfleet.problems.synthetic import Quadratics
from netfleet.runs import checkpoint
from netfleet.runs.run import run_experiment
from support.torchrun import EXPERIMENT, finish, shorten, start, training, until


class Saved(Recorder):
    """Remembers which rounds were recorded and saved; the signal comes in one of them."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.recorded, self.saved = list[int](), list[int]()

    def due(self, t: int) -> bool:
        return t % 4 == 0

    def record(self, snapshot: object, host: object) -> None:
        self.recorded.append(snapshot.t)  # type: ignore[attr-defined]

    def save(self, snapshot: object, host: object) -> None:
        self.saved.append(snapshot.t)  # type: ignore[attr-defined]

    def progress(self, t: int) -> None:
        if t == self.at:
            os.kill(os.getpid(), signal.SIGUSR1)


def run(problem: Quadratics, network: Topology, recorder: Saved) -> Saved:
    request = StopRequest()
    job = Job(problem, network, NetFleet(K=2, eta=0.01), 10, recorder)
    stoppable = StoppableRecorder(job, request, pause=0)  # asks after every round
    with request.handled(), request.waits_for_the_round():
        make_engine("simulator").run(Job(problem, network, job.algorithm, 10, stoppable))
    return recorder


def test_a_signal_saves_the_round_and_ends_the_run(noisy: Quadratics, graph: Topology) -> None:
    recorder = Saved(at=7)
    with pytest.raises(StoppedError, match=r"after round 7 of 10\. Start the same command again with --resume") as told:
        run(noisy, graph, recorder)
    assert (recorder.recorded, recorder.saved) == ([0, 4], [7])
    assert (told.value.shared, told.value.exit_code) == (True, 75)


def test_a_signal_is_noticed_soon_after_a_resume(noisy: Quadratics, graph: Topology) -> None:
    """The rounds before this process began say nothing of how long a round takes."""
    method, request, recorder = NetFleet(K=2, eta=0.01), StopRequest(), Saved(at=1001)
    x = torch.zeros(noisy.m, noisy.d, dtype=noisy.dtype)
    resumed = Job(noisy, graph, method, 5000, recorder, lambda *_: Snapshot(1000, method.State(x, x, x)))
    with request.handled(), request.waits_for_the_round(), pytest.raises(StoppedError):
        make_engine("simulator").run(replace(resumed, recorder=StoppableRecorder(resumed, request)))
    (saved,) = recorder.saved
    assert saved <= 1011


def test_the_record_is_what_it_is_without_the_question(noisy: Quadratics, graph: Topology) -> None:
    assert run(noisy, graph, Saved(at=-1)).recorded == [0, 4, 8]


def test_a_run_that_is_at_its_end_is_not_stopped(noisy: Quadratics, graph: Topology) -> None:
    assert run(noisy, graph, Saved(at=10)).saved == []


def test_handlers_are_those_from_before_again() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    with StopRequest().handled():
        pass
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)] == before


def test_outside_of_training_sigterm_ends_a_rank_at_once() -> None:
    with StopRequest().handled(), pytest.raises(EngineError, match="torchrun sends to all when one has died"):
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    ("rounds", "seconds", "next_"),
    [(10, 1.0, 50), (10, 0.0, 100), (1, 60.0, 1), (0, 0.0, 1), (1000, 10.0, 500)],
)
def test_ranks_ask_each_other_every_few_seconds(rounds: int, seconds: float, next_: int) -> None:
    assert rounds_within(5.0, rounds, seconds) == next_


@pytest.mark.parametrize("text", ["soon", "0", "-3", "nan", "inf"])
def test_a_timeout_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TIMEOUT, text)
    with pytest.raises(ConfigError, match="must be a number of seconds above 0"):
        timeout_from_environment()


def test_the_timeout_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TIMEOUT, raising=False)
    assert timeout_from_environment().total_seconds() == SECONDS
    monkeypatch.setenv(TIMEOUT, "90.5")
    assert timeout_from_environment().total_seconds() == 90.5


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="shapes differ"), reaching("rank 3"):
        raise RuntimeError("shapes differ")
    with pytest.raises(TransportError, match=r"rank 3 has not answered for 2\.5 s"), reaching("rank 3"):
        raise RuntimeError("[unbound_buffer.cc:81] Timed out waiting 2500ms for recv operation to complete")


def command(folder: Path, *more: str) -> list[str]:
    (folder / "cluster.toml").write_text(EXPERIMENT)
    out = ["--out", str(folder / "out"), "--engine", "distributed"]
    return ["-m", "netfleet", "run", str(folder / "cluster.toml"), *out, *more]


ENDLESS = ["--set", "rounds=1000000", "--set", "checkpoint_every=1000000"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_one_rank_stops_all_and_others_resume_the_same_numbers(tmp_path: Path, number: int) -> None:
    ranks = start(command(tmp_path, *ENDLESS), 2)
    folder = tmp_path / "out" / "net-fleet-seed0"
    until(lambda: training(folder), ranks[0].running)
    os.kill(ranks[1].pid, number)
    ends = finish(ranks)
    assert [code for code, _, _ in ends] == [75, 75], ends
    assert "stopped by a signal after round" in ends[0][2]
    assert ends[1][2] == ""  # one speaks for all
    rounds = f"rounds={checkpoint.reached(folder) + 15}"
    shorten(tmp_path / "cluster.toml", rounds, folder)
    ends = finish(start(command(tmp_path, "--set", rounds, "--resume"), 3))
    assert [code for code, _, _ in ends] == [0, 0, 0], ends[0][2]
    ours, (theirs,) = History.load(folder), run_experiment(load_experiment(tmp_path / "cluster.toml", [rounds]))
    for name in ("round", "loss", "consensus_error", "bytes", "samples"):
        assert np.allclose(ours[name], theirs[name], rtol=1e-9, atol=1e-12), name


@pytest.mark.slow
def test_a_rank_that_hangs_ends_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TIMEOUT, "3")
    ranks = start(command(tmp_path, *ENDLESS), 2)
    until(lambda: training(tmp_path / "out" / "net-fleet-seed0"), ranks[0].running)
    os.kill(ranks[1].pid, signal.SIGSTOP)
    code, _, said = ranks[0].wait()
    ranks[1].kill()
    ranks[1].wait()
    assert code == 2
    assert "has not answered for 3 s" in said
    assert "--resume" in said
