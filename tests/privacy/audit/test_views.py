"""Which gradients an attacker can compute from the messages that it has, whatever the method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from netfleet.algorithms import ALGORITHMS
from netfleet.algorithms.build import make_algorithm
from netfleet.engines.job import Job
from netfleet.privacy.audit.recording import Recording, coefficients, record
from netfleet.privacy.audit.views import EXACT, Readings, View, observed, read_gradients, views_of
from netfleet.privacy.link_noise import LinkNoise, simulated_links
from netfleet.runs.build import network_for
from netfleet.topology.topology import Topology, make_topology
from support.problems import digits_problem

WORKERS = 6


def recorded(spec: Any, topology: Topology, rounds: int = 3, **options: Any) -> Recording:
    method = make_algorithm(spec)
    problem = digits_problem(topology.m, model="softmax", batch=4, dtype=torch.float64, **options)
    return record(Job(problem, network_for(method, topology, 0), method, rounds), rounds)


def ring() -> Topology:
    return make_topology("ring", workers=WORKERS)


def read(recording: Recording, topology: Topology, victim: int = 0) -> dict[str, Readings]:
    found = coefficients(recording)
    assert found is not None
    return {view.name: read_gradients(recording, found, view) for view in views_of(recording, topology, victim)}


@pytest.mark.parametrize("kind", sorted(ALGORITHMS))
def test_the_messages_of_every_method_are_sums_of_gradients(kind: str) -> None:
    assert coefficients(recorded(kind, ring())) is not None


@pytest.mark.parametrize("spec", [{"kind": "ld-sgd", "local": "adam"}, {"kind": "net-fleet", "compress": "top-k"}])
def test_methods_that_are_not_linear_are_found_and_read_by_changes(spec: Any) -> None:
    topology = ring()
    recording = recorded(spec, topology)
    assert coefficients(recording) is None
    readings = read_gradients(recording, None, views_of(recording, topology, 0)[0])
    assert readings.found
    assert readings.exact == 0


def test_a_view_two_hops_away_has_fewer_messages_and_none_of_the_victim() -> None:
    topology = ring()
    recording = recorded("net-fleet", topology)
    near, together, far = views_of(recording, topology, 0)
    senders = [{sender for _, _, sender in observed(recording, view)} for view in (near, together, far)]
    assert senders == [{0, 1, 2}, {0, 1, 2, 4, 5}, {1, 2, 3}]
    assert len(observed(recording, far)) < len(observed(recording, together))
    assert far == View("two hops", 0, (2,), 1)


def test_where_all_are_neighbours_nobody_is_two_hops_away() -> None:
    topology = make_topology("complete", workers=4)
    assert [view.name for view in views_of(recorded("net-fleet", topology), topology, 0)] == [
        "neighbour",
        "all neighbours",
    ]


def test_net_fleets_first_message_is_a_gradient() -> None:
    topology = ring()
    recording = recorded("net-fleet", topology, rounds=1)
    readings = read(recording, topology)
    first = readings["neighbour"].found[0]
    assert first.share > EXACT
    assert torch.allclose(first.gradient, recording.exchanges[0].sent[1][0])
    assert first.rows.tolist() == recording.gradients[0].rows[0].unique().tolist()
    assert readings["two hops"].found == [] or readings["two hops"].found[0].share < 1e-6


def test_all_neighbours_compute_the_last_gradient_of_every_round() -> None:
    """As docs/threat-model.md says: of NET-FLEET's 1 + 2 K gradients behind three messages, three exactly."""
    readings = read(recorded({"kind": "net-fleet", "K": 5}, ring()), ring())
    assert readings["all neighbours"].exact == pytest.approx(3 / 11)
    assert readings["neighbour"].exact == pytest.approx(1 / 11)
    assert readings["two hops"].exact == 0


def test_methods_that_send_models_show_the_mean_of_a_round() -> None:
    topology = ring()
    recording = recorded({"kind": "ld-sgd", "K": 5, "eta": 0.1}, topology)
    readings = read(recording, topology)["neighbour"]
    moved = recording.start - recording.exchanges[1].sent[0][0]
    assert readings.exact == 0
    assert readings.found[0].steps == 5
    assert torch.allclose(readings.found[0].gradient, moved / (5 * 0.1))


def test_models_that_are_sent_with_their_direction_pass_a_site() -> None:
    """The next x + η K z is the sender's mixed model: on a ring, with one unknown neighbour, it hides nothing."""
    topology = ring()
    shares = {
        kind: read(recorded({"kind": kind, "eta": 0.1, **more}, topology), topology)["two hops"].found[0].share
        for kind, more in {"k-gt": {"K": 3}, "gt-sgd": {}, "led": {"K": 3}, "ld-sgd": {"K": 3}}.items()
    }
    assert min(shares["k-gt"], shares["gt-sgd"]) > EXACT
    assert max(shares["ld-sgd"], shares["led"]) < 0.5


def test_the_server_sees_every_message() -> None:
    topology = ring()
    recording = recorded("fedavg", topology)
    (view,) = views_of(recording, topology, 2)
    assert view.name == "server"
    assert len(observed(recording, view)) == WORKERS * len(recording.exchanges)


@pytest.mark.parametrize("kind", ["net-fleet", "k-gt", "led", "ld-sgd"])
def test_noise_on_links_hides_gradients_from_one_neighbour_and_not_from_all_together(kind: str) -> None:
    """Those together know all noise of the victim; one alone is left with what its other neighbour added."""
    topology, method = ring(), make_algorithm(kind)
    problem = digits_problem(WORKERS, model="softmax", batch=4, dtype=torch.float64)
    noise = LinkNoise(1.0, 3, simulated_links(problem.seed))
    job = Job(problem, network_for(method, topology, 0), method, 3, noise=noise)
    recording, plain = record(job, 3), record(replace(job, noise=None), 3)
    noisy, known = read(recording, topology), read(plain, topology)
    assert noisy["neighbour"].exact == 0
    assert noisy["neighbour"].found[0].share < 0.05
    assert noisy["all neighbours"].exact == known["all neighbours"].exact
    assert noisy["all neighbours"].found[0].share > EXACT
