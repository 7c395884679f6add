"""The times of rounds: closed forms, a literal transcription of the recursion, and what the path adds up to."""

from __future__ import annotations

import functools
import math

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfleet.sites.costs.rounds import Round, Rounds, Work
from netfleet.sites.costs.speed import Speed
from netfleet.sites.rehearsal.timeline import Link, timeline

Links = dict[tuple[int, int], Link]


def one_exchange(steps: int, size: int) -> Rounds:
    """Rounds with an exchange and then so many steps, and nothing before round 0."""
    return Rounds(Round((Work(),), ()), (Round((Work(), Work(steps)), (size,)),))


def links_of(graph: nx.Graph, latency: float = 0.0, rate: float = math.inf) -> Links:
    return {(min(ends), max(ends)): Link(latency, rate) for ends in graph.edges}


def test_equal_sites_take_the_sum_of_steps_messages_and_writing() -> None:
    """R (K s + save + latency + bytes · degree / rate), the writing before round 0, and the due evaluations."""
    links, K, R = links_of(nx.complete_graph(4), latency=0.5, rate=100.0), 5, 12
    speed = Speed(step=2.0, save=0.25, evaluation=3.0)
    found = timeline([one_exchange(K, 1000)] * 4, [speed] * 4, links, R, every=5)
    message = 0.5 + 3 * 1000 / 100
    assert found.seconds == pytest.approx(R * (K * 2.0 + 0.25 + message) + 0.25 + 3.0 * 4)  # rounds 0, 5, 10 and 12
    assert found.path.total == pytest.approx(found.seconds)
    assert sum(found.path.links.values()) == pytest.approx(R * message)


@pytest.mark.parametrize("graph", [nx.path_graph(5), nx.cycle_graph(5), nx.star_graph(4)])
def test_one_slow_site_sets_the_pace_of_all_and_is_the_critical_path(graph: nx.Graph) -> None:
    speeds = [Speed(1.0)] * 4 + [Speed(9.0)]
    found = timeline([one_exchange(2, 0)] * 5, speeds, links_of(graph), 40, every=1000)
    assert found.pace == pytest.approx(18.0, rel=0.1)
    assert found.path.computing[4] >= 0.9 * found.seconds


def test_a_slow_site_is_felt_one_hop_further_in_each_round() -> None:
    """On a path, the site at distance r ends round t late by the slow site's rounds up to t − r only."""
    R = 3
    found = timeline([one_exchange(1, 0)] * 6, [Speed(100.0)] + [Speed(1.0)] * 5, links_of(nx.path_graph(6)), R, 1000)
    late = [max(R - distance, 0) for distance in range(6)]
    assert found.last.tolist() == pytest.approx([100.0 * n + (R - n) for n in late])


def test_a_site_without_a_neighbour_and_rounds_without_exchange_only_work() -> None:
    plan = Rounds(Round((Work(1),), ()), (Round((Work(2),), ()),))
    assert timeline([plan], [Speed(1.0)], {}, 4, every=1000).seconds == pytest.approx(9.0)


def by_recursion(plans: list[Rounds], speeds: list[Speed], links: Links, rounds: int, every: int) -> list[float]:
    """When each site is done: everything that it does in its order, where an exchange waits for the neighbours'."""
    m = len(plans)
    degree = [sum(i in ends for ends in links) for i in range(m)]

    def script(i: int) -> list[float | int]:
        """Seconds of work (float) and sizes of exchanges (int)."""
        found: list[float | int] = []
        for t in range(-1, rounds):
            made = plans[i].at(t)
            for e, work in enumerate(made.work):
                found.append(work.steps * speeds[i].step + work.passes * speeds[i].whole)
                found += [made.bytes[e]] if e < len(made.bytes) else []
            due = (t + 1) % every == 0 or t + 1 == rounds
            found.append(speeds[i].save + (speeds[i].evaluation if due else 0.0))
        return found

    scripts = [script(i) for i in range(m)]

    @functools.cache
    def time(i: int, place: int) -> float:
        """After `place` entries of the site's script."""
        if place == 0:
            return 0.0
        entry, before = scripts[i][place - 1], time(i, place - 1)
        if isinstance(entry, float):
            return before + entry
        arrivals = [before]
        for (a, b), link in links.items():
            if i in (a, b):
                j = a + b - i
                seconds = link.latency + entry * max(degree[i], degree[j]) / link.rate + degree[i] * speeds[i].exchange
                arrivals.append(max(before, time(j, place - 1)) + seconds)
        return max(arrivals)

    return [time(i, len(scripts[i])) for i in range(m)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_it_is_the_recursion_and_the_parts_of_the_path_add_up(data: st.DataObject) -> None:
    m = data.draw(st.integers(2, 5))
    graph = nx.cycle_graph(m) if data.draw(st.booleans()) else nx.path_graph(m)
    seconds, exchanges = st.floats(0.0, 10.0), data.draw(st.integers(0, 2))
    sizes = tuple(data.draw(st.integers(0, 1000)) for _ in range(exchanges))

    def some_rounds() -> Rounds:
        works = [Work(data.draw(st.integers(0, 4)), data.draw(st.integers(0, 1))) for _ in range(exchanges + 1)]
        return Rounds(Round((Work(1), Work()), (7,)), (Round(tuple(works), sizes),))

    plans = [some_rounds() for _ in range(m)]
    speeds = [Speed(*(data.draw(seconds) for _ in range(5))) for _ in range(m)]
    drawn = {ends: Link(data.draw(seconds), data.draw(st.floats(1.0, 1e4))) for ends in links_of(graph)}
    rounds, every = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    found = timeline(plans, speeds, drawn, rounds, every)
    assert found.last.tolist() == pytest.approx(by_recursion(plans, speeds, drawn, rounds, every))
    assert found.path.total == pytest.approx(found.seconds)
    assert (found.ends[1:] >= found.ends[:-1]).all()
