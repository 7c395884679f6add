"""Runs on disk: histories, checkpoints, interruptions of every kind, divergence."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import networkx as nx
import numpy as np
import pytest
import tomli_w
import torch

from netfleet import (
    ALGORITHMS,
    ConfigError,
    DivergedError,
    EngineConfig,
    Evaluation,
    History,
    NetFleet,
    make_topology,
    simulate,
)
from netfleet.cli import main
from netfleet.engines import loop
from netfleet.errors import CheckpointError, StorageError
from netfleet.files import append_line, write_atomically
from netfleet.runs import build, recorder
from netfleet.runs.checkpoint import load
from netfleet.runs.config import experiment
from netfleet.runs.progress import Quiet
from netfleet.runs.run import run_experiment
from netfleet.topology.faults import Faults
from support.fork_server import ForkedPython
from support.problems import digits_problem, need_data

TABLE: dict[str, Any] = {
    "rounds": 12,
    "checkpoint_every": 5,
    "topology": {"kind": "ring", "workers": 4},
    "problem": {"kind": "classification", "batch": 8, "model": "softmax"},
    "algorithms": [{"kind": "net-fleet", "K": 3, "eta": 0.1}, {"kind": "ld-sgd", "K": 3, "eta": 0.1}],
    "evaluation": {"every": 3},
}
BATCH_NORM = {"kind": "classification", "batch": 8, "model": "support.problems:batch_norm_net"}


class StopsAt(Quiet):
    """A display that stops the run, as Ctrl-C or a power cut would."""

    def __init__(self, t: int, how: type[BaseException], *, at_record: bool = False) -> None:
        self.t, self.how, self.at_record = t, how, at_record

    def round(self, t: int) -> None:
        if t == self.t and not self.at_record:
            raise self.how("stopped by the test")

    def record(self, record: dict[str, Any]) -> None:
        if record["round"] == self.t and self.at_record:
            raise self.how("stopped by the test")


def end_state(history: History) -> Any:
    """The algorithm's state in a run's last checkpoint."""
    state_type = ALGORITHMS[history.config["algorithm"]["kind"]].State  # type: ignore[attr-defined]
    return load(history.folder or Path(), history.hash, state_type, torch.device("cpu")).state


@pytest.mark.parametrize("how", [KeyboardInterrupt, SystemExit], ids=["Ctrl-C", "power cut"])
@pytest.mark.parametrize(
    ("changes", "t", "at_record"),
    [
        ({}, 1, False),
        ({}, 5, False),
        ({}, 7, False),
        ({}, 9, True),
        ({}, 12, True),
        pytest.param({"problem": BATCH_NORM, "algorithms": TABLE["algorithms"][:1]}, 7, False, id="batch norm"),
    ],
)
def test_a_resumed_history_is_the_uninterrupted_one(
    tmp_path: Path, changes: dict[str, Any], how: Any, t: int, at_record: bool
) -> None:
    plan = experiment(TABLE | changes)
    whole = run_experiment(plan, tmp_path / "whole")
    with pytest.raises(how):
        run_experiment(plan, tmp_path / "cut", display=StopsAt(t, how, at_record=at_record))
    resumed = run_experiment(plan, tmp_path / "cut", resume=True)
    for a, b in zip(whole, resumed, strict=True):
        assert a.timeless() == b.timeless()
        assert History.load(b.folder or "").timeless() == a.timeless()
        assert all(torch.equal(x, y) for x, y in zip(end_state(a), end_state(b), strict=True))


@pytest.mark.parametrize("engines", [("simulator", "threads"), ("threads", "simulator"), ("threads", "threads")])
def test_a_run_can_go_on_in_another_engine(tmp_path: Path, engines: tuple[str, str]) -> None:
    begin, end = (experiment({**TABLE, "engine": {"kind": kind, "dtype": "float64"}}) for kind in engines)
    whole = run_experiment(begin)
    with pytest.raises(SystemExit):
        run_experiment(begin, tmp_path, display=StopsAt(7, SystemExit))
    resumed = run_experiment(end, tmp_path, resume=True)
    for a, b in zip(whole, resumed, strict=True):
        assert np.allclose(a["loss"], b["loss"], rtol=1e-12)
        assert np.array_equal(a["bytes"], b["bytes"])
        assert np.array_equal(a["samples"], b["samples"])


def test_a_run_stopped_in_its_last_evaluation_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = experiment(TABLE)
    whole = run_experiment(plan)
    real = recorder.measure

    def stopped(*args: Any, **limits: Any) -> Any:
        if len(measured) == 4:  # rounds 0, 3, 6, 9 are measured, 12 is not
            raise KeyboardInterrupt
        measured.append(1)
        return real(*args, **limits)

    measured: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(recorder, "measure", stopped)
        with pytest.raises(KeyboardInterrupt):
            run_experiment(plan, tmp_path)
    resumed = run_experiment(plan, tmp_path, resume=True)
    assert [h.timeless() for h in resumed] == [h.timeless() for h in whole]


def test_a_refused_resume_changes_nothing(tmp_path: Path) -> None:
    run_experiment(experiment(TABLE), tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(CheckpointError):
        run_experiment(experiment({**TABLE, "rounds": 11}), tmp_path, resume=True)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_run_folder_without_a_config_is_begun_again(tmp_path: Path) -> None:
    whole = run_experiment(experiment(TABLE), tmp_path)
    (tmp_path / "net-fleet-seed0" / "config.json").unlink()
    again = run_experiment(experiment(TABLE), tmp_path, resume=True)
    assert [h.timeless() for h in again] == [h.timeless() for h in whole]


def test_a_diverged_run_stays_diverged_after_resume(tmp_path: Path) -> None:
    table = {**TABLE, "problem": {"kind": "quadratics"}, "rounds": 6, "evaluation": {"every": 6}}
    table["algorithms"] = [{"kind": "dsgd", "eta": 1e4}]
    first, again = (run_experiment(experiment(table), tmp_path, resume=resume)[0] for resume in (False, True))
    assert first.diverged
    assert again.diverged == first.diverged


def test_the_time_of_evaluations_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    real, clock = recorder.measure, [0.0]

    def slow(*args: Any, **options: Any) -> Any:
        clock[0] += 100.0
        return real(*args, **options)

    monkeypatch.setattr(recorder, "measure", slow)
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    history = simulate(
        "dsgd", problem="quadratics", topology="ring", workers=3, rounds=5, evaluation=Evaluation(every=1)
    )
    assert (clock[0], history.last["seconds"]) == (600.0, 0.0)


def test_simulate_takes_tables_as_an_experiment_file_has_them() -> None:
    parts = {"problem": {"kind": "quadratics"}, "topology": {"kind": "ring", "workers": 3}, "rounds": 4}
    settings = {"evaluation": {"every": 2}, "engine": {"kind": "threads", "dtype": "float64"}, "network": {"loss": 0.1}}
    tables = simulate("dsgd", **parts, **settings)
    objects = simulate("dsgd", **parts, evaluation=Evaluation(2), engine=EngineConfig("peers", dtype="float64"),
                       network=Faults(loss=0.1))  # fmt: skip
    assert tables.timeless() == objects.timeless()
    assert tables.hash == objects.hash
    for name in settings:
        with pytest.raises(ConfigError, match=f"unknown key 'nothing' in {name}"):
            simulate(**parts, **{name: {"nothing": 1}})


@pytest.mark.slow
def test_a_command_builds_each_part_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {name: Mock(wraps=getattr(build, name)) for name in ("build_setting", "make_algorithm", "network_for")}
    for name, part in parts.items():
        monkeypatch.setattr(build, name, part)
    table = {**TABLE, "problem": {"kind": "quadratics"}, "rounds": 1, "seeds": [0, 1]}
    (tmp_path / "e.toml").write_text(tomli_w.dumps(table))
    assert main(["run", str(tmp_path / "e.toml"), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "report.html").exists()
    assert [part.call_count for part in parts.values()] == [2, 4, 4]  # two seeds, two methods


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    plan = experiment(TABLE)
    first = run_experiment(plan, tmp_path)
    again = run_experiment(plan, tmp_path, resume=True, display=StopsAt(1, AssertionError))
    assert [h.records for h in again] == [h.records for h in first]


def test_runs_of_others_are_not_touched(tmp_path: Path) -> None:
    run_experiment(experiment(TABLE), tmp_path)
    with pytest.raises(CheckpointError, match=r"already holds runs .* add --resume"):
        run_experiment(experiment(TABLE), tmp_path)
    other = {**TABLE, "topology": {"kind": "path", "workers": 4}}
    words = (
        r'of another experiment: topology.kind is "ring" there and "path" here; resume with the experiment that it was'
    )
    for resume in (False, True):
        with pytest.raises(CheckpointError, match=words):
            run_experiment(experiment(other), tmp_path, resume=resume)
    with pytest.raises(
        CheckpointError, match=r"rounds is 12 there and 11 here; a resumed run can only grow; set rounds=12"
    ):
        run_experiment(experiment({**TABLE, "rounds": 11}), tmp_path, resume=True)
    longer = run_experiment(experiment({**TABLE, "rounds": 13}), tmp_path, overwrite=True)
    assert longer[0].rounds == 13


def test_a_half_written_line_is_dropped(tmp_path: Path) -> None:
    history = run_experiment(experiment(TABLE), tmp_path)[0]
    path = tmp_path / "net-fleet-seed0" / "history.jsonl"
    path.write_bytes(path.read_bytes() + b'{"round": 15, "accu')
    assert History.load(path.parent).records == history.records


@pytest.mark.parametrize("damage", [b"", b"nonsense", "truncate"])
def test_a_damaged_checkpoint_is_refused_with_a_remedy(tmp_path: Path, damage: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment(TABLE), tmp_path, display=StopsAt(7, KeyboardInterrupt))
    (path,) = (tmp_path / "net-fleet-seed0").glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-10] if damage == "truncate" else damage)
    with pytest.raises(CheckpointError, match=r"delete .*checkpoint.json to start the run from the beginning"):
        run_experiment(experiment(TABLE), tmp_path, resume=True)


class FullDisk:
    """An fsync that fails once, at its nth call, as on a full disk; `name` is the file that it was for."""

    def __init__(self, fails_at: int, code: int = errno.ENOSPC) -> None:
        self.left, self.code, self.name, self._sync = fails_at, code, "", os.fsync

    def __call__(self, handle: int) -> None:
        self.left -= 1
        if self.left == 0:
            self.name = Path(os.readlink(f"/proc/self/fd/{handle}")).name.removeprefix(".").removesuffix(".tmp")
            raise OSError(self.code, os.strerror(self.code))
        self._sync(handle)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old\n")
    for write in (lambda: write_atomically(path, lambda file: file.write(b"new")), lambda: append_line(path, "new")):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", FullDisk(1, code))
            with pytest.raises(StorageError, match=f"cannot write {path}: {os.strerror(code)}; .* another folder"):
                write()
        assert path.read_bytes() == b"old\n"
        assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(StorageError, match=r"cannot write /dev/full: No space left on device; free some space there"):
        append_line(Path("/dev/full"), "new")


def test_a_full_disk_stops_a_run_with_a_sentence_and_it_resumes_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TABLE | {"algorithms": TABLE["algorithms"][:1]}
    whole, hit = run_experiment(experiment(table))[0], set()
    for fails_at in range(1, 40):
        out, disk = tmp_path / str(fails_at), FullDisk(fails_at)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", disk)
            with contextlib.suppress(StorageError):
                run_experiment(experiment(table), out)
        hit.add(re.sub(r"\d+-\w+", "N", disk.name))
        assert not list(out.rglob(".*"))
        assert run_experiment(experiment(table), out, resume=True)[0].timeless() == whole.timeless()
        if not disk.name:
            break
    files = {"experiment.toml", "config.json", "history.jsonl", "checkpoint.json", "checkpoint-N.safetensors"}
    assert files <= hit
    assert "" in hit  # every write has failed once


@pytest.mark.slow
def test_the_command_says_how_to_resume_after_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    file, out = tmp_path / "my.toml", tmp_path / "out"
    file.write_text(tomli_w.dumps(TABLE))
    arguments = ["run", str(file), "--out", str(out)]

    def sync(name: str, handle: int) -> None:
        if name in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("history.jsonl", "curves.png", "report.html"):  # each time the disk is full a little later
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", functools.partial(sync, name))
            assert main(arguments) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert f"{name}: No space left on device; free some space" in said
        assert said.endswith(f"Resume with: netfleet run {file} --out {out} --resume\n")
        arguments = ["run", str(file), "--out", str(out), "--resume"]
    assert main(arguments) == 0
    assert (out / "report.html").exists()


def test_divergence_says_who_when_and_why_and_keeps_the_last_good_state(tmp_path: Path) -> None:
    wild = {"kind": "net-fleet", "K": 3, "eta": 50.0, "label": "wild"}
    table = {**TABLE, "problem": {"kind": "quadratics"}, "rounds": 400, "algorithms": [wild, TABLE["algorithms"][1]]}
    histories = run_experiment(experiment(table), tmp_path)
    assert histories[0].diverged is not None
    assert "NET-FLEET diverged: " in histories[0].diverged
    assert "with step size 50" in histories[0].diverged
    t = int(histories[0].diverged.split("in round ")[1].split()[0])
    kept = load(tmp_path / "wild-seed0", histories[0].hash, NetFleet.State, torch.device("cpu"))
    assert kept.t in (t, t + 1)  # the state before round t, or the one after it if only a metric overflowed
    assert all(bool(torch.isfinite(part).all()) for part in kept.state)
    assert all(np.isfinite(histories[0]["loss"]))
    assert histories[1].diverged is None
    assert histories[1].rounds == 400


@pytest.mark.parametrize("engine", ["simulator", "threads"])
def test_simulate_raises_on_divergence(engine: str) -> None:
    with pytest.raises(
        DivergedError, match=r"NET-FLEET diverged: . of worker \d+ is not finite in round \d+ with step size 50"
    ):
        simulate(NetFleet(eta=50.0), problem="quadratics", topology="ring", rounds=400, engine=EngineConfig(engine))


def test_a_history_holds_what_was_promised() -> None:
    history = simulate(NetFleet(K=2, eta=0.1), workers=4, topology="ring", rounds=6, evaluation=Evaluation(every=2))
    assert history["round"].tolist() == [0, 2, 4, 6]
    d, m, batch = 64 * 64 + 64 + 64 * 10 + 10, 4, 32
    assert history["bytes"].tolist() == [t * 2 * m * 2 * d * 4 for t in (0, 2, 4, 6)]  # two vectors to two neighbours
    assert history["samples"].tolist() == [(1 + 2 * t) * m * batch for t in (0, 2, 4, 6)]  # one gradient at the start
    assert history["consensus_error"][0] == 0
    assert (history["tracking_error"] < 1e-4).all()
    total = history["grad_norm2"] + history["consensus_error"]
    assert np.allclose(history["stationarity"], total)
    low, mean, high = (history[f"worker_accuracy_{part}"] for part in ("min", "mean", "max"))
    assert (low <= mean).all()
    assert (mean <= high).all()
    with pytest.raises(KeyError, match="no column 'accurracy'"):
        history["accurracy"]


@pytest.mark.parametrize("arguments", [{"rounds": 0}, {"workers": 9, "topology": make_topology("ring", workers=4)}])
def test_simulate_refuses_what_does_not_fit(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"rounds must be at least 1|make them agree"):
        simulate(problem="quadratics", **arguments)


def test_the_trained_model_comes_back_as_a_module() -> None:
    problem = digits_problem(4)
    history = simulate(NetFleet(K=5, eta=0.1), topology=nx.cycle_graph(4), problem=problem, rounds=20)
    model = problem.module(history.final.state.x.mean(0))
    right = (model(problem.data.test_x).argmax(1) == problem.data.test_y).double().mean().item()
    assert right == pytest.approx(history.last["accuracy"])


def test_metrics_are_those_of_equation_4() -> None:
    history = simulate("net-fleet", problem="quadratics", workers=5, topology="ring", rounds=1)
    from netfleet.problems.synthetic import Quadratics

    problem = Quadratics(5)
    gradient = problem.full_grad(torch.zeros(5, 10)).mean(0)
    assert history.records[0]["grad_norm2"] == pytest.approx(gradient.square().sum().item(), rel=1e-6)
    assert history.records[0]["distance2"] == pytest.approx(problem.optimum.square().sum().item(), rel=1e-6)


def test_a_history_turns_into_a_dataframe_and_a_picture(tmp_path: Path) -> None:
    history = simulate("dsgd", problem="quadratics", workers=3, topology="ring", rounds=4)
    frame = history.to_dataframe()
    assert frame["round"].tolist() == [0, 4]
    assert set(frame["label"]) == {"DSGD"}
    history.plot(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_killed_process_loses_at_most_one_checkpoint_interval(tmp_path: Path) -> None:
    table = {**TABLE, "rounds": 400, "algorithms": TABLE["algorithms"][:1]}
    (tmp_path / "e.toml").write_text(tomli_w.dumps(table))
    whole = run_experiment(experiment(table))[0]
    command = ["-m", "netfleet", "run", str(tmp_path / "e.toml"), "--out", str(tmp_path / "out")]
    history = tmp_path / "out" / "net-fleet-seed0" / "history.jsonl"
    for attempt in range(2):
        process = ForkedPython([*command, *(["--resume"] if attempt else [])])
        before = history.stat().st_size if history.exists() else 0
        while process.running() and (not history.exists() or history.stat().st_size < before + 4000):
            time.sleep(0.005)
        process.kill()
        assert process.wait()[0] == -signal.SIGKILL
    code, _, said = ForkedPython([*command, "--resume"]).wait()
    assert code == 0, said
    assert History.load(history.parent).timeless() == json.loads(json.dumps(whole.timeless()))


@pytest.mark.slow
def test_net_fleet_learns_non_iid_mnist_with_the_papers_cnn() -> None:
    need_data("mnist", "train-images-idx3-ubyte.gz")
    table = {
        "rounds": 40,
        "topology": {"kind": "erdos-renyi", "workers": 20, "p": 0.5, "weights": "metropolis"},
        "problem": {
            "data": "mnist",
            "model": "cnn",
            "batch": 8,
            "partition": {"kind": "shards", "shards": 250, "size": 200, "per_worker": 2},
        },
        "algorithms": [{"kind": "net-fleet", "K": 10, "eta": 0.02}, {"kind": "dsgd", "eta": 0.02}],
        "evaluation": {"every": 40, "gradient": False, "worker_test_samples": 100},
    }
    ours, plain = (history.last["accuracy"] for history in run_experiment(experiment(table)))
    assert ours > 0.6
    assert ours > plain + 0.2
