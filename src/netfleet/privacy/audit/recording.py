"""A real run, watched: the messages that every worker sends, and which rows were behind every gradient.

The run is the simulator's, so messages are what a site would send. A second run of the same method has symbols in
place of gradients. It gives each message as a sum of gradients, Σ coefficient · gradient, because all methods with
plain local steps are linear in their gradients. So whatever a method does, one piece of code knows what its messages
are made of; no method is described here. Noise on links has symbols of its own.
"""

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from netfleet.algorithms.base import Algorithm
from netfleet.algorithms.compression import Compressed, Packed
from netfleet.engines.host import Tag
from netfleet.engines.job import Job
from netfleet.engines.loop import Counted, advance, begin
from netfleet.engines.simulator import Simulator
from netfleet.errors import DivergedError
from netfleet.gradients.paths import Sample
from netfleet.privacy.link_noise import Address, AddsNoise, Link, LinkNoise, links_in
from netfleet.problems.base import Problem, Scores
from netfleet.problems.module import ModuleProblem
from netfleet.topology.network import Network

#: Parameters at which the symbols are compared with the numbers.
_COMPARED = 64
#: How far they may differ, as a part of what gradients have changed in a message, and of the message (rounding).
_DIFFERENCE, _ROUNDING = 1e-2, 1e-6


class Exchange(NamedTuple):
    """One exchange: what all workers sent, `[m, d]` for each argument of `mix`."""

    t: int  # −1 while the method initialises
    call: int  # the number of the exchange in the round
    sent: tuple[Tensor, ...]


class Gradient(NamedTuple):
    """One gradient of each worker: its rows of data, and its value at some parameters."""

    t: int
    k: int
    rows: tuple[Tensor, ...]  # by worker
    values: Tensor  # [m, compared]


class Term(NamedTuple):
    """The noise of a link, in the order of its ends' numbers, on one argument of an exchange."""

    low: int
    high: int
    address: Address


@dataclass(frozen=True)
class Recording:
    """The messages and gradients of some rounds."""

    algorithm: Algorithm
    network: Network
    start: Tensor  # [d], which every site knows
    exchanges: tuple[Exchange, ...]
    gradients: tuple[Gradient, ...]
    noise: LinkNoise | None  # on the links

    @property
    def m(self) -> int:
        return self.network.m

    @cached_property
    def terms(self) -> list[Term]:
        """The noise in all messages."""
        if self.noise is None:
            return []
        links = [(link.low, link.high) for link in links_in(self.network.W(), range(self.m))]
        return [
            Term(*link, Address(exchange.t, exchange.call, argument))
            for exchange in self.exchanges
            if exchange.t < self.noise.rounds
            for argument in range(len(exchange.sent))
            for link in links
        ]

    def drawn(self, term: Term) -> Tensor:
        """The numbers of a term `[d]`, with the sign of its lower end."""
        assert self.noise is not None
        out = torch.zeros(1, len(self.start), dtype=self.start.dtype)
        self.noise.draw(Link(term.low, term.high, ()), 1, term.address, out)
        return out[0].double()

    def column(self, event: int, worker: int) -> int:
        """Where a worker's gradient is among the coefficients; 0 is the initial model, and noise comes last."""
        return 1 + event * self.m + worker


def record(job: Job, rounds: int) -> Recording:
    """Run the first rounds of a job."""
    problem = job.problem
    assert isinstance(problem, ModuleProblem)
    host, f = WatchedSimulator(problem, job.network, job.threads, job.noise), _Watched(problem)
    problem.buffers = None if problem.initial_buffers is None else problem.initial_buffers.clone()
    state = begin(host, job.algorithm, f, problem.start().repeat(problem.m, 1))
    for t in range(rounds):
        state = advance(host, job.algorithm, f, t, [state])
    if not bool(torch.isfinite(state.x).all()):
        raise DivergedError(f"{job.algorithm.title} diverged within {rounds} rounds; use a smaller step size (eta)")
    exchanges = as_known(job.algorithm, host.exchanges)
    return Recording(job.algorithm, job.network, problem.start().cpu(), exchanges, tuple(f.gradients), job.noise)


class WatchedSimulator(Simulator):
    """The simulator, and a copy of every message."""

    def __init__(self, problem: Problem, network: Network, threads: int = 0, noise: AddsNoise | None = None) -> None:
        super().__init__(problem, network, threads, noise)
        self.exchanges: list[Exchange] = []

    def _as_sent(self, tag: Tag, packed: Sequence[Packed]) -> Sequence[Packed]:
        sent = super()._as_sent(tag, packed)
        values = [p.values for p in sent if p.values.shape[1] == self.problem.d]  # without BatchNorm's statistics
        self.exchanges.append(Exchange(*tag, tuple(v.to("cpu", copy=True) for v in values)))
        return sent


def as_known(algorithm: Algorithm, exchanges: Sequence[Exchange]) -> tuple[Exchange, ...]:
    """What receivers know after each exchange: where differences are sent, their sum so far."""
    if not (isinstance(algorithm, Compressed) and algorithm.memory):
        return tuple(exchanges)
    known, out = dict[tuple[int, int], Tensor](), []
    for t, group in itertools.groupby(exchanges, key=lambda exchange: exchange.t):
        for call, exchange in enumerate(group):
            sums = [known.get((call, n), 0) + sent.double() for n, sent in enumerate(exchange.sent)]
            known |= {(call, n): total for n, total in enumerate(sums) if t >= 0}
            out.append(Exchange(t, call, tuple(sums)))
    return tuple(out)


