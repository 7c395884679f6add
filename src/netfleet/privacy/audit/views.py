"""Who attacks, what it has seen, and which gradients of its victim it can compute from that.

Every message is a sum of gradients with coefficients that follow from the method, W and the step size, which all sites
know. The messages that an attacker has are equations for the gradients, one for all parameters alike, and the
estimate of a gradient is the solution of least length (El Mrini, Cyffers, Bellet 2024, "Privacy Attacks in
Decentralized Learning"). `share` is how much of the gradient the equations determine: 1 if the attacker can compute it
exactly. Where links have noise, that of the attacker's own links is subtracted; the other is an error of the equations
whose size is known, and one term of it may be in many of them.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from netfleet.privacy.audit.recording import Coefficients, Recording, heard
from netfleet.privacy.link_noise import Address
from netfleet.topology.topology import Topology

ViewName = Literal["neighbour", "all neighbours", "two hops", "server"]
#: What each view knows, for the page.
WORDS: dict[ViewName, str] = {
    "neighbour": "One neighbour of the victim: every message that the victim sends, every other message that this "
    "neighbour receives, its own state, W, the step size and the initial model.",
    "all neighbours": "All neighbours of the victim together: everything that each of them receives, so every message "
    "that the victim sends and every message that it mixes.",
    "two hops": "A site that is no neighbour of the victim but shares a neighbour with it: only the messages that it "
    "receives from its own neighbours, into which the victim's are mixed.",
    "server": "The server of a method that has one: every message of every worker.",
}
#: A gradient counts as computed exactly from this share on.
EXACT = 0.999
#: A reading is of those gradients whose weight is at least this part of the largest weight.
_COUNTS = 0.1
#: The least error of an equation, as a part of its coefficients.
_ROUNDING = 1e-7
#: Readings of one victim that are tried at most.
MOST = 24


@dataclass(frozen=True)
class View:
    """An attacker of a victim: the workers that cooperate, and the one whose model is closest to the victim's."""

    name: ViewName
    victim: int
    members: tuple[int, ...]
    source: int  # the victim if its messages are seen, else a neighbour of both


class Reading(NamedTuple):
    """A gradient of the victim as an attacker computes it, in the scale of one gradient."""

    t: int  # of the first gradient that is in it
    k: int
    steps: int  # how many gradients it is the mean of
    share: float  # how much of it the attacker's equations determine
    gradient: Tensor  # [d]
    rows: Tensor  # the victim's rows that are in it


class Readings(NamedTuple):
    """All that a view shows of the victim's gradients."""

    found: list[Reading]  # different ones, the clearest first
    exact: float  # share of the gradients sent that can be computed exactly


def views_of(recording: Recording, topology: Topology, victim: int) -> list[View]:
    """The attackers of a victim; where everyone is a neighbour, nobody is two hops away."""
    if recording.algorithm.server:
        return [View("server", victim, tuple(range(recording.m)), victim)]
    readers = sorted({j for t in _rounds(recording) for j in topology.readers(victim, t)})
    found = [View("neighbour", victim, tuple(readers[:1]), victim)]
    found += [View("all neighbours", victim, tuple(readers), victim)]
    for relay in readers:
        far = sorted({*topology.readers(relay)} - {victim, *readers})
        if far:
            return [*found, View("two hops", victim, (far[0],), relay)]
    return found


def _rounds(recording: Recording) -> set[int]:
    return {max(exchange.t, 0) for exchange in recording.exchanges}


def observed(recording: Recording, view: View) -> list[tuple[int, int, int]]:
    """Which messages the view has: exchange, argument and sender."""
    return [
        (place, argument, sender)
        for place, exchange in enumerate(recording.exchanges)
        for argument in range(len(exchange.sent))
        for sender in heard(recording.network, view.members, exchange.t)
    ]


def read_gradients(recording: Recording, found: Coefficients | None, view: View) -> Readings:
    """The gradients of the victim that a view shows."""
    if found is None:
        return Readings(_changes(recording, view), 0.0)
    system = _equations(recording, found, view)
    sent = _sent(recording, found, view.victim)
    if system is None or not sent:
        return Readings([], 0.0)
    single = torch.zeros(len(sent), system.coefficients.shape[1], dtype=torch.float64)
    single[torch.arange(len(sent)), [recording.column(event, view.victim) - 1 for event in sent]] = 1
    exact = float((_solve(system, single).share > EXACT).double().mean())
    targets = torch.cat([single, _means(recording, sent, single)])
    return Readings(_different(recording, view, system, _solve(system, targets), sent), exact)


def _means(recording: Recording, sent: list[int], single: Tensor) -> Tensor:
    """The mean of each round's gradients as targets: methods with local steps often send no less than that."""
    rounds = torch.tensor([recording.gradients[event].t for event in sent])
    return torch.stack([single[rounds == t].mean(dim=0) for t in sorted(set(rounds.tolist()))])


class _Equations(NamedTuple):
    coefficients: Tensor  # [messages, gradients]
    values: Tensor  # [messages, d], without the initial model's part
    rounding: Tensor  # [messages], how exact they are, in units of a gradient
    noise: Tensor  # [messages, terms], the noise in them that the attacker does not know, in the same units


