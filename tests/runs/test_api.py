"""`nf.run`, `nf.simulate` and `nf.load_runs`: what the command line does, from Python and with objects."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor

import netfleet as nf
from netfleet.cli import main
from netfleet.errors import CheckpointError, Interrupted
from netfleet.problems.synthetic import Logistic, Quadratics
from netfleet.runs import api
from netfleet.runs.progress import Quiet
from netfleet.runs.run import run_experiment
from support.problems import digits_problem

QUADRATICS: dict[str, Any] = {"topology": "ring", "workers": 4, "problem": "quadratics", "evaluation": {"every": 4}}


def constant(t: int) -> float:
    return 0.05


@dataclass(frozen=True, kw_only=True)
class OwnMethod(nf.Algorithm):
    """A method that no registry knows."""

    K: int = 2

    class State(NamedTuple):
        x: Tensor

    def round(self, f: nf.Problem, mix: nf.Mix, t: int, s: State) -> State:
        x = mix(s.x)
        for k in range(1, self.K + 1):
            x.sub_(f.grad(x, f.sample(t, k)), alpha=self.step_size(t))
        return self.State(x)


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports take a second or two."""
    monkeypatch.setattr(api, "write_report_files", lambda *_: None)


def noisy(seed: int) -> nf.Problem:
    return Logistic(4, d=5, samples=20, batch=3, seed=seed)


@contextmanager
def stopping(patch: pytest.MonkeyPatch, run: int, t: int) -> Iterator[None]:
    """Within the context, Ctrl-C comes after round t of the nth run."""

    class Stop(Quiet):
        begun = 0

        def begin(self, label: str, done: int, rounds: int) -> None:
            self.begun += 1

        def round(self, now: int) -> None:
            if (self.begun, now) == (run, t):
                raise KeyboardInterrupt

    with patch.context() as here:
        here.setattr(api, "progress_display", lambda progress, runs: nullcontext(Stop()))
        yield


OBJECTS: dict[str, dict[str, Any]] = {
    "tables": {"algorithm": {"kind": "net-fleet", "K": 3}, **QUADRATICS},
    "a problem": {"algorithm": "net-fleet", "topology": "ring", "problem": noisy(3)},
    "a module": {"algorithm": "ld-sgd", "topology": "ring", "problem": digits_problem(4)},
    "a function": {"algorithm": "net-fleet", "topology": "ring", "workers": 4, "problem": noisy},
    "a lambda": {"algorithm": "dsgd", "topology": "ring", "workers": 4, "problem": lambda seed: noisy(seed + 1)},
    "a topology": {"algorithm": nf.NetFleet(K=3), **QUADRATICS, "topology": nf.make_topology("path", workers=4)},
    "a graph": {"algorithm": "dsgd", **QUADRATICS, "topology": nx.cycle_graph(4)},
    "weights": {"algorithm": "dsgd", **QUADRATICS, "topology": {"kind": "complete", "weights": np.full((4, 4), 0.25)}},
    "a method": {"algorithm": OwnMethod(eta=constant), **QUADRATICS},
    "compressed": {"algorithm": {"kind": "k-gt", "compress": {"kind": "quantize", "bits": 4}}, **QUADRATICS},
    "an engine": {"algorithm": "net-fleet", **QUADRATICS, "engine": "threads", "checkpoint_every": 5},
}


