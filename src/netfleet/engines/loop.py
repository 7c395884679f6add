"""The one training loop: it runs a job on a host, whatever the engine."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from netfleet.algorithms import Algorithm, Mix
from netfleet.algorithms.base import State, with_values
from netfleet.engines.host import Host
from netfleet.engines.job import Job, Snapshot
from netfleet.engines.time_box import Steps
from netfleet.errors import DivergedError
from netfleet.gradients.paths import Sample
from netfleet.problems.base import Problem


def train(host: Host, job: Job) -> Snapshot:
    """Run a job on this host, from its start to its last round; returns the snapshot of this host's workers."""
    f, algorithm = Counted(host.problem, None if job.steps is None else job.steps(host.problem.workers)), job.algorithm
    now, bad = _start(host, job, f), None
    f.samples, f.problem.buffers = now.samples, _copy(now.buffers)
    host.load_network_state(now.network)
    sent_before = now.bytes - host.bytes_sent()
    try:
        _offer(host, job, now, bad)
        for t in range(now.t, job.rounds):
            began = time.perf_counter()
            held = [now.state]
            if not job.recorder.keeps_last:
                now = replace(now, state=RELEASED)
            state = advance(host, algorithm, f, t, held)
            bad = bad or _not_finite(state, t, host.problem.workers)
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
            del state
            if host.collective.keeps_record:
                job.recorder.progress(t + 1)
            _offer(host, job, now, bad)
    except (KeyboardInterrupt, DivergedError):
        if host.decides_alone and job.recorder.keeps_last:
            job.recorder.save(now, host)
        raise
    _agree(host, algorithm, bad)
    return now


def _start(host: Host, job: Job, f: "Counted") -> Snapshot:
    """The snapshot before the first round; the host that keeps the record continues the counters of a resumed job."""
    if job.start is not None:
        now = job.start(job.algorithm.State, host.problem.device, host.problem.workers)
        return now if host.collective.keeps_record else replace(now, bytes=0, samples=0)
    f.problem.buffers = _copy(f.problem.initial_buffers)
    state = begin(host, job.algorithm, f, f.problem.start().repeat(len(f.problem.workers), 1))
    _agree(host, job.algorithm, _not_finite(state, job.first, host.problem.workers))
    buffers = _copy(f.problem.buffers)
    return Snapshot(job.first, state, buffers, host.bytes_sent(), f.samples, network=host.network_state())


def begin(host: Host, algorithm: Algorithm, f: "Counted", x: Tensor) -> State:
    """The state before round 0 from the models x, `[rows, d]`."""
    state: State = algorithm.init(f, _with_buffers(host.mixer(-1), f.problem), x)  # type: ignore[arg-type]
    return state


def advance(host: Host, algorithm: Algorithm, f: "Counted", t: int, held: list[State]) -> State:
    """The state after round t from the one that is held, which is taken out of the list.

    If nobody else refers to that state, the method can release its memory (`del s`) as soon as it needs it no more.
    """
    f.choose(host.active(t))
    f.begin(t)
    mix, before = _with_buffers(host.mixer(t), f.problem), held[0] if host.freezes else None
    after: State = algorithm.round(f, mix, t, held.pop())  # type: ignore[arg-type]
    if before is not None:  # a worker that is away keeps its state
        pairs = zip(after, before, strict=True)
        after = with_values(after, (torch.where(f.active, new, old) for new, old in pairs))
    return host.settle(after)


def _offer(host: Host, job: Job, snapshot: Snapshot, bad: "Bad | None") -> None:
    """Let the recorder have a snapshot if one is due."""
    if job.recorder.due(snapshot.t):
        _agree(host, job.algorithm, bad)
        job.recorder.record(snapshot, host)


class Bad(NamedTuple):
    """Where a value was not finite: the round, the number of the state's field, and the first such row's worker."""

    t: int
    place: int
    worker: int


def _not_finite(state: State, t: int, workers: Sequence[int]) -> Bad | None:
    for place, values in enumerate(state):
        if not math.isfinite(values.sum().item()) and not bool(torch.isfinite(values).all()):
            return Bad(t, place, workers[int((~torch.isfinite(values)).any(dim=-1).nonzero()[0])])
    return None


#: That all values are finite.
FINE = Bad(2**62, 0, 0)
#: In the place of a state whose memory is not to be kept.
RELEASED = cast(State, ())


def _agree(host: Host, algorithm: Algorithm, bad: Bad | None) -> None:
    """Stop on every host if a value was not finite on one of them.

    Hosts that do not decide alone ask each other only at snapshots, where they synchronize anyway.
    """
    if host.decides_alone and bad is None:
        return
    first = Bad(*host.least(bad or FINE))
    if first != FINE:
        what = f"{algorithm.State._fields[first.place]} of {host.calls_workers} {first.worker}"
        raise diverged(algorithm, what, first.t)


class Counted:
    """A problem that counts the samples that an algorithm's gradients use.

    In a round that some workers sit out, their gradients are 0 and are not computed. Where rounds have limited time
    (`time_box.py`), a worker's local steps end when it is over.
    """

    def __init__(self, problem: Problem, steps: Steps | None = None) -> None:
        self.problem, self._steps = problem, steps
        self.samples = self._step = 0
        self._last: Tensor | None = None  # the last gradients, where steps may be left out
        self.choose(None)

    def begin(self, t: int) -> None:
        """Round t begins."""
        self._step = 0
        if self._steps is not None:
            self._steps.begin(t)

    def next_step(self) -> Tensor | bool:
        """Who makes the next local step: all, nobody, or some of the rows."""
        self._step += 1
        return True if self._steps is None else self._steps.takes(self._step)

    def step(self, x: Tensor, direction: Tensor, eta: float) -> None:
        takes = self.next_step()
        if isinstance(takes, Tensor):
            rows = takes.to(x.device).nonzero()[:, 0]
            moved = x[rows]
            self.problem.step(moved, direction[rows], eta)
            x[rows] = moved
        elif takes:
            self.problem.step(x, direction, eta)

    def choose(self, active: Tensor | None) -> None:
        """Say which rows take part from now on, `[rows, 1]`; None: all do."""
        device = self.problem.device
        self.active = Problem.active.to(device) if active is None else active.to(device)
        self._rows = None if active is None else self.active[:, 0].nonzero()[:, 0]
        self._part: Problem | None = self.problem  # None: no worker takes part
        if self._rows is not None:
            self._part = self.problem.among(self._rows.tolist()) if len(self._rows) else None

    def sample(self, t: int, k: int) -> Sample:
        return Sample(t, k, 0) if self._part is None else self._part.sample(t, k)

    def grad(self, x: Tensor, sample: Sample) -> Tensor:
        takes = True if self._steps is None else self._steps.takes(sample.k)
        if isinstance(takes, Tensor):
            return self._grad_of_some(x, sample, takes)
        if not takes:
            assert self._last is not None
            return self._last
        self.samples += sample.size
        found = self._spread(x, lambda part, rows: part.grad(rows, sample))
        self._last = None if self._steps is None else found
        return found

    def _grad_of_some(self, x: Tensor, sample: Sample, takes: Tensor) -> Tensor:
        """New gradients of some rows, and the last ones of the others."""
        assert self._last is not None
        part = Counted(self.problem)
        part.choose(takes[:, None] & self.active.cpu())
        found = part.grad(x, part.sample(sample.t, sample.k))
        self.samples += part.samples
        self._last = torch.where(part.active, found, self._last)
        return self._last

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
