"""The one training loop, and what an engine must supply to host it.

Every engine is one or more hosts. A host has some of the workers (`problem`), a way to average with the others
(`mixer`), and where there are several, a way to find out together what none knows alone (`collective`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from netfleet.algorithms import Algorithm, Mix
from netfleet.engines.collective import Collective
from netfleet.errors import DivergedError
from netfleet.gradients.paths import Sample
from netfleet.problems.base import Problem


@dataclass(frozen=True)
class Snapshot:
    """Everything that the rounds after `t` depend on, and the counters: of one host's workers, or of all."""

    t: int  # rounds done
    state: Any  # the algorithm's State
    buffers: Tensor | None = None
    bytes: int = 0  # sent so far
    samples: int = 0  # used so far
    seconds: float = 0.0  # spent in rounds, evaluation excluded
    network: dict[str, Tensor] = field(default_factory=dict)  # what the network remembers, where it does


class Host(Protocol):
    """What runs the loop: all workers in the simulator, one worker on a peer."""

    @property
    def problem(self) -> Problem:
        """The objectives of the workers hosted here."""

    @property
    def decides_alone(self) -> bool:
        """Whether this host has all the workers."""

    @property
    def freezes(self) -> bool:
        """Whether a worker that does not take part keeps all that it has; else the method says what it keeps."""

    def mixer(self, t: int) -> Mix:
        """The average over the neighbourhood in round t (−1 while the algorithm initialises)."""

    def active(self, t: int) -> Tensor | None:
        """Which of this host's workers take part in round t, `[rows, 1]`; None: all do."""

    def settle(self, state: Any) -> Any:
        """A round's state after what happened to this host's links in it."""

    def network_state(self) -> dict[str, Tensor]:
        """What later exchanges depend on, by name."""

    def load_network_state(self, memory: dict[str, Tensor]) -> None:
        """Go on from such a memory."""

    def bytes_sent(self) -> int:
        """Payload bytes that this host's workers have sent so far, or a server has sent to them."""

    @property
    def collective(self) -> Collective:
        """What this host finds out together with the others."""


class Recorder(Protocol):
    """What keeps the record of a run; every host has one, in step with the others."""

    def due(self, t: int) -> bool:
        """Whether a snapshot is wanted after t rounds."""

    def take(self, snapshot: Snapshot, host: Host) -> None:
        """A host's snapshot that was due: measure it with the others, write it down, make it durable.

        A resumed run offers its first snapshot again, in case it was stopped before that was measured.
        """

    def rescue(self, snapshot: Snapshot, host: Host) -> None:
        """The last good snapshot of a run that is being stopped, from a host that has all workers."""

    def progress(self, t: int) -> None:
        """Round t is done."""


#: The snapshot that some workers go on from, with the counters of all.
Start = Callable[[Sequence[int]], Snapshot]


def train(host: Host, algorithm: Algorithm, rounds: int, recorder: Recorder, start: Start | None = None) -> Snapshot:
    """Run the algorithm on this host from `start` (or from scratch) to the given number of rounds."""
    f = Counted(host.problem)
    now = _begin(host, algorithm, f) if start is None else _resume(host, start)
    bad: _Bad | None = None
    f.samples, f.problem.buffers = now.samples, _copy(now.buffers)
    host.load_network_state(now.network)
    sent_before = now.bytes - host.bytes_sent()
    try:
        _offer(host, recorder, now, algorithm, bad)
        for t in range(now.t, rounds):
            began = time.perf_counter()
            state = advance(host, algorithm, f, t, now.state)
            bad = bad or _not_finite(state, t)
            if host.decides_alone:
                _agree(host, algorithm, bad)
            now = Snapshot(
                t=t + 1,
                state=state,
                buffers=_copy(f.problem.buffers),
                network=host.network_state(),
                bytes=sent_before + host.bytes_sent(),
                samples=f.samples,
                seconds=now.seconds + time.perf_counter() - began,
            )
            if host.collective.keeps_record:
                recorder.progress(t + 1)
            _offer(host, recorder, now, algorithm, bad)
    except (KeyboardInterrupt, DivergedError):
        if host.decides_alone:
            recorder.rescue(now, host)
        raise
    _agree(host, algorithm, bad)
    return now


def _resume(host: Host, start: Start) -> Snapshot:
    """The host that keeps the record carries the counters on."""
    now = start(host.problem.workers)
    return now if host.collective.keeps_record else replace(now, bytes=0, samples=0)


def _begin(host: Host, algorithm: Algorithm, f: Counted) -> Snapshot:
    f.problem.buffers = _copy(f.problem.initial_buffers)
    state = begin(host, algorithm, f, f.problem.start().repeat(len(f.problem.workers), 1))
    _agree(host, algorithm, _not_finite(state, 0))
    return Snapshot(0, state, _copy(f.problem.buffers), host.bytes_sent(), f.samples, network=host.network_state())


def begin(host: Host, algorithm: Algorithm, f: Counted, x: Tensor) -> Any:
    """The state before round 0 from the models x, `[rows, d]`."""
    return algorithm.init(f, _with_buffers(host.mixer(-1), f.problem), x)  # type: ignore[arg-type]