@pytest.mark.parametrize("parts", OBJECTS.values(), ids=OBJECTS)
def test_a_run_that_was_stopped_is_completed_bit_by_bit(
    parts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = nf.simulate(**parts, rounds=12)
    with stopping(monkeypatch, 1, 7), pytest.raises(KeyboardInterrupt) as stopped:
        nf.simulate(**parts, rounds=12, out=tmp_path)
    history = stopped.value.history  # type: ignore[attr-defined]
    assert [r["round"] for r in history] == [r["round"] for r in whole if r["round"] < 7]
    if parts.get("engine") != "threads":  # where no host has all workers, the state is that of the last checkpoint
        assert history.final.t == 7
    resumed = nf.simulate(**parts, rounds=12, out=tmp_path, resume=True)
    assert resumed.resumed == (7 if history.final else 5)
    assert resumed.timeless() == whole.timeless()
    again = nf.simulate(**parts, rounds=12, out=tmp_path, resume=True)  # there is nothing left to do
    for history in (resumed, again):
        assert all(torch.equal(a, b) for a, b in zip(whole.final.state, history.final.state, strict=True))


HALVED = nf.make_topology("ring", workers=4, weights={"kind": "laplacian", "factor": 0.5})
DIFFERENT: list[tuple[dict[str, Any], str]] = [
    ({"algorithm": nf.NetFleet(K=4)}, "algorithm.K is 3 there and 4 here"),
    ({"algorithm": nf.NetFleet(K=3, eta=0.02)}, "algorithm.eta is 0.01 there and 0.02 here"),
    ({"algorithm": nf.NetFleet(K=3, eta=constant)}, 'algorithm.eta is 0.01 there and {"function": '),
    ({"topology": HALVED}, "topology.matrix is "),
    ({"topology": nf.make_topology("path", workers=4)}, 'topology.kind is "ring" there and "path" here'),
    ({"problem": Quadratics(4, sigma=0.1)}, "problem.sigma is 0.0 there and 0.1 here"),
    ({"problem": Quadratics(4, heterogeneity=2.0)}, "problem.b is "),
    ({"problem": Quadratics(4, seed=1)}, "problem.seed is 0 there and 1 here"),
    ({"problem": Quadratics(4, dtype=torch.float64)}, 'problem.dtype is "torch.float32" there'),
    ({"rounds": 4}, "rounds is 8 there and 4 here; a resumed run can only grow"),
    ({"network": {"loss": 0.1}}, 'network is not set there and {"loss": 0.1'),
]


def test_something_else_is_refused_by_the_name_of_what_differs(tmp_path: Path) -> None:
    ring = nf.make_topology("ring", workers=4)
    parts: dict[str, Any] = {"algorithm": nf.NetFleet(K=3), "topology": ring, "problem": Quadratics(4), "rounds": 8}
    nf.simulate(**parts, out=tmp_path)
    assert not (tmp_path / "experiment.toml").exists()  # no file can say these objects
    again = nf.make_topology("ring", workers=4)
    same = {"algorithm": {"kind": "net-fleet", "K": 3}, "topology": again, "problem": Quadratics(4), "rounds": 8}
    assert nf.simulate(**same, out=tmp_path, resume=True).rounds == 8
    for change, words in DIFFERENT:
        with pytest.raises(CheckpointError, match=re.escape(words)):
            nf.simulate(**(parts | change), out=tmp_path, resume=True)
    longer = nf.simulate(**(parts | {"rounds": 12}), out=tmp_path, resume=True)
    assert longer.timeless() == nf.simulate(**(parts | {"rounds": 12})).timeless()
    assert nf.simulate(**(parts | {"rounds": 4}), out=tmp_path, overwrite=True).rounds == 4


def test_functions_of_one_name_are_told_apart_by_their_step_sizes(tmp_path: Path) -> None:
    def method(start: float) -> nf.Algorithm:
        return nf.NetFleet(eta=lambda t: start / (t + 1))

    first = nf.simulate(method(0.1), **QUADRATICS, rounds=4, out=tmp_path)
    assert nf.simulate(method(0.1), **QUADRATICS, rounds=4, out=tmp_path, resume=True).records == first.records
    with pytest.raises(CheckpointError, match=r"algorithm.eta.values is .*; the rounds that are done had other step"):
        nf.simulate(method(0.2), **QUADRATICS, rounds=4, out=tmp_path, resume=True)


def test_problems_that_differ_in_their_data_are_told_apart(tmp_path: Path) -> None:
    problem = digits_problem(4)
    nf.simulate("dsgd", topology="ring", problem=problem, rounds=2, out=tmp_path)
    data, parts = problem.data, [*problem.parts[1:], problem.parts[0]]
    swapped = nf.ModuleProblem(problem.model, data, parts)
    with pytest.raises(CheckpointError, match=r"problem.parts is \"list \w+\" there and \"list \w+\" here"):
        nf.simulate("dsgd", topology="ring", problem=swapped, rounds=2, out=tmp_path, resume=True)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_python_and_the_command_line_make_the_same_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = nf.run([nf.NetFleet(K=3), "dsgd"], **QUADRATICS, rounds=8, seeds=range(2), out=tmp_path / "a")
    names = {"curves.png", "report.html", "experiment.toml", *(history.folder.name for history in ours)}
    assert {path.name for path in (tmp_path / "a").iterdir()} == names
    file = tmp_path / "a" / "experiment.toml"
    theirs = run_experiment(nf.load_experiment(file))
    assert [(h.label, h.seed, h.hash, h.timeless()) for h in ours] == [
        (h.label, h.seed, h.hash, h.timeless()) for h in theirs
    ]
    assert main(["run", str(file), "--out", str(tmp_path / "a"), "--resume", "--set", "rounds=12"]) == 0
    assert ours.table().split("\n\n")[0].splitlines()[2].split()[0] in capsys.readouterr().out
    monkeypatch.setattr(api, "write_report_files", lambda *_: None)
    longer = nf.run(nf.load_experiment(file), out=tmp_path / "a", resume=True)
    assert [h.rounds for h in longer] == [12] * 4
    assert [h.hash for h in nf.run(str(file))] == [h.hash for h in longer]


def test_methods_of_one_name_are_told_apart() -> None:
    made = nf.run([nf.NetFleet(K=1), nf.NetFleet(K=5), {"kind": "net-fleet", "label": "mine"}], **QUADRATICS, rounds=1)
    assert [h.label for h in made] == ["NET-FLEET, K = 1", "NET-FLEET, K = 5", "mine"]
    own = nf.run([OwnMethod(eta=constant), OwnMethod(K=1), "dsgd"], **QUADRATICS, rounds=1)
    assert [h.label.partition(",")[0] for h in own] == ["OwnMethod", "OwnMethod", "DSGD"]


def test_a_function_makes_the_problem_of_each_seed() -> None:
    made = nf.run("net-fleet", topology="ring", workers=4, problem=lambda seed: noisy(seed), rounds=3, seeds=[0, 1])
    first, second = ([r["loss"] for r in history] for history in made)
    assert first != second
    alone = nf.simulate("net-fleet", topology="ring", problem=noisy(1), rounds=3)
    assert second == [r["loss"] for r in alone]


def test_an_object_is_run_with_several_seeds_where_they_make_a_difference() -> None:
    parts: dict[str, Any] = {"problem": noisy(0), "rounds": 3, "seeds": [0, 1]}
    with pytest.raises(nf.ConfigError, match="would all give the same run"):
        nf.run("net-fleet", topology="ring", **parts)
    for change in ({"topology": "ring", "network": {"loss": 0.3}}, {"topology": {"kind": "erdos-renyi", "p": 0.7}}):
        first, second = nf.run("net-fleet", **parts, **change)
        assert first.timeless() != second.timeless()


@pytest.mark.parametrize("engine", ["simulator", "threads"])
def test_a_diverged_run_is_in_the_error(engine: str, tmp_path: Path) -> None:
    parts: dict[str, Any] = {**QUADRATICS, "rounds": 400, "engine": engine, "checkpoint_every": 2}
    with pytest.raises(nf.DivergedError, match="diverged") as raised:
        nf.simulate(nf.NetFleet(eta=50.0), **parts, out=tmp_path)
    history = raised.value.history
    assert history.records
    assert np.isfinite(history["loss"]).all()
    if engine == "simulator":
        assert all(torch.isfinite(values).all() for values in history.final.state)
    wild, sound = nf.run([{"kind": "net-fleet", "eta": 50.0}, "dsgd"], **parts)
    assert wild.diverged == str(raised.value)
    assert not sound.diverged


@pytest.mark.usefixtures("no_report")
def test_what_was_made_before_ctrl_c_is_in_the_exception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: dict[str, Any] = {**QUADRATICS, "rounds": 8, "seeds": [0, 1]}
    with stopping(monkeypatch, 2, 5), pytest.raises(Interrupted, match=r"DSGD, seed 0, was .* round 5; .*resume=True"):
        nf.run(["net-fleet", "dsgd"], **parts, out=tmp_path)
    with stopping(monkeypatch, 3, 5), pytest.raises(Interrupted) as stopped:
        nf.run(["net-fleet", "dsgd"], **parts)
    assert [h.rounds for h in stopped.value.histories] == [8, 8, 4]
    assert not isinstance(stopped.value, Exception)  # `except Exception` lets Ctrl-C pass
    whole, resumed = nf.run(["net-fleet", "dsgd"], **parts), nf.run(
        ["net-fleet", "dsgd"], **parts, out=tmp_path, resume=True
    )  # fmt: skip
    assert [h.timeless() for h in resumed] == [h.timeless() for h in whole]


@pytest.mark.usefixtures("no_report")
def test_saved_runs_are_one_tidy_frame(tmp_path: Path) -> None:
    nf.run(["net-fleet", {"kind": "dsgd", "label": "plain"}], **QUADRATICS, rounds=8, seeds=[0, 1], out=tmp_path / "a")
    one = nf.simulate("k-gt", **QUADRATICS, rounds=4, out=tmp_path / "b" / "c")
    frame = nf.load_runs(tmp_path)
    assert list(frame.columns[:4]) == ["kind", "label", "seed", "round"]
    assert set(one.columns) <= set(frame.columns)
    assert len(frame) == 4 * 3 + 2
    assert set(zip(frame["kind"], frame["label"], strict=True)) == {
        ("net-fleet", "NET-FLEET"), ("dsgd", "plain"), ("k-gt", "K-GT")
    }  # fmt: skip
    alone = nf.load_runs(one.folder)
    assert set(alone["folder"]) == {str(one.folder)}
    assert alone["loss"].tolist() == one["loss"].tolist()
    assert len(nf.load_runs(tmp_path / "a", tmp_path / "b", tmp_path)) == len(frame)


def test_a_missing_pandas_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = nf.simulate("dsgd", **QUADRATICS, rounds=1, out=tmp_path)
    monkeypatch.setitem(sys.modules, "pandas", None)
    for act in (history.to_dataframe, lambda: nf.load_runs(tmp_path)):
        with pytest.raises(nf.ConfigError, match=r"needs pandas, not installed here; pip install 'netfleet\[pandas\]'"):
            act()


@pytest.mark.parametrize("change", [{"engine": "threads"}, {"engine": nf.EngineConfig("threads")},
                                    {"engine": {"kind": "threads"}}, {"seeds": np.arange(1)}, {"rounds": np.int64(3)},
                                    {"topology": {"kind": "ring", "workers": 4}, "workers": None},
                                    {"problem": {"kind": "quadratics"}}, {"problem": Quadratics}])  # fmt: skip
def test_a_part_is_an_object_a_name_or_a_table(change: dict[str, Any]) -> None:
    parts: dict[str, Any] = {**QUADRATICS, "rounds": 3}
    (named,), (other,) = nf.run("dsgd", **parts), nf.run("dsgd", **(parts | change))
    assert np.allclose(named["loss"], other["loss"], rtol=1e-5)
    assert named.rounds == other.rounds
