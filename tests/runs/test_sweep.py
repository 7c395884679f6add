"""Sweeps: every combination in its own folder, resumed, with what is refused or diverges marked."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from rich.console import Console

from netfleet import ConfigError, History
from netfleet.cli import main
from netfleet.errors import CheckpointError
from netfleet.report.sweep import best, draw_sweep, grid, notes, sheet
from netfleet.runs.compare import find_runs
from netfleet.runs.progress import Overall, Quiet
from netfleet.runs.sweep import Axis, parse_axes, points, sweep

TABLE: dict[str, Any] = {
    "rounds": 6,
    "seeds": [0, 1],
    "topology": {"kind": "ring", "workers": 4},
    "problem": {"kind": "quadratics", "d": 3},
    "algorithms": [{"kind": "net-fleet", "eta": 0.05}, {"kind": "dsgd", "eta": 0.05}],
    "evaluation": {"every": 3},
}


class Counting(Quiet):
    """Counts the runs that are begun and those that are left out."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.skipped = 0

    def begin(self, label: str, done: int, rounds: int) -> None:
        self.begun.append(label)

    def skip(self, label: str) -> None:
        self.skipped += 1


def test_every_combination_is_a_point() -> None:
    found = points(TABLE, parse_axes(["algorithms.K=1,5", "topology.kind=ring,complete"]))
    folders = [point.folder for point in found]
    assert folders[:3] == ["K=1,topology.kind=ring", "K=1,topology.kind=complete", "K=5,topology.kind=ring"]
    last = found[-1].experiment
    assert last is not None
    assert (last.topology["kind"], [a.get("K") for a in last.algorithms]) == ("complete", [5, None])  # DSGD has no K
    assert TABLE["topology"]["kind"] == "ring"


def test_a_value_may_be_a_table_and_folders_stay_apart() -> None:
    texts = ['topology.weights="metropolis",{kind = "lazy", base = "metropolis"}', "rounds=1,2"]
    with pytest.raises(ConfigError, match="no point of the sweep is an experiment; the first one: unknown"):
        points({**TABLE, "problem": {"kind": "nothing"}}, parse_axes(texts))
    sampled = points(TABLE, parse_axes(['problem={kind = "quadratics", d = 2},{kind = "quadratics"; d = 2}']))
    assert len({point.folder for point in sampled}) == 2
    assert [point.refused is None for point in sampled] == [True, False]


def test_equal_runs_are_made_once_and_the_same_call_makes_none(tmp_path: Path) -> None:
    axes, first, again = parse_axes(["algorithms.K=1,3,5"]), Counting(), Counting()
    results = sweep(points(TABLE, axes), tmp_path, first)
    assert (len(first.begun), first.skipped) == (3 * 2 + 2, 2 * 2)
    assert first.begun[0] == "K = 1: NET-FLEET, seed 0"
    repeated = sweep(points(TABLE, axes), tmp_path, again)
    assert (again.begun, again.skipped) == ([], 3 * 2 * 2)
    for one, two in zip(results, repeated, strict=True):
        assert [h.records for h in one.histories] == [h.records for h in two.histories]
        assert [History.load(h.folder or "").records for h in one.histories] == [h.records for h in one.histories]
    assert {h.label for h in find_runs([tmp_path])} == {f"K={k}: {m}" for k in (1, 3, 5) for m in ("NET-FLEET", "DSGD")}
    with pytest.raises(CheckpointError, match=r"problem\.d is 3 there and 4 here"):
        sweep(points({**TABLE, "problem": {"kind": "quadratics", "d": 4}}, axes), tmp_path, again)


