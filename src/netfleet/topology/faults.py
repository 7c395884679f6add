"""Imperfect networks: lost messages, late messages, workers that are away for a while, and the rules for them.

| rule | when a message is missing | when it is late |
|---|---|---|
| "drop" | both ends leave the link out and keep its weight | both ends use what they had when it was sent, damped |
| "fold" | the reader keeps the weight; the other end does not know | the reader uses it as if it were new |
| "ignore" | the reader uses nothing in its place, so its weights no longer sum to 1 | as "fold" |
| "counters" | messages carry the sum of all that was sent, so the next one brings what was lost | (not combined) |

Mixing is a sum over links of wᵢⱼ (xⱼ − xᵢ), which the two ends see with opposite signs. A rule that preserves this
leaves Σᵢ xᵢ as it is, and with it the invariant of gradient tracking; "fold" and "ignore", which most systems use, do
not. A worker that is away has its links dropped at both ends, computes nothing, and returns with the state it had.

Old differences can oscillate: x⁺ = x − L x_{t−τ} is stable only while every eigenvalue of L = I − W is below
2 sin(π / (4τ + 2)) (Levin and May 1976). So with late messages the weights of the links are lowered to nine tenths of
that for the longest delay.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from netfleet.errors import ConfigError
from netfleet.randomness import integers, uniform
from netfleet.registry import check_fields
from netfleet.topology.network import Network
from netfleet.topology.topology import Topology


@dataclass(frozen=True)
class Faults:
    """Which faults the network has, and the rule for them.

    A share `loss` of the messages is lost (with rule "drop", of the links), others come up to `delay` rounds late, and
    a share `absent` of the workers is away, drawn anew every `spell` rounds.
    """

    loss: float = 0.0
    rule: Literal["drop", "fold", "ignore", "counters"] = "drop"
    delay: int = 0
    absent: float = 0.0
    spell: int = 1

    def __post_init__(self) -> None:
        check_fields(self, "network")
        for name in ("loss", "absent"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"network: {name} is a share and must lie in [0, 1), got {getattr(self, name)!r}")
        if self.delay < 0 or self.spell < 1:
            raise ConfigError(
                f"network: delay must be 0 rounds or more and spell 1 or more, got delay = {self.delay}, "
                f"spell = {self.spell}"
            )
        if self.rule == "counters" and self.delay:
            raise ConfigError('network: rule = "counters" is for lost messages; leave delay out, or use rule = "drop"')

    @property
    def any(self) -> bool:
        """Whether there are any faults."""
        return bool(self.loss or self.delay or self.absent)


class Links(NamedTuple):
    """The links of one round, one for each entry of W off the diagonal."""

    i: npt.NDArray[np.int64]  # the reader
    j: npt.NDArray[np.int64]  # the worker that is read
    w: npt.NDArray[np.float64]
    heard: npt.NDArray[np.bool_]
    apart: npt.NDArray[np.bool_]  # one of the two is away
    delay: npt.NDArray[np.int64]  # in rounds
    kept: npt.NDArray[np.float64]  # [m], the weight that each worker gives to its own vector


@dataclass(frozen=True, eq=False)
class Unreliable(Network):
    """A topology whose links and workers fail, each by its own draw for (seed, round, link or worker)."""

    topology: Topology
    faults: Faults
    seed: int = 0
    _last: dict[int, Links] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.topology.weight_sequence.symmetric:
            raise ConfigError(
                f"network: {self.topology.name!r} has one-way links in some rounds, so no link "
                f"can fail at both ends; use a graph whose rounds are symmetric"
            )
        if self.topology.varying and self.has_memory:
            raise ConfigError(
                f'network: delay and rule = "counters" need a fixed graph, but {self.topology.name!r} changes from '
                f"round to round"
            )

    @property
    def m(self) -> int:
        return self.topology.m

    @property
    def varying(self) -> bool:
        return True

    @property
    def freezes(self) -> bool:
        return self.faults.absent > 0

    @property
    def has_memory(self) -> bool:
        """Whether an exchange depends on those before it, so that no W(t) describes it."""
        return self.faults.delay > 0 or self.faults.rule == "counters"

    @cached_property
    def damping(self) -> float:
        """The factor on the weights of the links that keeps late messages from making the workers oscillate."""
        if self.faults.delay == 0 or self.faults.rule != "drop" or self.m == 1:
            return 1.0
        largest = 1 - self.topology.least_eigenvalue
        return min(1.0, 0.9 * 2 * math.sin(math.pi / (4 * self.faults.delay + 2)) / largest)

    def links(self, t: int) -> Links:
        """The links of round t."""
        links = self._last.get(t)
        if links is None:  # the threads of an engine may be in different rounds
            links = self._draw(t)
            self._last.clear()
            self._last[t] = links
        return links

    def _draw(self, t: int) -> Links:
        W = self.topology.W(t).tocoo()
        off = (W.row != W.col) & (W.data != 0)
        i, j, w = W.row[off].astype(np.int64), W.col[off].astype(np.int64), self.damping * W.data[off]
        low, high = np.minimum(i, j), np.maximum(i, j)
        away = self._away(t)
        apart = away[i] | away[j]
        both = self.faults.rule == "drop"
        draw = uniform("link", self.seed, t, low, high) if both else uniform("message", self.seed, t, i, j)
        lost = (draw < self.faults.loss) & ~apart
        kept = 1 - self.damping * (1 - self.topology.W(t).diagonal())
        np.add.at(kept, i, np.where(apart | (lost & (self.faults.rule != "ignore")), w, 0.0))
        delay = integers(self.faults.delay + 1, "delay", self.seed, t, low, high)
        return Links(i, j, w, ~(apart | lost), apart, np.minimum(delay, t), kept)

    def _away(self, t: int) -> npt.NDArray[np.bool_]:
        """Which workers are away in round t, `[m]`: drawn anew for every spell."""
        return uniform("absent", self.seed, np.arange(self.m), t // self.faults.spell) < self.faults.absent

    def W(self, t: int = 0) -> csr_array:
        """The matrix of round t, where no earlier round matters."""
        links = self.links(t)
        rows, columns = np.append(links.i, np.arange(self.m)), np.append(links.j, np.arange(self.m))
        return csr_array((np.append(links.w * links.heard, links.kept), (rows, columns)), shape=(self.m, self.m))

    def sends(self, i: int, t: int = 0) -> int:
        """How many messages worker i sends in an exchange of round t; a lost one was sent."""
        away = self._away(t)
        return 0 if away[i] else sum(not away[j] for j in self.topology.readers(i, t))

    def messages(self, t: int = 0) -> int:
        links, away = self.links(t), self._away(t)
        return int(np.count_nonzero(~(away[links.i] | away[links.j])))

    def active(self, t: int = 0) -> npt.NDArray[np.bool_] | None:
        return ~self._away(t) if self.faults.absent else None
