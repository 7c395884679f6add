"""What an engine is given and what takes part in a run: the job, its snapshots, its hosts and its recorder.

Every engine is one or more hosts. A host has some of the workers (`problem`), a way to average with the others
(`mixer`), and where there are several hosts, a way to compute what none knows alone (`collective`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from netfleet.algorithms import Algorithm, Mix
from netfleet.algorithms.base import State
from netfleet.engines.collective import Collective
from netfleet.problems.base import Problem
from netfleet.topology.network import Network

S = TypeVar("S", bound=State)


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


class Host(Protocol):
    """What runs the loop: it hosts all workers in the simulator, one worker at a site."""

    @property
    def problem(self) -> Problem:
        """The objectives of the workers hosted here."""

    @property
    def decides_alone(self) -> bool:
        """Whether this host stops a diverged run without asking other hosts."""

    @property
    def freezes(self) -> bool:
        """Whether a worker that does not take part keeps its whole state; else the method says what it keeps."""

    def mixer(self, t: int) -> Mix:
        """The average over the neighbourhood in round t (−1 while the algorithm initialises)."""

    def active(self, t: int) -> Tensor | None:
        """Which of this host's workers take part in round t, `[rows, 1]`; None: all do."""

    def settle(self, state: S) -> S:
        """A round's state after the changes to this host's links in that round."""

    def network_state(self) -> dict[str, Tensor]:
        """What later exchanges depend on, by name."""

    def load_network_state(self, memory: dict[str, Tensor]) -> None:
        """Continue from what `network_state` returned."""

    def bytes_sent(self) -> int:
        """Payload bytes that this host's workers have sent so far, or a server has sent to them."""

    @property
    def collective(self) -> Collective:
        """What this host computes together with the others."""


class Recorder(Protocol):
    """Keeps the record of a run; every host calls it, in step with the others."""

    def due(self, t: int) -> bool:
        """Whether a snapshot is wanted after t rounds."""

    def record(self, snapshot: Snapshot, host: Host) -> None:
        """Measure a host's snapshot that was due together with the others, write the numbers down, save it.

        A resumed run offers its first snapshot again, in case it was stopped before that was measured.
        """

    def save(self, snapshot: Snapshot, host: Host) -> None:
        """Save the last good snapshot of a run that is being stopped, from a host that has all workers."""

    def progress(self, t: int) -> None:
        """Round t is done."""


class NoRecord:
    """The recorder of a run that nothing is recorded of."""

    def due(self, t: int) -> bool:
        return False

    def record(self, snapshot: Snapshot, host: Host) -> None: ...
    def save(self, snapshot: Snapshot, host: Host) -> None: ...
    def progress(self, t: int) -> None: ...


#: Reads the snapshot from which some workers resume: their State on a device, with the counters of all workers.
Start = Callable[[type[State], torch.device, Sequence[int]], Snapshot]


@dataclass(frozen=True)
class Job:
    """A run as engines are given it: what is trained, over what network, how long, and who keeps the record."""

    problem: Problem
    network: Network
    algorithm: Algorithm
    rounds: int
    recorder: Recorder = field(default_factory=NoRecord)
    start: Start | None = None  # None: from scratch
    threads: int = 0  # of each process; 0: one for each core


def gathered(snapshot: Snapshot, host: Host) -> Snapshot:
    """The snapshot of all workers, on every host, from those of the hosts."""
    collective, workers = host.collective, host.problem.workers
    counts = collective.total(torch.tensor([[snapshot.bytes, snapshot.samples]])).tolist()
    return replace(
        snapshot,
        state=snapshot.state._make(collective.gather(values, workers) for values in snapshot.state),
        buffers=None if snapshot.buffers is None else collective.gather(snapshot.buffers, workers),
        bytes=counts[0],
        samples=counts[1],
    )