class _Solution(NamedTuple):
    weights: Tensor  # [targets, messages]
    made_of: Tensor  # [targets, gradients], what the estimates are the sum of
    share: Tensor  # [targets]


def _equations(recording: Recording, found: Coefficients, view: View) -> _Equations | None:
    places = observed(recording, view)
    rows = torch.stack([found[e][n][i] for e, n, i in places])
    values = torch.stack([recording.exchanges[e].sent[n][i] for e, n, i in places])
    informative = rows[:, 1:].abs().amax(dim=1) > 0
    if not bool(informative.any()):
        return None
    rows, values = rows[informative], values[informative]
    exactness = torch.finfo(values.dtype).eps * values.double().square().mean(dim=1).sqrt()
    values = values.double() - rows[:, :1] * recording.start.double()
    first = recording.column(len(recording.gradients), 0)
    rows, noise = rows[:, 1:first], rows[:, first:]
    known = [bool({term.low, term.high} & {*view.members}) for term in recording.terms]
    for place in torch.tensor(known).nonzero()[:, 0].tolist():
        values -= noise[:, place, None] * recording.drawn(recording.terms[place])
    typical = torch.cat([gradient.values for gradient in recording.gradients]).square().mean().sqrt().clamp(min=1e-30)
    scale = 0.0 if recording.noise is None else recording.noise.scale
    unknown = noise[:, ~torch.tensor(known, dtype=torch.bool)] * scale
    return _Equations(rows, values, exactness / typical, unknown / typical)


def _solve(system: _Equations, targets: Tensor) -> _Solution:
    """The estimate of least length of each target, a sum of gradients `[targets, gradients]`."""
    known = system.coefficients
    least = _ROUNDING * known.norm(dim=1)  # messages may repeat each other
    error = torch.diag(torch.maximum(system.rounding, least).square()) + system.noise @ system.noise.T
    gram = known @ known.T + error
    weights = torch.linalg.solve(gram, known @ targets.T).T
    made_of = weights @ known
    return _Solution(weights, made_of, (made_of * targets).sum(dim=1) / targets.square().sum(dim=1))


def _sent(recording: Recording, found: Coefficients, victim: int) -> list[int]:
    """The gradients of the victim that are part of a message of its own."""
    own = torch.stack([symbols[victim] for sent in found for symbols in sent]).abs().amax(dim=0)
    return [e for e in range(len(recording.gradients)) if own[recording.column(e, victim)] > 0]


def _different(
    recording: Recording, view: View, system: _Equations, solution: _Solution, sent: list[int]
) -> list[Reading]:
    """The estimates from the clearest on; of those that are made of the same gradients, one."""
    kept: list[Tensor] = []
    found: list[Reading] = []
    own = [recording.column(event, view.victim) - 1 for event in sent]
    for place in sorted(range(len(solution.share)), key=lambda n: -round(float(solution.share[n]), 4)):
        made_of = solution.made_of[place]
        direction = made_of / made_of.norm().clamp(min=1e-30)
        if len(found) == MOST or any(float(direction @ other) > EXACT for other in kept):
            continue
        kept.append(direction)
        parts = made_of[own]
        events = [sent[n] for n in (parts.abs() >= _COUNTS * parts.abs().max()).nonzero()[:, 0].tolist()]
        gradient = solution.weights[place] @ system.values / parts.abs().sum().clamp(min=1e-9)
        rows = torch.unique(torch.cat([recording.gradients[event].rows[view.victim] for event in events]))
        first = recording.gradients[events[0]]
        found.append(Reading(first.t, first.k, len(events), float(solution.share[place]), gradient, rows))
    return found


def _changes(recording: Recording, view: View) -> list[Reading]:
    """Of a method that is not linear: the changes of what it sends, beside the models first, then of the models."""
    rows = torch.unique(torch.cat([gradient.rows[view.victim] for gradient in recording.gradients]))
    start, before = recording.start.double(), dict[int, Tensor]()
    found: list[tuple[bool, Reading]] = []
    for place, exchange in enumerate(recording.exchanges):
        for n, sent in enumerate(exchange.sent):
            now = sent[view.source].double() - _own_noise(recording, view, Address(exchange.t, exchange.call, n))
            change = now - before.get(n, start if n == 0 else torch.zeros_like(now))
            before[n] = now
            initial = n == place == 0 and not recording.algorithm.server  # everybody knows that model
            if not initial and float(change.abs().max()) > 0:
                found.append((n == 0, Reading(exchange.t, 0, 1, 0.0, -change if n == 0 else change, rows)))
    return [reading for _, reading in sorted(found, key=lambda item: item[0])][:MOST]


def _own_noise(recording: Recording, view: View, address: Address) -> Tensor:
    """What the attacker knows of the noise that its source has added to a message."""
    total = torch.zeros(len(recording.start), dtype=torch.float64)
    for term in recording.terms:
        others = {term.low, term.high} - {view.source}
        if term.address == address and len(others) == 1 and others <= {*view.members}:
            total += recording.drawn(term) * (1 if term.low == view.source else -1)
    return total
