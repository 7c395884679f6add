"""What a site took from each neighbour, so that it can be taken back when the neighbour is lost.

Mixing is a sum over links, wᵢⱼ (vⱼ − vᵢ), which the two ends see with opposite signs. What a method conserves in sum
over all workers (y − g, or a correction c) is therefore a sum of such flows. The ledger has, for every neighbour, the
flow that came from it. When the neighbour is lost for good, the site takes that flow back and keeps the link's weight
for itself. What remains is a sum over the links among the others, opposite at their ends: the invariant holds among
those that remain, whatever rounds the two ends did or did not share.

| symbol | here | meaning |
|---|---|---|
| wᵢⱼ | `weights[j]` | this site's weight for neighbour j |
| Σ wᵢⱼ (vⱼ − vᵢ) | `flows[j]` | what came over the link so far, times the method's factor |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from netfleet.algorithms import Algorithm
from netfleet.algorithms.compression import Compressed
from netfleet.engines.host import Tag
from netfleet.errors import ConfigError

_PREFIX = "ledger/"


class Ledger:
    """The flows of one site's links."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self._flows: dict[int, Tensor] = {}

    def add(
        self, tag: Tag, argument: int, own: Tensor, others: Mapping[int, Tensor], weights: Mapping[int, float]
    ) -> None:
        """An exchange brought the others' vectors for one argument of `mix`."""
        conserved = self._algorithm.conserves
        if conserved is None or conserved.argument != argument or tag.t < 0:
            return
        factor = self._algorithm.flow(tag.t)
        for j, vector in others.items():
            flow = (vector - own).mul_(factor * weights[j])[None]
            self._flows[j] = self._flows[j].add_(flow) if j in self._flows else flow

    def take_back(self, state: Any, lost: Sequence[int]) -> Any:
        """The state without what came from these neighbours."""
        conserved = self._algorithm.conserves
        for j in lost:
            flow = self._flows.pop(j)
            if conserved is not None:
                state = state._replace(**{conserved.field: getattr(state, conserved.field) - flow})
        return state

    def neighbours(self) -> list[int]:
        """Those from which something came."""
        return list(self._flows)

    def network_state(self) -> dict[str, Tensor]:
        """The flows, to be saved with the state."""
        return {f"{_PREFIX}{j}": flow.clone() for j, flow in self._flows.items()}

    def load_network_state(self, memory: Mapping[str, Tensor]) -> None:
        """Take over what was saved."""
        found = {name: flow for name, flow in memory.items() if name.startswith(_PREFIX)}
        self._flows = {int(name.removeprefix(_PREFIX)): flow.clone() for name, flow in found.items()}


def check_losable(algorithm: Algorithm) -> None:
    """Raise unless sites that run this method can lose neighbours and get new ones."""
    tracks = set(algorithm.State._fields) & {"y", "c"}
    if isinstance(algorithm, Compressed):
        raise ConfigError(
            f"{algorithm.title} with compress: what neighbours remember of each other cannot be taken back, so a site "
            f"that is lost must come back; use patience = 0, or leave compress out"
        )
    if algorithm.conserves is None and tracks:
        raise ConfigError(
            f"{algorithm.title} keeps a sum over all workers ({', '.join(sorted(tracks))}) but does not say how "
            f"exchanges feed it; add conserves = Conserved(field, argument) to the method, or use patience = 0"
        )
