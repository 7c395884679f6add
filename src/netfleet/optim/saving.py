"""Saves what all ranks have as one set of files, and loads it, also on another number of ranks.

The files are those of `runs/checkpoint.py`: one for each rank, and a manifest that is written last.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from netfleet.algorithms import Algorithm
from netfleet.engines.collective import agreed
from netfleet.engines.job import LoopState
from netfleet.errors import CheckpointError
from netfleet.optim.loop_problem import LoopProblem
from netfleet.optim.meeting import Point
from netfleet.optim.ranks import Ranks
from netfleet.optim.training import Training
from netfleet.runs import checkpoint


def run_hash(facts: Mapping[str, str]) -> str:
    """What a saved state belongs to: the method, the parameters and the frozen ones."""
    return hashlib.sha256(repr(sorted(facts.items())).encode()).hexdigest()


def save(ranks: Ranks, training: Training, method: Algorithm, folder: Path, facts: Mapping[str, str]) -> None:
    """Write this rank's file and, when all ranks have written theirs, the manifest."""
    snapshot = training.snapshot()
    ranks.meet(Point.SAVE, snapshot.t)
    ranks.collective.first(lambda: folder.mkdir(parents=True, exist_ok=True))
    checkpoint.save(folder, snapshot, ranks.host(training.problem, method), run_hash(facts))


class Loaded(NamedTuple):
    """What was saved, for one rank."""

    t: int
    x: Tensor  # [1, d]
    fields: dict[str, Tensor] | None  # of the method's state; None on another number of ranks
    buffers: Tensor | None
    loop: LoopState | None


def load(ranks: Ranks, training: Training, method: Algorithm, folder: Path, facts: Mapping[str, str]) -> Loaded:
    """What was saved for this rank; on another number of ranks the average model, and what the first rank kept."""
    ranks.meet(Point.LOAD, training.round)
    return agreed(ranks.collective, lambda: _load(ranks, training.problem, method, folder, facts))


def _load(ranks: Ranks, problem: LoopProblem, method: Algorithm, folder: Path, facts: Mapping[str, str]) -> Loaded:
    run, workers = checkpoint.belongs_to(folder)
    if run != run_hash(facts):
        raise CheckpointError(
            f"{folder} was saved with another method, other parameters or other frozen weights; build the model and "
            f"the optimizer as they were then"
        )
    if len(workers) == ranks.workers:
        own = checkpoint.load(folder, run, method.State, problem.device, problem.workers)
        fields = dict(zip(own.state._fields, own.state, strict=True))
        return Loaded(own.t, own.state.x, fields, own.buffers, own.loop)
    first, *others = workers
    found = checkpoint.load(folder, run, method.State, problem.device, [first])
    x = found.state.x.clone()
    for worker in others:  # one after the other, for the least memory
        x.add_(checkpoint.load(folder, run, method.State, problem.device, [worker]).state.x)
    return Loaded(found.t, x.div_(len(workers)), None, found.buffers, found.loop)