class Stopping(Quiet):
    """A user who presses Ctrl-C when the third run begins."""

    left = 3

    def begin(self, label: str, done: int, rounds: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_an_interrupted_sweep_is_resumed(tmp_path: Path) -> None:
    found = points({**TABLE, "seeds": [0]}, parse_axes(["algorithms.eta=0.05,1e12", "rounds=20"]))
    whole, rest = Counting(), Counting()
    results = sweep(found, tmp_path / "whole", whole)
    with pytest.raises(KeyboardInterrupt):
        sweep(found, tmp_path / "cut", Stopping())
    resumed = sweep(found, tmp_path / "cut", rest)
    assert rest.begun == whole.begun[2:]
    for one, two in zip(results, resumed, strict=True):
        assert [h.timeless() for h in one.histories] == [h.timeless() for h in two.histories]
        assert [h.diverged for h in one.histories] == [h.diverged for h in two.histories]
    last = sweep(found, tmp_path / "cut", Counting())[-1].histories
    assert [h.diverged for h in last] == [h.diverged for h in results[-1].histories] != [None, None]


def test_what_is_refused_or_diverges_is_marked_and_the_others_run(tmp_path: Path) -> None:
    table = {**TABLE, "rounds": 40, "algorithms": [{"kind": "net-fleet"}, {"kind": "d2"}], "evaluation": {"every": 40}}
    table["topology"] = {"kind": "ring", "workers": 16, "weights": "metropolis"}
    axes = parse_axes(["topology.kind=ring,torus,blob", "algorithms.eta=0.05,1e6"])
    display = Counting()
    results = sweep(points(table, axes), tmp_path, display)
    assert len(display.begun) + display.skipped == 2 * 2 * 4  # the blob is no experiment
    found = grid(axes, results)
    states = {(row[0], row[1], row[2]): row[-1] for row in sheet(found).rows}
    assert [states["D²", "torus", eta] for eta in ("0.05", "1e6")] == ["refused", "refused"]
    assert {states[method, "blob", "0.05"] for method in ("NET-FLEET", "D²")} == {"refused"}
    assert {states[method, "ring", "1e6"] for method in ("NET-FLEET", "D²")} == {"diverged"}
    assert float(states["NET-FLEET", "torus", "0.05"].split()[0]) > 0
    said = notes(found)
    assert said[0].startswith(
        "refused (topology.kind = blob, eta = 0.05; topology.kind = blob, eta = 1e6): unknown graph"
    )
    assert said[1].startswith("refused (topology.kind = torus, eta = 0.05; ")
    assert best(found)["D²"] == ("ring", "0.05")
    figure = draw_sweep(found)
    assert figure is not None
    words = [text.get_text() for text in figure.axes[1].texts]
    assert (words.count("refused"), words.count("diverged")) == (4, 1)


def test_one_key_is_drawn_as_lines_and_three_are_not_drawn(tmp_path: Path) -> None:
    axes = parse_axes(["algorithms.eta=0.001,0.05,1e12", "rounds=20", "evaluation.every=20"])
    results = sweep(points(TABLE, axes), tmp_path)
    assert draw_sweep(grid(axes, results)) is None
    flat = [result._replace(point=result.point.__class__(*_first(result.point))) for result in results]
    figure = draw_sweep(grid(axes[:1], flat, "distance2"))
    assert figure is not None
    (panel,) = figure.axes
    assert (panel.get_xscale(), panel.get_xlabel()) == ("log", "eta")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["NET-FLEET", "DSGD", "diverged seeds"]


def _first(point: Any) -> tuple[Any, ...]:
    return (point.values[:1], point.folder, point.title, point.experiment)


def test_the_display_counts_all_runs() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with Overall(console, 3) as live:
        live.skip("done before")
        live.begin("a", 0, 4)
        live.round(2)
        live.record({"round": 2, "loss": 1.5, "consensus_error": 0.1})
        live.round(4)
        live.end()
        live.begin("b", 2, 4)
        live.round(3)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[3/3] b" in said
    assert "2/3" in said
    assert "s left" in said


def test_axes() -> None:
    assert parse_axes(["a.b=1, 2", "c[x = 1].d=[1,2],word"]) == [
        Axis("a.b", ("1", "2")),
        Axis("c[x = 1].d", ("[1,2]", "word")),
    ]


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ([], "a sweep needs a key and its values; for example --over algorithms.K=1,5,10"),
        (["rounds"], "--over takes key=value, got 'rounds'"),
        (["rounds=1,,2"], "a value is empty or there twice"),
        (["rounds=1,1"], "a value is empty or there twice"),
        (["rounds=1", "rounds=2"], "rounds was given before; give all its values at once"),
        (["algorithms.etta=1,2"], "no algorithm of the experiment has a parameter 'etta' (did you mean 'eta'?)"),
        (["round=1,2"], "no point of the sweep is an experiment; the first one: unknown key 'round'"),
    ],
)
def test_a_bad_sweep_is_refused(over: list[str], words: str, tmp_path: Path, capsys: Any) -> None:
    arguments = [word for text in over for word in ("--over", text)]
    assert main(["sweep", *arguments, "--out", str(tmp_path / "out")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_command_writes_a_table_and_a_figure(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "e.toml").write_text(tomli_w.dumps(TABLE))
    arguments = [
        "sweep",
        str(tmp_path / "e.toml"),
        "--over",
        "topology.kind=ring,complete",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main([*arguments, "--metric", "distance2", "--at", "best"]) == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "sweep.csv").read_text())))
    assert [(row["method"], row["topology.kind"], row["state"]) for row in rows[:2]] == [
        ("NET-FLEET", "ring", "done"),
        ("NET-FLEET", "complete", "done"),
    ]
    assert float(rows[0]["low"]) <= float(rows[0]["mean"]) <= float(rows[0]["high"])
    assert (tmp_path / "out" / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert "distance2" in capsys.readouterr().out
    assert main(["compare", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "topology.kind=ring: NET-FLEET" in said
    assert "also in topology.kind" in said
