"""What a node of any system trains on, and how it says that a round is done.

An adapter is run as `ADAPTER.py FOLDER VERB [NODE]` inside the environment of one system, so this module imports numpy
and torch only. The verbs, in the order in which they come: `prepare` once; `server` in the background; `node I` in the
background for each node; `go`, which starts the training and ends. A system may need `node` only.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

FOLDER = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else Path()


class Work(NamedTuple):
    """One training: rows of images and who has which, and the settings."""

    x: torch.Tensor  # [N, features]
    y: torch.Tensor  # [N]
    parts: np.ndarray[Any, Any]  # [m, n]
    ports: list[int]  # one for each node, then spare ones
    K: int
    batch: int
    eta: float
    rounds: int
    hidden: int

    @property
    def m(self) -> int:
        return len(self.parts)


def load(folder: Path = FOLDER) -> Work:
    with np.load(folder / "work.npz") as file:
        x, y = torch.from_numpy(file["x"]), torch.from_numpy(file["y"])
        numbers = {name: file[name].item() for name in ("K", "batch", "eta", "rounds", "hidden")}
        return Work(x, y, file["parts"], file["ports"].tolist(), **numbers)


def done(i: int, t: int, folder: Path = FOLDER) -> None:
    (folder / f"round-{i}.new").write_text(str(t))
    (folder / f"round-{i}.new").replace(folder / f"round-{i}")


def ended(i: int, folder: Path = FOLDER) -> None:
    """The training of node i is over, although its process may live."""
    (folder / f"ended-{i}").touch()


def network(work: Work) -> nn.Module:
    """The model; the same start on all nodes."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(work.x.shape[1], work.hidden), nn.ReLU(), nn.Linear(work.hidden, 10))


def local_steps(work: Work, i: int, model: nn.Module) -> None:
    """K steps of SGD on mini-batches of node i's rows."""
    optimizer = torch.optim.SGD(model.parameters(), lr=work.eta)
    rows = torch.from_numpy(work.parts[i])
    for _ in range(work.K):
        chosen = rows[torch.randint(len(rows), (work.batch,))]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(work.x[chosen]), work.y[chosen]).backward()
        optimizer.step()


def run(verbs: Mapping[str, Callable[..., object]]) -> None:
    torch.set_num_threads(1)
    verb, *more = sys.argv[2:]
    verbs[verb](*map(int, more))
