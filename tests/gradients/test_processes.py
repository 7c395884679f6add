"""Gradients in processes over shared memory are bit for bit those of threads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from netfleet.errors import ConfigError, EngineError
from netfleet.gradients import processes
from netfleet.gradients.processes import can_travel
from support.problems import digits_problem


class Fragile(nn.Module):
    """A model whose gradient fails for one worker only: the one whose first parameter is large."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.layer.weight[0, 0] > 100:
            raise RuntimeError("the fragile model broke")
        return self.layer(x.flatten(1))


def every_kind() -> nn.Module:
    """Dropout and running statistics in one model."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 10))


@pytest.mark.slow
def test_processes_change_no_bit() -> None:
    threads, others = (digits_problem(5, every_kind(), gradients=path, threads=2) for path in ("looped", "processes"))
    assert (threads.path, others.path) == ("looped", "processes")
    x = threads.start().repeat(5, 1) + 0.1 * torch.randn(5, threads.d)
    for k in range(3):
        sample = threads.sample(1, k)
        ours = others.grad(x, sample)
        assert torch.equal(ours, threads.grad(x, sample))
        assert torch.equal(others.buffers, threads.buffers)  # type: ignore[arg-type]
        x -= 0.1 * ours
    before = ours.clone()
    others.grad(x, others.sample(2, 1))
    assert torch.equal(ours, before), "a gradient that was handed out must not change"


@pytest.mark.slow
def test_a_failure_in_a_process_is_told_with_its_cause() -> None:
    problem = digits_problem(3, Fragile(), gradients="processes", threads=2)
    x = problem.start().repeat(3, 1)
    problem.grad(x, problem.sample(0, 1))
    x[2, 0] = 1000.0
    with pytest.raises(EngineError, match="the fragile model broke"):
        problem.grad(x, problem.sample(0, 2))
    problem._path._running.pipes[0].close()  # type: ignore[attr-defined]
    with pytest.raises(EngineError, match="__main__"):
        problem.grad(x, problem.sample(0, 2))


def test_processes_are_chosen_where_threads_stop_scaling(monkeypatch: pytest.MonkeyPatch) -> None:
    many, model = processes.MOST_THREADS + 1, every_kind()
    assert digits_problem(many, model, threads=many).path == "processes"
    assert digits_problem(many, model, threads=many - 1).path == "looped"
    assert digits_problem(4, model, threads=many).path == "looped"
    assert digits_problem(many, model, threads=many, gradients="looped").path == "looped"
    alone = digits_problem(many, model, threads=many, gradients="processes").at([1])
    assert alone.path == "looped"


def test_what_cannot_travel_stays() -> None:
    assert can_travel(every_kind(), F.cross_entropy)
    assert not can_travel(every_kind(), lambda scores, targets: scores[:, 0])
    with pytest.raises(ConfigError, match="import"):
        digits_problem(
            4, every_kind(), gradients="processes", loss=lambda s, y: F.cross_entropy(s, y, reduction="none")
        )
