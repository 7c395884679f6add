"""The training job that every adapter runs, and the line that it prints at the end.

An adapter is run by its path inside the virtual environment of one library, so this module imports numpy only;
torch is imported where a torch object is built.
"""

from __future__ import annotations

import argparse
import json
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Job:
    """One training job: the data, who holds which rows, who talks to whom, and the settings of the run."""

    x: npt.NDArray[np.float32]  # [N, 1, 28, 28]
    y: npt.NDArray[np.int64]  # [N]
    parts: npt.NDArray[np.int64]  # [m, n]: the rows of worker i
    W: npt.NDArray[np.float64]  # [m, m]: the mixing matrix
    batch: int
    K: int
    eta: float
    seed: int
    model: str
    layout: str
    rounds: int  # timed rounds; one more is run first to warm up
    threads: int | None  # None: the adapter's own best setting

    @property
    def m(self) -> int:
        return len(self.parts)

    def neighbours(self, i: int) -> list[int]:
        return [int(j) for j in np.flatnonzero(self.W[i]) if j != i]


@cache
def load(arguments: tuple[str, ...] | None = None) -> Job:
    """Read the command line, or the arguments given, and the job file; once in a process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path, help="the job, an npz file")
    parser.add_argument("--model", choices=["cnn", "softmax"], default="cnn")
    parser.add_argument("--layout", choices=["ordinary", "tuned"], default="ordinary")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds, after one that is not timed")
    parser.add_argument("--threads", type=int, help="threads or processes of the library, instead of its best setting")
    settings = vars(parser.parse_args(arguments))
    with np.load(settings.pop("file")) as file:
        arrays = {name: file[name] for name in ("x", "y", "parts", "W")}
        numbers = {name: file[name].item() for name in ("batch", "K", "eta", "seed")}
    return Job(**arrays, **numbers, **settings)


def time_rounds(job: Job, run_round: Callable[[], object]) -> list[float]:
    """Seconds of each of ``job.rounds + 1`` calls of ``run_round``."""
    seconds = []
    for _ in range(job.rounds + 1):
        start = perf_counter()
        run_round()
        seconds.append(perf_counter() - start)
    return seconds


def report(seconds: Sequence[float], **more: Any) -> None:
    """Print the result. ``seconds`` has every round; the first one warmed up and is left out."""
    peak = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(json.dumps({"seconds": list(seconds[1:]), "peak_mb": round(peak / 1024), **more}), flush=True)


def torch_model(job: Job) -> torch.nn.Module:
    """The model, as a user writes it ("ordinary") or in the fastest formulation in torch on a CPU ("tuned")."""
    import torch
    from torch import nn

    if job.model == "softmax":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    tuned, layers = job.layout == "tuned", []
    for channels in (1, 16):
        after = [nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(channels, 16, 3, padding=1), *(after[::-1] if tuned else after)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(784, 10))
    return model.to(memory_format=torch.channels_last) if tuned else model  # type: ignore[call-overload]


def torch_images(job: Job, rows: npt.NDArray[np.int64] | None = None) -> torch.Tensor:
    """Images as the layout wants them. "tuned": [N, 28, 28, 1]; ``as_input`` makes a batch of them [B, 1, 28, 28]."""
    import torch

    images = job.x if rows is None else job.x[rows]
    return torch.from_numpy(images.reshape(-1, 28, 28, 1) if job.layout == "tuned" else images)


def as_input(job: Job, batch: torch.Tensor) -> torch.Tensor:
    """A batch of ``torch_images`` as the model takes it: [B, 1, 28, 28], with channels last in memory if "tuned"."""
    return batch.permute(0, 3, 1, 2) if job.layout == "tuned" else batch