class _Watched(Counted):
    """Counts samples as in every run, and writes down the rows of each gradient."""

    def __init__(self, problem: ModuleProblem) -> None:
        super().__init__(problem)
        self.gradients: list[Gradient] = []
        self._parts = tuple(torch.from_numpy(part) for part in problem.parts)
        self._compared = torch.linspace(0, problem.d - 1, min(problem.d, _COMPARED)).long()

    def grad(self, x: Tensor, sample: Sample) -> Tensor:
        value = super().grad(x, sample)
        self._write(value, sample.t, sample.k, self._rows_of(sample))
        return value

    def full_grad(self, x: Tensor) -> Tensor:
        value = super().full_grad(x)
        self._write(value, -1, 0, self._parts)
        return value

    def _write(self, value: Tensor, t: int, k: int, rows: tuple[Tensor, ...]) -> None:
        self.gradients.append(Gradient(t, k, rows, value[:, self._compared].double().cpu()))

    def _rows_of(self, sample: Sample) -> tuple[Tensor, ...]:
        """The rows of each worker; of those that are absent, none."""
        drawn = sample.drawn if sample.drawn is not None else sample.rows
        if drawn is None:
            return self._parts
        if self._rows is None:
            return tuple(drawn)
        found = [torch.empty(0, dtype=torch.int64)] * len(self._parts)
        for place, rows in zip(self._rows.tolist(), drawn, strict=True):
            found[place] = rows
        return tuple(found)


class _Symbols(Problem):
    """A problem whose model has a number for every gradient of every worker; each gradient is 1 at its own place."""

    dtype, device = torch.float64, torch.device("cpu")

    def __init__(self, m: int, events: int, noises: int, seed: int) -> None:
        self.m, self.d, self.workers, self.seed = m, 1 + m * events + noises, tuple(range(m)), seed
        self._events = itertools.count()

    def sample(self, t: int, k: int) -> Sample:
        return Sample(t, k, 0)

    def grad(self, x: Tensor, sample: Sample) -> Tensor:
        return self.full_grad(x)

    def full_grad(self, x: Tensor) -> Tensor:
        event, out = next(self._events), torch.zeros_like(x)
        out[torch.arange(len(x)), 1 + event * self.m + torch.tensor(self.workers)] = 1
        return out

    def start(self) -> Tensor:
        return torch.eye(1, self.d, dtype=self.dtype)[0]

    def at(self, workers: Sequence[int]) -> Self:
        other = copy.copy(self)
        other.workers = tuple(workers)
        return other

    def objective(self, x: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def evaluate(self, x: Tensor, **_: object) -> Scores:
        raise NotImplementedError


class _NoiseSymbols:
    """In place of noise on links: each term is 1 at its own place, with its sign."""

    def __init__(self, terms: Sequence[Term], first: int) -> None:
        self._places = {term: first + place for place, term in enumerate(terms)}

    def added(self, vectors: Sequence[Tensor], links: Sequence[Link], t: int, call: int) -> list[Tensor]:
        out = [v.clone() for v in vectors]
        for argument, link in itertools.product(range(len(out)), links):
            place = self._places.get(Term(link.low, link.high, Address(t, call, argument)))
            for row, sign in link.ends if place is not None else ():
                out[argument][row, place] += sign
        return out


#: Of each exchange and argument, the coefficients `[m, 1 + events · m + terms]`.
Coefficients = tuple[tuple[Tensor, ...], ...]


def coefficients(recording: Recording, seed: int = 0) -> Coefficients | None:
    """What each message is the sum of; None: this method's messages are not linear in its gradients."""
    rounds = 1 + max((exchange.t for exchange in recording.exchanges), default=-1)
    terms, events = recording.terms, len(recording.gradients)
    symbols = _Symbols(recording.m, events, len(terms), seed)
    noise = _NoiseSymbols(terms, recording.column(events, 0)) if terms else None
    host, f = WatchedSimulator(symbols, recording.network, noise=noise), Counted(symbols)
    with torch.no_grad():
        state = begin(host, recording.algorithm, f, symbols.start().repeat(symbols.m, 1))
        for t in range(rounds):
            state = advance(host, recording.algorithm, f, t, [state])
    found = tuple(exchange.sent for exchange in host.exchanges)
    return found if _agree(recording, found) else None


def _agree(recording: Recording, found: Coefficients) -> bool:
    """Whether the symbols, with numbers in their places, are the messages that were sent."""
    if [len(sent) for sent in found] != [len(exchange.sent) for exchange in recording.exchanges]:
        return False
    places = torch.linspace(0, len(recording.start) - 1, recording.gradients[0].values.shape[1]).long()
    gradients, terms = (g.values for g in recording.gradients), recording.terms
    numbers = torch.cat(
        [recording.start[None, places].double(), *gradients, *(recording.drawn(term)[None, places] for term in terms)]
    )
    for exchange, sent in zip(recording.exchanges, found, strict=True):
        for values, symbols in zip(exchange.sent, sent, strict=True):
            real, made = values[:, places].double(), symbols @ numbers
            changed = real - symbols[:, :1] * numbers[:1]
            if not (real - made).norm() <= _DIFFERENCE * changed.norm() + _ROUNDING * real.norm():  # NaN is no
                return False
    return True


def heard(network: Network, members: Sequence[int], t: int) -> list[int]:
    """Whose messages some workers have in round t: those that they receive, and their own."""
    weights = network.W(max(t, 0))[list(members)]
    return sorted({*members, *np.unique(weights.indices[weights.data != 0]).tolist()})
