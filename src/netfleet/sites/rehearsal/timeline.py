r"""When each site is done with each round: sites wait for their neighbours' messages only, never for all.

| symbol | here | meaning |
|---|---|---|
| cᵢ | `clock[i]` | the time at site i |
| hᵢ | `work[i]` | seconds that site i computes before an exchange |
| δᵢⱼ | `delay[i, j]` | seconds that the message of j takes to i; −∞ where there is no link |

    cᵢ ← cᵢ + hᵢ,  then  cᵢ ← maxⱼ (max(cᵢ, cⱼ) + δᵢⱼ) over the neighbours j of i         (an exchange)

A site's messages to all neighbours share its line and its processor, so with the degrees nᵢ

    δᵢⱼ = latency + bytes · max(nᵢ, nⱼ) / bandwidth + nᵢ · (seconds that i needs for a neighbour's message)

The critical path is read backwards: what the last site waited for, what that one had waited for, and so on. Its parts
add up to the whole time, so it says who sets the pace.
"""

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netfleet.sites.costs.rounds import Rounds
from netfleet.sites.costs.speed import Speed

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Link(NamedTuple):
    """A connection between two sites."""

    latency: float  # seconds for a request and its answer
    rate: float  # bytes per second


@dataclass(frozen=True)
class Path:
    """The parts of the critical path, in seconds."""

    computing: Mapping[int, float]  # by site
    saving: Mapping[int, float]  # by site, with evaluations
    links: Mapping[tuple[int, int], float]  # messages, by the two ends in ascending order

    @property
    def total(self) -> float:
        return sum(sum(part.values()) for part in (self.computing, self.saving, self.links))


@dataclass(frozen=True)
class Timeline:
    """When sites are done: `ends[t]` when the last one is with round t, `last[i]` when site i is with all."""

    ends: Floats
    last: Floats
    path: Path

    @property
    def seconds(self) -> float:
        return float(self.last.max())

    @property
    def pace(self) -> float:
        """Seconds per round."""
        rounds = len(self.ends)
        return float(self.ends[-1] - self.ends[0]) / (rounds - 1) if rounds > 1 else float(self.ends[-1])


class _Step(NamedTuple):
    """An exchange, for the way back: whom each site waited for, and what it had done before."""

    work: Floats
    saving: Floats
    waited: Ints  # the site whose message came last
    clock: Floats  # before the exchange
    delay: Floats


def timeline(
    plans: Sequence[Rounds], speeds: Sequence[Speed], links: Mapping[tuple[int, int], Link], rounds: int, every: int
) -> Timeline:
    """All rounds of sites with these speeds; `links` by both ends, `every`: rounds from one evaluation to the next."""
    m, steps = len(plans), list[_Step]()
    delay_of = functools.cache(functools.partial(_delays, links, speeds))
    made = functools.cache(functools.partial(_made, plans, speeds))
    clock, work, saving = np.zeros(m), np.zeros(m), np.zeros(m)  # since the last exchange
    ends = np.zeros(rounds)
    for t in range(-1, rounds):
        sizes, works = made(t if t < 0 else t % len(plans[0].cycle))
        for size, seconds in zip(sizes, works, strict=False):
            clock, step = _exchange(clock, work + seconds, saving, delay_of(size))
            steps.append(step)
            work, saving = np.zeros(m), np.zeros(m)
        work, saving = work + works[-1], saving + _after(speeds, t, rounds, every)
        if t >= 0:
            ends[t] = (clock + work + saving).max()
    last = clock + work + saving
    return Timeline(ends, last, _path(steps, work, saving, last))


def _after(speeds: Sequence[Speed], t: int, rounds: int, every: int) -> Floats:
    """Saving and, if one is due, the evaluation after round t."""
    due = (t + 1) % every == 0 or t + 1 == rounds
    return np.array([speed.save + (speed.evaluation if due else 0.0) for speed in speeds])


def _made(plans: Sequence[Rounds], speeds: Sequence[Speed], t: int) -> tuple[tuple[int, ...], list[Floats]]:
    """The sizes of a round's messages, and the seconds of work before each and after the last one."""
    rounds = [plan.at(t) for plan in plans]
    pairs = list(zip(rounds, speeds, strict=True))
    works = [np.array([speed.seconds(*each.work[e]) for each, speed in pairs]) for e in range(len(rounds[0].work))]
    return rounds[0].bytes, works


def _delays(links: Mapping[tuple[int, int], Link], speeds: Sequence[Speed], size: int) -> Floats:
    """δ of a message of so many bytes; −∞ where there is no link, so that nobody waits."""
    m = len(speeds)
    degrees, delay = np.bincount([i for ends in links for i in ends], minlength=m), np.full((m, m), -np.inf)
    for (i, j), link in links.items():
        delay[i, j] = delay[j, i] = link.latency + size * max(degrees[i], degrees[j]) / link.rate
    return np.asarray(delay + (degrees * [speed.exchange for speed in speeds])[:, None])


def _exchange(clock: Floats, work: Floats, saving: Floats, delay: Floats) -> tuple[Floats, _Step]:
    clock = clock + work + saving
    arrivals = np.maximum(clock[:, None], clock[None, :]) + delay
    after = np.maximum(arrivals.max(axis=1), clock)  # a site without neighbours goes on
    return after, _Step(work, saving, arrivals.argmax(axis=1), clock, delay)


def _path(steps: Sequence[_Step], work: Floats, saving: Floats, last: Floats) -> Path:
    """Back from the site that is done last."""
    i = int(last.argmax())
    computing, saved = defaultdict[int, float](float), defaultdict[int, float](float)
    links = defaultdict[tuple[int, int], float](float)
    computing[i], saved[i] = float(work[i]), float(saving[i])
    for step in reversed(steps):
        j = int(step.waited[i])
        if np.isfinite(step.delay[i, j]):
            links[min(i, j), max(i, j)] += float(step.delay[i, j])
            i = j if step.clock[j] > step.clock[i] else i
        computing[i] += float(step.work[i])
        saved[i] += float(step.saving[i])
    return Path(computing, saved, links)
