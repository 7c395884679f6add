"""The job that an engine is given, the snapshots that it passes through, and the recorder that keeps them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from netfleet.algorithms import Algorithm
from netfleet.algorithms.base import State, with_values
from netfleet.engines.host import Host
from netfleet.engines.time_box import Steps
from netfleet.privacy.link_noise import LinkNoise
from netfleet.problems.base import Problem
from netfleet.topology.network import Network


class LoopState(NamedTuple):
    """What a training loop from outside keeps beside the method's state: tensors by name, and the rest as JSON."""

    tensors: Mapping[str, Tensor]
    text: str = "{}"


@dataclass(frozen=True)
class Snapshot:
    """Everything that the rounds after `t` depend on, and the counters: of one host's workers, or of all."""

    t: int  # rounds done
    state: State
    buffers: Tensor | None = None
    bytes: int = 0  # sent so far
    samples: int = 0  # used so far
    seconds: float = 0.0  # spent in rounds, evaluation excluded
    network: dict[str, Tensor] = field(default_factory=dict)  # what later exchanges depend on
    loop: LoopState | None = None  # of a loop from outside


class Recorder:
    """Keeps the record of a run; every host calls it, in step with the others. This one records nothing."""

    #: Whether the last good snapshot stays in memory during a round, so that `save` can have it.
    keeps_last = True

    def due(self, t: int) -> bool:
        """Whether a snapshot is wanted after t rounds."""
        return False

    def record(self, snapshot: Snapshot, host: Host) -> None:
        """Measure a host's snapshot that was due together with the others, write the numbers down, save it.

        A resumed run offers its first snapshot again, in case it was stopped before that was measured.
        """

    def save(self, snapshot: Snapshot, host: Host) -> None:
        """Save the last good snapshot of a run that is being stopped, from a host that has all workers."""

    def progress(self, t: int) -> None:
        """Round t is done."""


#: Reads the snapshot from which some workers resume: their State on a device, with the counters of all workers.
Start = Callable[[type[NamedTuple], torch.device, Sequence[int]], Snapshot]


@dataclass(frozen=True)
class Job:
    """A run as engines are given it: what is trained, over what network, how long, and who keeps the record."""

    problem: Problem
    network: Network
    algorithm: Algorithm
    rounds: int
    recorder: Recorder = field(default_factory=Recorder)
    start: Start | None = None  # None: from the problem's initial model
    threads: int = 0  # of each process; 0: one for each core
    first: int = 0  # the first round of a job without `start`
    noise: LinkNoise | None = None  # on the links
    steps: Callable[[Sequence[int]], Steps] | None = None  # who takes which local steps, of some workers; None: all


def gathered(snapshot: Snapshot, host: Host) -> Snapshot:
    """The snapshot of all workers, on every host, from those of the hosts."""
    collective, workers = host.collective, host.problem.workers
    counts = collective.total(torch.tensor([[snapshot.bytes, snapshot.samples]])).tolist()
    return replace(
        snapshot,
        state=with_values(snapshot.state, (collective.gather(values, workers) for values in snapshot.state)),
        buffers=None if snapshot.buffers is None else collective.gather(snapshot.buffers, workers),
        bytes=counts[0],
        samples=counts[1],
    )
