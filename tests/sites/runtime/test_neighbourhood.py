"""A site among others: gradient tracking stays exact when neighbours are lost for good and others come."""

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
from netfleet.algorithms import ALGORITHMS, Algorithm
from netfleet.algorithms.build import algorithm_label, make_algorithm
from netfleet.engines.host import Content, Tag
from netfleet.engines.job import Job, Snapshot
from netfleet.engines.loop import Counted, begin, train
from netfleet.problems.synthetic import Quadratics
from netfleet.sites.network.outbox import Outbox
from netfleet.sites.runtime.neighbourhood import Neighbourhood, SiteHost, why_fixed

M, ROUNDS = 5, 200
#: Site 1 falls silent in this round, and site 4 comes in that one.
DEATH, BIRTH = 13, 40
TRACKING = [
    {"kind": "net-fleet", "K": 3, "eta": 0.04},
    {"kind": "gt-sgd", "eta": 0.1},
    {"kind": "lu-gt", "K": 3, "eta": 0.04},
    {"kind": "periodical-gt", "K": 3, "eta": 0.04},
    {"kind": "dsgt", "K": 1, "eta": 0.1},
    {"kind": "momentum-tracking", "eta": 0.05, "beta": 0.5},
    {"kind": "k-gt", "K": 3, "eta": 0.04},
    {"kind": "led", "K": 3, "eta": 0.04},
    {"kind": "d2", "eta": 0.1},
    {"kind": "led", "K": 3, "eta": 0.04, "local": {"kind": "momentum", "momentum": 0.5}},
    {"kind": "net-fleet", "K": 3, "eta": 0.04, "local": {"kind": "momentum", "momentum": 0.3}},
    {"kind": "k-gt", "K": 3, "eta": 0.04, "outer": {"kind": "nesterov", "momentum": 0.3}},
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
            host.neighbourhood.drop(j, tag.t)
        into.copy_(own if found is None else found)


def make_hosts(method: Algorithm, problem: Quadratics, air: Air) -> dict[int, SiteHost]:
    graph = nx.cycle_graph(M)
    graph.add_edge(0, 2)  # so that it stays in one piece
    W = make_topology(graph).W().toarray()
    hosts: dict[int, SiteHost] = {}
    for i in range(M):
        weights = {int(j): float(W[i, j]) for j in np.flatnonzero(W[i]) if j != i}
        neighbourhood = Neighbourhood(i, weights, since={j: BIRTH for j in weights if 4 in (i, j)})
        hosts[i] = SiteHost(problem.at([i]), neighbourhood, method, air.exchange_of(i, hosts), Outbox())
    return hosts


def newcomer(host: SiteHost, method: Algorithm, x: Tensor) -> Snapshot:
    """What a site begins with that comes to a training under way."""
    state = begin(host, method, Counted(host.problem), x)
    return Snapshot(BIRTH, state, network=host.network_state())


def run_sites(method: Algorithm, problem: Quadratics) -> dict[int, Any]:
    """The final snapshots of those who are there in the end; who dies in round t does not post in it."""
    air, found = Air({1: DEATH}), {}
    hosts = make_hosts(method, problem, air)

    def live(i: int) -> None:
        start = (lambda *_: newcomer(hosts[4], method, torch.ones(1, problem.d).double())) if i == 4 else None
        rounds, host = DEATH if i == 1 else ROUNDS, hosts[i]
        found[i] = train(host, Job(host.problem, host.network, method, rounds, start=start))

    threads = [threading.Thread(target=live, args=(i,)) for i in range(M)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return {i: found[i] for i in range(M) if i != 1}


@pytest.mark.slow
@pytest.mark.parametrize("spec", TRACKING, ids=algorithm_label)
def test_those_who_are_there_keep_the_invariant_and_reach_their_own_optimum(spec: dict[str, Any]) -> None:
    method = make_algorithm(spec)
    problem = Quadratics(M, d=5, mu=1.0, L=1.5, heterogeneity=3.0, seed=4, dtype=torch.float64)
    ends = run_sites(method, problem)
    states = [end.state for end in ends.values()]
    field = method.conserves.field  # type: ignore[union-attr]
    parts = [s.c if field == "c" else s.y - (s.g if "g" in s._fields else s.u) for s in states]
    assert torch.stack(parts).sum(dim=0).norm() < 1e-11  # rounding, which LED and D² divide by the step size
    rest = sorted(ends)
    optimum = torch.linalg.solve(problem.A[rest].sum(dim=0), (problem.A[rest] @ problem.b[rest][..., None]).sum(dim=0))
    for state in states:
        assert torch.allclose(state.x[0], optimum[:, 0], atol=1e-8)


@pytest.mark.slow
def test_without_the_ledger_the_invariant_would_break(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SiteHost, "settle", lambda self, state: state)
    problem = Quadratics(M, d=5, mu=1.0, L=1.5, heterogeneity=3.0, seed=4, dtype=torch.float64)
    states = [end.state for end in run_sites(make_algorithm(TRACKING[0]), problem).values()]
    assert torch.stack([s.y - s.g for s in states]).sum(dim=0).norm() > 0.1


def test_every_method_says_what_a_loss_would_break() -> None:
    for kind in ALGORITHMS:
        method = make_algorithm(kind)
        if not method.server:
            assert why_fixed(method) is None
