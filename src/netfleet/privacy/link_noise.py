"""Noise that cancels between neighbours: the ends of a link add the same numbers to what they send, one with a minus.

| symbol | here | meaning |
|---|---|---|
| nᵢⱼ | `LinkNoise.draw` | the link's noise for one argument of an exchange: normal numbers from a secret of both ends |
| sᵢⱼ | `End.sign` | 1 at the end with the smaller number, −1 at the other |
| Nᵢ = Σⱼ sᵢⱼ nᵢⱼ | | what worker i adds to its vector vᵢ |

A worker averages with its own noisy vector too. So ΣNᵢ = 0 and, as W is doubly stochastic, the sum over all workers of
what an exchange returns is Σvᵢ, as without noise, up to rounding. One neighbour knows one term of Nᵢ.

The noise is a function of the link's secret, the round, the number of the exchange in it, and the argument. So a round
that is repeated after a crash sends the same bits.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from scipy.sparse import csr_array
from torch import Tensor

from netfleet.privacy.mechanism import Secret, simulated_secret
from netfleet.privacy.noise import add_gaussian


class End(NamedTuple):
    """An end of a link that is hosted here: the row of its worker, and the sign of the noise there."""

    row: int
    sign: int


class Link(NamedTuple):
    """Two workers that share noise, in the order of their numbers, and which of the ends are hosted here."""

    low: int
    high: int
    ends: tuple[End, ...]


#: The secret of the link between two workers, in the order of their numbers.
LinkSecret = Callable[[int, int], Secret]


class Address(NamedTuple):
    """For which vector noise is drawn: the round, the exchange in it, and the argument of `mix`."""

    t: int
    call: int
    argument: int


class AddsNoise(Protocol):
    """What a host sends its vectors through (`LinkNoise`)."""

    def added(self, vectors: Sequence[Tensor], links: Sequence[Link], t: int, call: int) -> list[Tensor]:
        """The vectors `[rows, d]` of an exchange as they are sent."""


@dataclass(frozen=True)
class LinkNoise:
    """The noise of some links."""

    scale: float  # standard deviation of a link's noise
    rounds: int  # rounds from this one on have none
    secret: LinkSecret

    def draw(self, link: Link, sign: int, address: Address, out: Tensor) -> None:
        """Add the noise of a link to a row `[1, d]`."""
        key = self.secret(link.low, link.high).derive("link noise", *address)
        add_gaussian(out, [key], [sign * self.scale])

    def added(self, vectors: Sequence[Tensor], links: Sequence[Link], t: int, call: int) -> list[Tensor]:
        """The vectors `[rows, d]` of an exchange as they are sent."""
        if t >= self.rounds:
            return list(vectors)
        return [v + self._sum(v, links, Address(t, call, argument)) for argument, v in enumerate(vectors)]

    def _sum(self, like: Tensor, links: Iterable[Link], address: Address) -> Tensor:
        total, one = torch.zeros_like(like), torch.zeros_like(like[:1])
        for link in links:
            one.zero_()
            self.draw(link, 1, address, one)
            for row, sign in link.ends:
                total[row].add_(one[0], alpha=sign)
        return total


def links_in(W: csr_array, workers: Iterable[int]) -> list[Link]:
    """The links of these workers in a network with weights W."""
    rows = {i: W[[i]] for i in workers}
    return links_of({i: row.indices[row.data != 0].tolist() for i, row in rows.items()})


def links_of(neighbours: Mapping[int, Iterable[int]]) -> list[Link]:
    """The links of hosted workers, by number in the order of their rows, to their neighbours.

    They are in the order in which every worker's neighbours ascend, so a sum has the same bits wherever it is made.
    """
    place = {worker: row for row, worker in enumerate(neighbours)}
    pairs = {(min(i, j), max(i, j)) for i, others in neighbours.items() for j in others if j != i}

    def ends(low: int, high: int) -> Iterator[End]:
        yield from (End(place[i], sign) for i, sign in ((low, 1), (high, -1)) if i in place)

    return [Link(low, high, tuple(ends(low, high))) for low, high in sorted(pairs)]


def simulated_links(seed: int) -> LinkSecret:
    """The secrets of a simulation or of a cluster's run, which follow from the seed."""
    known = simulated_secret(seed)
    return lambda low, high: Secret(known.derive("link", low, high))
