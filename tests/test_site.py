"""A site among others: the ledger keeps gradient tracking exact when neighbours are lost for good."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor

from netfleet import make_topology
from netfleet.algorithms import Algorithm
from netfleet.bench.setting import Silent
from netfleet.compression import make_algorithm
from netfleet.engines.block import Content, Tag
from netfleet.engines.loop import train
from netfleet.p2p.site import Neighbourhood, SiteHost
from netfleet.problems.synthetic import Quadratics

M = 8
TRACKING = [
    {"kind": "net-fleet", "K": 3, "eta": 0.02},
    {"kind": "gt-sgd", "eta": 0.05},
    {"kind": "lu-gt", "K": 3, "eta": 0.02},
    {"kind": "periodical-gt", "K": 3, "eta": 0.02},
    {"kind": "dsgt", "K": 1, "eta": 0.05},
    {"kind": "momentum-tracking", "eta": 0.02},
    {"kind": "k-gt", "K": 3, "eta": 0.02},
    {"kind": "led", "K": 3, "eta": 0.02},
    {"kind": "d2", "eta": 0.05},
]


class Air:
    """The transport in memory: messages by round, and sites that fall silent after so many rounds."""

    def __init__(self, deaths: dict[int, int]) -> None:
        self.deaths, self.posted, self.changed = deaths, {}, threading.Condition()

    def exchange_of(self, i: int, hosts: dict[int, SiteHost]) -> Any:
        def exchange(tag: Tag, need: Sequence[int], stack: Tensor, content: Content) -> None:
            own = stack[need.index(i)]
            with self.changed:
                self.posted[i, tag] = own.clone()
                self.changed.notify_all()
            for row, j in enumerate(need):
                if j != i:
                    self.fetch(hosts[i], j, tag, stack[row], own)

        return exchange

    def fetch(self, host: SiteHost, j: int, tag: Tag, into: Tensor, own: Tensor) -> None:
        """j's message, or one's own where j is gone: nothing then flows over the link."""

        def there() -> bool:
            return (j, tag) in self.posted or tag.t >= self.deaths.get(j, 1 << 30)

        with self.changed:
            assert self.changed.wait_for(there, timeout=60)
            found = self.posted.get((j, tag))
        if found is None:
            host.drop(j, tag.t)
        into.copy_(own if found is None else found)


def run_sites(method: Algorithm, problem: Quadratics, deaths: dict[int, int], rounds: int) -> dict[int, Any]:
    """The final snapshots of those who live on; who dies in round t still posts its message of that round."""
    graph = nx.cycle_graph(M)
    graph.add_edge(0, 4)  # so that two losses leave it in one piece
    W = make_topology(graph).W().toarray()
    air, hosts, found = Air(deaths), {}, {}
    for i in range(M):
        weights = {int(j): float(W[i, j]) for j in np.flatnonzero(W[i]) if j != i}
        hosts[i] = SiteHost(problem.at([i]), Neighbourhood(i, weights), method, air.exchange_of(i, hosts))

    def live(i: int) -> None:
        found[i] = train(hosts[i], method, min(rounds, deaths.get(i, rounds)), Silent())

    threads = [threading.Thread(target=live, args=(i,)) for i in range(M)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return {i: found[i] for i in range(M) if i not in deaths}


@pytest.mark.parametrize("spec", TRACKING, ids=lambda spec: spec["kind"])
def test_survivors_keep_the_invariant_and_reach_their_own_optimum(spec: dict[str, Any]) -> None:
    method = make_algorithm(spec)
    problem = Quadratics(M, d=5, heterogeneity=3.0, seed=4, dtype=torch.float64)
    ends = run_sites(method, problem, {2: 13, 6: 31}, 3000)
    states = [end.state for end in ends.values()]
    field = method.conserves.field  # type: ignore[union-attr]
    parts = [s.c if field == "c" else s.y - (s.g if "g" in s._fields else s.u) for s in states]
    assert torch.stack(parts).sum(dim=0).norm() < 1e-11
    rest = sorted(ends)
    optimum = torch.linalg.solve(problem.A[rest].sum(dim=0), (problem.A[rest] @ problem.b[rest][..., None]).sum(dim=0))
    for state in states:
        assert torch.allclose(state.x[0], optimum[:, 0], atol=1e-8)
