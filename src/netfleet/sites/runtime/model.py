"""The model that a site has in the end, as a safetensors file that anything can read."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from netfleet.engines.job import Snapshot
from netfleet.problems.base import Problem
from netfleet.problems.module import ModuleProblem
from netfleet.runs.checkpoint import write_tensors

MODEL_FILE = "model.safetensors"


def write_model(path: Path, problem: Problem, snapshot: Snapshot, **about: object) -> None:
    """Write the named parameters and buffers of the site's model; of a problem without a module, its vector x."""
    tensors: dict[str, Tensor] = {"x": snapshot.state.x[0]}
    if isinstance(problem, ModuleProblem):
        buffers = None if snapshot.buffers is None else snapshot.buffers[0]
        tensors = dict(problem.module(snapshot.state.x[0], buffers).state_dict())
    write_tensors(path, tensors, {key: str(value) for key, value in about.items()})