def advance(host: Host, algorithm: Algorithm, f: Counted, t: int, state: Any) -> Any:
    """The state after round t."""
    f.choose(host.active(t))
    after = algorithm.round(f, _with_buffers(host.mixer(t), f.problem), t, state)  # type: ignore[arg-type]
    return host.settle(_only(f.active, after, state) if host.freezes else after)


def _only(active: Tensor, state: Any, before: Any) -> Any:
    """The new state of the workers that took part, the old one of those that were away."""
    return type(state)(*(torch.where(active, new, old) for new, old in zip(state, before, strict=True)))


def _offer(host: Host, recorder: Recorder, snapshot: Snapshot, algorithm: Algorithm, bad: _Bad | None) -> None:
    if recorder.due(snapshot.t):
        _agree(host, algorithm, bad)
        recorder.take(snapshot, host)


class _Bad(NamedTuple):
    """Where a value was not finite: the round, and the number of the state's field."""

    t: int
    place: int


def _not_finite(state: Any, t: int) -> _Bad | None:
    for place, values in enumerate(state):
        if not math.isfinite(values.sum().item()) and not bool(torch.isfinite(values).all()):
            return _Bad(t, place)
    return None


_FINE = _Bad(2**62, 0)


def _agree(host: Host, algorithm: Algorithm, bad: _Bad | None) -> None:
    """Stop on every host if a value was not finite on one of them.

    Hosts ask each other only where they meet anyway, at a snapshot; until then what is not finite spreads.
    """
    if host.decides_alone and bad is None:
        return
    workers = host.problem.workers
    seen = host.collective.gather(torch.tensor([bad or _FINE] * len(workers)), workers)
    first = _Bad(*min(seen.tolist()))
    if first != _FINE:
        raise diverged(algorithm, algorithm.State._fields[first.place], first.t)


class Counted:
    """A problem that counts the samples that an algorithm's gradients use.

    In a round that some workers sit out, their gradients are 0 and are not computed.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.samples = 0
        self.choose(None)

    def choose(self, active: Tensor | None) -> None:
        """Say which rows take part from now on, `[rows, 1]`; None: all do."""
        device = self.problem.device
        self.active = Problem.active.to(device) if active is None else active.to(device)
        self._rows = None if active is None else self.active[:, 0].nonzero()[:, 0]
        self._part: Problem | None = self.problem  # None: nobody takes part
        if self._rows is not None:
            self._part = self.problem.among(self._rows.tolist()) if len(self._rows) else None

    def sample(self, t: int, k: int) -> Sample:
        return Sample(t, k, 0) if self._part is None else self._part.sample(t, k)

    def grad(self, x: Tensor, sample: Sample) -> Tensor:
        self.samples += sample.size
        return self._spread(x, lambda part, rows: part.grad(rows, sample))

    def full_grad(self, x: Tensor) -> Tensor:
        self.samples += 0 if self._part is None else self._part.size
        return self._spread(x, lambda part, rows: part.full_grad(rows))

    def _spread(self, x: Tensor, gradient: Callable[[Problem, Tensor], Tensor]) -> Tensor:
        if self._rows is None:
            return gradient(self.problem, x)
        out = torch.zeros_like(x)
        if self._part is not None:
            buffers = self.problem.buffers
            self._part.buffers = None if buffers is None else buffers[self._rows]
            out[self._rows] = gradient(self._part, x[self._rows])
            if buffers is not None and self._part.buffers is not None:
                buffers[self._rows] = self._part.buffers
        return out

    def __getattr__(self, name: str) -> Any:
        return getattr(self.problem, name)


def _with_buffers(mix: Mix, problem: Problem) -> Mix:
    """Let module buffers travel with the first message of a round, where the problem wants them mixed."""
    if not problem.mixes_buffers:
        return mix
    pending = True

    def both(*vectors: Tensor) -> Tensor | tuple[Tensor, ...]:
        nonlocal pending
        if not pending:
            return mix(*vectors)
        pending = False
        assert problem.buffers is not None
        *mixed, problem.buffers = mix(*vectors, problem.buffers)
        return mixed[0] if len(mixed) == 1 else tuple(mixed)

    return both  # type: ignore[return-value]


def _copy(buffers: Tensor | None) -> Tensor | None:
    """Gradients write into the problem's buffers; a snapshot must not change with them."""
    return None if buffers is None else buffers.clone()


def diverged(algorithm: Algorithm, what: str, t: int) -> DivergedError:
    """The error for a non-finite value: which algorithm, round and step size."""
    return DivergedError(
        f"{algorithm.title} diverged: {what} is not finite in round {t} with step size {algorithm.step_size(t):g}; "
        f"the last good state is kept. {algorithm.remedy_if_diverged}"
    )


def together(snapshot: Snapshot, host: Host) -> Snapshot:
    """The snapshot of all workers, on every host, from those of the hosts."""
    collective, workers = host.collective, host.problem.workers
    counts = collective.total(torch.tensor([[snapshot.bytes, snapshot.samples]])).tolist()
    return replace(
        snapshot,
        state=type(snapshot.state)(*(collective.gather(values, workers) for values in snapshot.state)),
        buffers=None if snapshot.buffers is None else collective.gather(snapshot.buffers, workers),
        bytes=counts[0],
        samples=counts[1],
    )
