"""A site's model: as a safetensors file that any program can read, and as a message for a neighbour that joins."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from netfleet.engines.job import Snapshot
from netfleet.errors import FrameError
from netfleet.problems.base import Problem
from netfleet.problems.module import ModuleProblem
from netfleet.runs.checkpoint import write_tensors
from netfleet.sites.network.outbox import Message

MODEL_FILE = "model.safetensors"


def write_model(path: Path, problem: Problem, snapshot: Snapshot, **about: object) -> None:
    """Write the named parameters and buffers of the site's model; of a problem without a module, its vector x."""
    tensors: dict[str, Tensor] = {"x": snapshot.state.x[0]}
    if isinstance(problem, ModuleProblem):
        buffers = None if snapshot.buffers is None else snapshot.buffers[0]
        tensors = dict(problem.module(snapshot.state.x[0], buffers).state_dict())
    write_tensors(path, tensors, {key: str(value) for key, value in about.items()})


def describe_model(model: Tensor) -> str:
    """What the bytes of a model `[1, d]` are."""
    return f"model {model.dtype}[{model.shape[1]}]".replace("torch.", "")


def model_message(snapshot: Snapshot | None) -> Message:
    """The model and its buffers as a neighbour gets them."""
    if snapshot is None:
        raise FrameError("there is no model yet; ask again later")
    parts = [snapshot.state.x] + ([] if snapshot.buffers is None else [snapshot.buffers.to(snapshot.state.x.dtype)])
    model = torch.cat(parts, dim=1).contiguous()
    return Message(describe_model(model), model.view(torch.uint8)[0])
