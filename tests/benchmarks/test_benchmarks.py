"""`netfleet bench`: every part runs, in small; no claim about speed is made here."""

from __future__ import annotations

import ast
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import libraries, processes, setting, site_processes
from benchmarks.command import PARTS
from benchmarks.measure import ResultTable, Spread, alternating, ratio
from benchmarks.processes import Unavailable
from benchmarks.setting import TINY
from netfleet import make_topology
from netfleet.cli import main
from netfleet.problems import Quadratics
from support.fork_server import ForkedPython
from support.torchrun import finish, start

#: Parts that start several processes, or import a large library.
SLOW = {"private", "libraries", "growth", "cluster", "memory", "sites"}


@pytest.mark.parametrize("part", [pytest.param(p, marks=pytest.mark.slow if p in SLOW else ()) for p in PARTS])
def test_every_part_runs(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In another folder than the checkout, without the environments of other libraries; most processes are forked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(processes, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(libraries, "python_of", _only_plain)
    monkeypatch.setattr(site_processes, "M", 2)
    if part != "cluster":  # which shows that torchrun and its ranks are started as they should be
        monkeypatch.setattr(processes, "output", forked_output)
    table = importlib.import_module(f"benchmarks.{part}").run(TINY)
    assert table.rows
    assert all(len(row) == len(table.columns.split(" | ")) for row in table.rows)
    assert f"| {table.columns} |" in table.markdown()
    if part == "sites":
        assert [row[:2] for row in table.rows[:2]] == [
            ["exchange of 0.004 MB", "netfleet"],
            ["exchange of 0.004 MB", "gRPC, as it comes"],
        ]
        assert [row[0] for row in table.rows] == ["exchange of 0.004 MB"] * 2 + ["round"] * 3
    if part == "cluster":
        assert [row[0] for row in table.rows] == ["bytes", "exchange", "mix", "round", "step", "step"]
    if part == "memory":
        kept = {row[0]: row[1] for row in table.rows}
        assert (kept["AdamW"], kept["LED"], kept["NET-FLEET"], kept["K-GT, AdamW"]) == ("2", "1", "2", "4")
        assert "LED, AdamW" not in kept
    if part == "private":
        assert [row[:3] for row in table.rows] == [[k, m, "4"] for k in ("cnn", "mlp") for m in ("1", "4")]
    if part == "libraries":
        assert [row[0] for row in table.rows] == ["ours", "plain"]
        assert any(note.startswith("flower: it is not installed in") for note in table.notes)


def forked_output(command: Sequence[str], *_: object, **variables: str) -> str:
    """What a Python command prints, as `processes.output` has it; torchrun's are the ranks that it would start."""
    _, *arguments = command
    ranks = int(arguments[arguments.index("--nproc-per-node") + 1]) if "--nproc-per-node" in arguments else 0
    started = start(arguments[arguments.index("-m", 1) :], ranks) if ranks else [ForkedPython(arguments, variables)]
    ended = finish(started)
    assert [code for code, _, _ in ended] == [0] * len(ended), ended
    return ended[0][1]


def _only_plain(script: Path, make: bool) -> str:
    """The plain PyTorch loop needs nothing that is not here."""
    return sys.executable if script.stem == "plain" else processes.python_of(script, make)


def test_ratios_are_taken_turn_by_turn() -> None:
    assert ratio([2.0, 30.0, 8.0], [1.0, 10.0, 2.0]) == Spread(3.0, 2.5, 3.5)
    assert str(Spread.of([2.0])) == "2 [2, 2]"
    turns: list[str] = []
    times = alternating([lambda: turns.append("a"), lambda: turns.append("b")], repeats=2)
    assert turns == ["a", "b"] * 3
    assert [len(t) for t in times] == [2, 2]


def test_a_result_is_a_markdown_table() -> None:
    table = ResultTable("Title", "a | b")
    table.add("x", Spread(1.0, 0.5, 2.0))
    table.notes.append("a note")
    text = table.markdown()
    assert text.startswith("# Title\n")
    assert text.endswith("| a | b |\n|---|---|\n| x | 1 [0.5, 2] |\n\n- a note\n")


def test_bench_lists_its_parts_and_refuses_others(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["bench", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in PARTS)
    assert main(["bench", "nonsense", "--out", str(tmp_path)]) == 2
    assert "limit" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_benchmark_goes_from_round_to_round() -> None:
    f = Quadratics(4, d=3, sigma=0.1)
    go, seen = setting.rounds(f, make_topology("ring", workers=4), 2), []
    take, f.sample = f.sample, lambda t, k: seen.append((t, k)) or take(t, k)  # type: ignore[method-assign]
    go()
    go()
    assert seen == [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2)]


def test_a_failed_process_says_why(tmp_path: Path) -> None:
    python = [sys.executable, "-c"]
    with pytest.raises(Unavailable, match="ValueError: no such job"):
        processes.output([*python, "raise ValueError('no such job')"])
    with pytest.raises(Unavailable, match="first\nsecond"):
        processes.output([*python, "import sys; sys.exit('first\\nsecond')"], shown=2)
    with pytest.raises(Unavailable, match="took more than 0 s"):
        processes.output([*python, "import time; time.sleep(60)"], timeout=0.2)


def test_a_process_finds_the_checkout_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    code = "import benchmarks, json, netfleet; print(json.dumps([benchmarks.__file__, netfleet.__file__]))"
    found = processes.output([sys.executable, "-c", code], folder=tmp_path)
    assert [Path(path).parent.name for path in json.loads(found)] == ["benchmarks", "netfleet"]


def test_bench_writes_a_dated_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setting, "QUICK", TINY)
    assert main(["bench", "gradients", "--quick", "--out", str(tmp_path)]) == 0
    (table,) = tmp_path.rglob("gradients.md")
    assert table.parent.name[:2] == "20"
    assert "looped ÷ native" in table.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(libraries.ADAPTERS.rglob("*.py")), ids=lambda p: p.stem)
def test_every_adapter_says_what_it_needs_and_what_it_runs(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text))
    needs = processes.metadata(text)
    assert needs["requires-python"].startswith("==3.")
    assert all("==" in package for package in needs["dependencies"]), "tested versions only"


def test_torch_is_installed_before_what_would_fetch_another_build() -> None:
    steps = processes.install_steps({"dependencies": ["a==1", "torch==2"]})
    assert steps == [["torch==2"], ["a==1", "torch==2"]]
