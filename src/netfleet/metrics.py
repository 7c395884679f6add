"""What is measured at an evaluation: accuracy, loss, the two terms of eq. (4), and the tracking invariant."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from netfleet.problems.base import Problem

Record = dict[str, Any]


_BLOCK = 1 << 18  # parameters that are taken at a time: large models would need several copies in float64


def consensus_error(x: Tensor) -> Tensor:
    """(1/m) Σᵢ ‖xᵢ − x̄‖², the second term of eq. (4), in float64 (on the CPU: some accelerators have none)."""
    parts = (part.cpu().double() for part in torch.split(x, _BLOCK, dim=1))
    return torch.stack([(part - part.mean(dim=0)).square().sum() for part in parts]).sum() / len(x)


def tracking_error(state: Any) -> Tensor | None:
    """‖Σᵢ (yᵢ − gᵢ)‖, or what takes its place, which a tracking method keeps at 0; None for other states."""
    names = set(state._fields)
    if "c" in names:
        pair: tuple[Tensor, ...] = (state.c,)
    elif "v_i" in names:
        pair = (state.v, state.v_i)
    elif "y" in names and names & {"g", "u"}:
        pair = (state.y, state.g if "g" in names else state.u)
    else:
        return None
    blocks = zip(*(torch.split(vector, _BLOCK, dim=1) for vector in pair), strict=True)
    total = torch.cat([_difference(*block).sum(dim=0) for block in blocks])
    return total.norm()  # type: ignore[no-any-return]


def _difference(first: Tensor, second: Tensor | None = None) -> Tensor:
    gap = first.cpu().double()
    return gap if second is None else gap - second.cpu().double()


def measure(
    problem: Problem,
    state: Any,
    buffers: Tensor | None = None,
    *,
    full: bool = True,
    test_samples: int = 0,
    worker_test_samples: int = 1000,
    gradient: bool = True,
    gradient_samples: int = 0,
) -> Record:
    """The metrics of one moment, from the state of all m workers; limits are in samples, 0 means all.

    Unless `full`, without the dear ones: the scores of the workers' own models, and f and ∇f.
    """
    x = state.x
    mean = x.mean(dim=0)
    record = _scores(problem, mean, buffers, test_samples)
    if full:
        record |= _worker_scores(problem, x, buffers, worker_test_samples)
    consensus = consensus_error(x)
    record["consensus_error"] = consensus.item()
    if full and gradient:
        value, slope = problem.objective(mean, gradient_samples)
        norm2 = slope.cpu().double().square().sum()
        record |= {
            "train_loss": value.item(),
            "grad_norm2": norm2.item(),
            "stationarity": (norm2 + consensus).item(),
        }
    error = tracking_error(state)
    record["tracking_error"] = None if error is None else error.item()
    if problem.optimum is not None:
        record["distance2"] = (mean - problem.optimum).cpu().double().square().sum().item()
    return record


def _scores(problem: Problem, mean: Tensor, buffers: Tensor | None, limit: int) -> Record:
    shared = None if buffers is None else buffers.mean(dim=0, keepdim=True)
    scores = problem.evaluate(mean[None], buffers=shared, limit=limit)
    accuracy = None if scores.accuracy is None else scores.accuracy.item()
    return {"accuracy": accuracy, "loss": scores.loss.item()}


def _worker_scores(problem: Problem, x: Tensor, buffers: Tensor | None, limit: int) -> Record:
    scores = problem.evaluate(x, workers=range(len(x)), buffers=buffers, limit=limit)
    return _spread("worker_accuracy", scores.accuracy) | _spread("worker_loss", scores.loss)


def _spread(name: str, values: Tensor | None) -> Record:
    if values is None:
        return {f"{name}_{part}": None for part in ("mean", "min", "max")}
    values = values.cpu().to(torch.float64)
    return {
        f"{name}_mean": values.mean().item(),
        f"{name}_min": values.min().item(),
        f"{name}_max": values.max().item(),
    }
