"""What makes the simulator fast changes nothing else: memory that is used again, threads, mini-batches drawn ahead."""

from __future__ import annotations

import ast
import gc
from pathlib import Path

import pytest
import torch

from benchmarks import PARTS, environments, peers, setting
from benchmarks.distributed import launch
from benchmarks.measure import Report, Spread, alternating, ratio
from netfleet import make_topology
from netfleet.cli import main
from netfleet.compute.arena import Arena
from netfleet.compute.threads import ThreadPool
from netfleet.errors import EngineError
from netfleet.problems import Quadratics
from support.problems import digits_problem

LARGE = 1 << 18


def test_memory_is_used_again_once_nobody_holds_it() -> None:
    arena, like = Arena(), torch.empty(4, LARGE)
    first = arena.empty_like(like)
    address, view = first.data_ptr(), first[1:3, ::2]
    del first
    second = arena.empty_like(like)
    assert second.data_ptr() != address, "a view still holds the first"
    del view
    gc.collect()
    third = arena.empty_like(like)
    assert third.data_ptr() == address
    assert (third.shape, third.dtype, third.is_contiguous()) == (like.shape, like.dtype, True)


@pytest.mark.parametrize("shape", [(3, 5), (2, LARGE + 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_an_arena_gives_tensors_that_do_not_overlap(shape: tuple[int, int], dtype: torch.dtype) -> None:
    arena = Arena()
    tensors = [arena.empty_like(torch.empty(shape, dtype=dtype)).fill_(i) for i in range(4)]
    assert all((tensor == i).all() for i, tensor in enumerate(tensors))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 3, 40])
def test_a_pool_does_every_task_once(threads: int, count: int) -> None:
    done: list[int] = []
    slots: set[int] = set()

    def task(slot: int, i: int) -> None:
        slots.add(slot)
        done.append(i)

    ThreadPool(threads).each(task, count)
    assert sorted(done) == list(range(count))
    assert slots <= set(range(threads))


def test_an_error_in_any_thread_is_raised_and_the_pool_goes_on() -> None:
    pool = ThreadPool(3)

    def task(slot: int, i: int) -> None:
        if i == 7:
            raise ValueError("the seventh")

    for _ in range(5):
        with pytest.raises(ValueError, match="the seventh"):
            pool.each(task, 20)
    pool.each(lambda slot, i: None, 20)


@pytest.mark.parametrize("sampling", ["replacement", "distinct"])
def test_mini_batches_do_not_depend_on_the_order_in_which_they_are_asked_for(sampling: str) -> None:
    one, other = (digits_problem(4, "softmax", batch=5, sampling=sampling) for _ in range(2))
    forwards = {(t, k): one.sample(t, k).rows for t in range(3) for k in range(6)}
    for t in (2, 0, 1):
        for k in (5, 0, 3, 1, 4, 2):
            assert torch.equal(other.sample(t, k).rows, forwards[t, k])  # type: ignore[arg-type]
    alone = one.at([2])
    assert torch.equal(alone.sample(1, 4).rows[0], forwards[1, 4][2])  # type: ignore[index]


def test_ratios_are_taken_turn_by_turn() -> None:
    assert ratio([2.0, 30.0, 8.0], [1.0, 10.0, 2.0]) == Spread(3.0, 2.5, 3.5)
    assert str(Spread.of([2.0])) == "2 [2, 2]"
    turns: list[str] = []
    times = alternating([lambda: turns.append("a"), lambda: turns.append("b")], repeats=2)
    assert turns == ["a", "b"] * 3
    assert [len(t) for t in times] == [2, 2]


def test_a_report_is_a_markdown_table() -> None:
    report = Report("name", "Title", ("a", "b"))
    report.add("x", Spread(1.0, 0.5, 2.0))
    text = report.markdown()
    assert text.startswith("# Title\n")
    assert "| a | b |\n|---|---|\n| x | 1 [0.5, 2] |" in text


def test_bench_lists_its_parts_and_refuses_others(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["bench", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in PARTS)
    assert main(["bench", "nonsense", "--out", str(tmp_path)]) == 2
    assert "limit" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_benchmark_goes_from_round_to_round() -> None:
    f = Quadratics(4, d=3, sigma=0.1)
    go, seen = setting.rounds(f, make_topology("ring", workers=4), steps=2), []
    take, f.sample = f.sample, lambda t, k: seen.append((t, k)) or take(t, k)  # type: ignore[method-assign]
    go()
    go()
    assert seen == [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2)]


def test_bench_measures_ranks_beside_ddp() -> None:
    jobs = [
        {"job": "step", "model": "softmax", "calls": 10, "repeats": 1},
        {"job": "rounds", "model": "softmax", "steps": 1, "repeats": 1},
    ]
    step, rounds = launch(2, jobs)
    assert [len(times) for times in step["seconds"]] == [1, 1, 1]
    assert min(min(times) for times in step["seconds"] + rounds["seconds"]) > 0
    with pytest.raises(EngineError, match="no_such_job"):
        launch(1, [{"job": "no_such_job"}])


def test_bench_writes_a_dated_table(tmp_path: Path) -> None:
    assert main(["bench", "layout", "--quick", "--out", str(tmp_path)]) == 0
    (table,) = tmp_path.rglob("layout.md")
    assert table.parent.name[:2] == "20"
    assert "÷ ours" in table.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(peers.ADAPTERS.rglob("*.py")), ids=lambda p: p.stem)
def test_every_adapter_says_what_it_needs_and_what_it_runs(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text))
    needs = environments._metadata(text)
    assert needs["requires-python"].startswith("==3.")
    assert all("==" in package for package in needs["dependencies"]), "tested versions only"


def test_torch_is_installed_before_what_would_fetch_another_build() -> None:
    steps = environments._steps({"dependencies": ["a==1", "torch==2"], "tool": {"netfleet": {"no-deps": ["b==3"]}}})
    assert steps == [(["torch==2"], []), (["a==1", "torch==2"], []), (["b==3"], ["--no-deps"])]
