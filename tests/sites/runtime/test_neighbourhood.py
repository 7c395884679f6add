"""A site among others: gradient tracking stays exact when neighbours are lost for good and others come."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
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
from netfleet.privacy.mechanism import Secret, simulated_secret
from netfleet.privacy.settings import Privacy
from netfleet.problems.synthetic import Quadratics
from netfleet.sites.network.outbox import Outbox
from netfleet.sites.runtime.neighbourhood import Ledger, Neighbourhood, SiteHost, why_fixed
from netfleet.sites.runtime.site_noise import SiteNoise

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

    def __init__(self, deaths: dict[int, int], last: Sequence[int] = ()) -> None:
        """Some sites also get the message of the round in which another dies."""
        self.deaths, self.posted, self.changed, self.last = deaths, {}, threading.Condition(), last

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

        death = self.deaths.get(j, 1 << 30)

        def there() -> bool:
            return (j, tag) in self.posted or tag.t >= death + (host.neighbourhood.i in self.last)

        with self.changed:
            assert self.changed.wait_for(there, timeout=60)
            found = self.posted.get((j, tag)) if tag.t < death or host.neighbourhood.i in self.last else None
        if found is None:
            host.neighbourhood.drop(j, tag.t)
        into.copy_(own if found is None else found)


def simulated_noise(neighbourhood: Neighbourhood, privacy: Privacy) -> SiteNoise:
    """The noise of a site that has agreed with all its neighbours already."""
    known, i = simulated_secret(0), neighbourhood.i

    def agree(links: Mapping[int, int], t: int) -> dict[int, Secret]:
        return {j: Secret(known.derive(min(i, j), max(i, j), since)) for j, since in links.items()}

    return SiteNoise(neighbourhood, privacy, ROUNDS, agree)


def make_hosts(method: Algorithm, problem: Quadratics, air: Air, privacy: Privacy | None = None) -> dict[int, SiteHost]:
    graph = nx.cycle_graph(M)
    graph.add_edge(0, 2)  # so that it stays in one piece
    W = make_topology(graph).W().toarray()
    hosts: dict[int, SiteHost] = {}
    for i in range(M):
        weights = {int(j): float(W[i, j]) for j in np.flatnonzero(W[i]) if j != i}
        neighbourhood = Neighbourhood(i, weights, since={j: BIRTH for j in weights if 4 in (i, j)})
        noise = None if privacy is None else simulated_noise(neighbourhood, privacy)
        hosts[i] = SiteHost(problem.at([i]), neighbourhood, method, air.exchange_of(i, hosts), Outbox(), noise)
    return hosts


def newcomer(host: SiteHost, method: Algorithm, x: Tensor) -> Snapshot:
    """What a site begins with that comes to a training under way."""
    state = begin(host, method, Counted(host.problem), x)
    return Snapshot(BIRTH, state, network=host.network_state())


def run_sites(
    method: Algorithm, problem: Quadratics, privacy: Privacy | None = None, last: Sequence[int] = ()
) -> dict[int, Any]:
    """The final snapshots of those who are there in the end.

    Who dies in round t does not post in it, but for those in `last`: they get its message.
    """
    air, found = Air({1: DEATH}, last), {}
    hosts = make_hosts(method, problem, air, privacy)

    def live(i: int) -> None:
        start = (lambda *_: newcomer(hosts[4], method, torch.ones(1, problem.d).double())) if i == 4 else None
        rounds, host = DEATH + bool(last) if i == 1 else ROUNDS, hosts[i]
        found[i] = train(host, Job(host.problem, host.network, method, rounds, start=start))

    threads = [threading.Thread(target=live, args=(i,)) for i in range(M)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return {i: found[i] for i in range(M) if i != 1}


def invariant(method: Algorithm, states: Sequence[Any]) -> float:
    """‖Σ(y − g)‖, or ‖Σc‖."""
    field = method.conserves.field  # type: ignore[union-attr]
    parts = [s.c if field == "c" else s.y - (s.g if "g" in s._fields else s.u) for s in states]
    return float(torch.stack(parts).sum(dim=0).norm())


#: Noise before, while and after a site is lost and another comes; then the models come together.
NOISE = Privacy(link_noise=0.5, exact_rounds=ROUNDS - BIRTH - 10)


@pytest.mark.slow
@pytest.mark.parametrize("privacy", [None, NOISE], ids=["plain", "link noise"])
@pytest.mark.parametrize("spec", TRACKING, ids=algorithm_label)
def test_those_who_are_there_keep_the_invariant_and_reach_their_own_optimum(
    spec: dict[str, Any], privacy: Privacy | None
) -> None:
    method = make_algorithm(spec)
    problem = Quadratics(M, d=5, mu=1.0, L=1.5, heterogeneity=3.0, seed=4, dtype=torch.float64)
    ends = run_sites(method, problem, privacy)
    states = [end.state for end in ends.values()]
    assert invariant(method, states) < 1e-11  # rounding, which LED and D² divide by the step size
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


@pytest.mark.slow
@pytest.mark.parametrize("last", [(0,), (2,), (0, 2)], ids=str)
def test_noise_of_a_last_message_that_some_have_and_others_not_is_taken_back(last: Sequence[int]) -> None:
    problem = Quadratics(M, d=5, mu=1.0, L=1.5, heterogeneity=3.0, seed=4, dtype=torch.float64)
    method = make_algorithm(TRACKING[0])
    ends = run_sites(method, problem, Privacy(link_noise=0.5), last)
    assert invariant(method, [end.state for end in ends.values()]) < 1e-12


@pytest.mark.slow
def test_without_the_noise_in_the_ledger_the_invariant_would_break(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "add_noise", lambda self, tag, j, noise: None)
    problem = Quadratics(M, d=5, mu=1.0, L=1.5, heterogeneity=3.0, seed=4, dtype=torch.float64)
    method = make_algorithm(TRACKING[0])
    ends = run_sites(method, problem, NOISE)
    assert invariant(method, [end.state for end in ends.values()]) > 0.1


def sent_in(noise: SiteNoise, t: int) -> Tensor:
    """What a site makes of zeros in round t."""
    noise.begin(t)
    (sent,) = noise.noise.added([torch.zeros(1, 8)], noise.links, t, 0)
    return sent


def test_a_repeated_round_sends_the_same_noise_though_links_have_changed_in_it() -> None:
    """The new links and losses of a round may be on disk before the round is."""
    privacy, weights = Privacy(link_noise=1.0), {1: 0.2, 2: 0.2, 3: 0.2}
    neighbourhood = Neighbourhood(0, dict(weights), since={3: 4})
    noise = simulated_noise(neighbourhood, privacy)
    saved = noise.network_state()
    first, later = sent_in(noise, 4), Neighbourhood(0, dict(weights), since={3: 4, 2: 6}, lost={1: 4})
    neighbourhood.drop(1, 4)
    neighbourhood.add(2, 6)
    again = simulated_noise(later, privacy)
    again.load_network_state(saved)
    assert torch.equal(sent_in(again, 4), first)
    assert not torch.equal(sent_in(simulated_noise(later, privacy), 4), first), "as the live links would have it"
    noise.network_state()
    assert [link[:2] for link in noise.links] == [(0, 1), (0, 2), (0, 3)]
    for t, partners in ((5, [3]), (6, [2, 3])):
        sent_in(noise, t)
        assert [link.high for link in noise.links] == partners


def test_every_method_says_what_a_loss_would_break() -> None:
    for kind in ALGORITHMS:
        method = make_algorithm(kind)
        if not method.server:
            assert why_fixed(method) is None


def test_the_row_of_W_is_made_again_only_when_the_neighbours_have_changed() -> None:
    neighbourhood = Neighbourhood(0, {1: 0.25, 2: 0.5}, since={2: 3})
    early, late = neighbourhood.W(2), neighbourhood.W(3)
    assert neighbourhood.W(4) is late
    assert early.toarray().tolist() == [[0.75, 0.25, 0.0], [0.0] * 3, [0.0] * 3]
    assert late.toarray().tolist() == [[0.25, 0.25, 0.5], [0.0] * 3, [0.0] * 3]
    neighbourhood.drop(1, 5)
    assert neighbourhood.W(5).toarray()[0].tolist() == [0.5, 0.0, 0.5]
