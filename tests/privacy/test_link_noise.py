"""Noise that cancels between neighbours: sums are untouched, engines agree, and one neighbour sees little."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import netfleet as nf
from netfleet import Algorithm, make_topology
from netfleet.engines import Job, make_engine
from netfleet.engines.simulator import Simulator
from netfleet.errors import CheckpointError, ConfigError
from netfleet.privacy.build import check_buffers
from netfleet.privacy.link_noise import LinkNoise, links_of, simulated_links
from netfleet.privacy.noise import add_gaussian
from netfleet.privacy.settings import Privacy
from netfleet.problems.synthetic import Quadratics
from netfleet.runs.build import build_job, build_setting
from netfleet.runs.config import experiment
from netfleet.runs.metrics import conserved_gap
from support.conformance import assert_close
from support.problems import Memory, batch_norm_net, digits_problem, methods

ROUNDS = 30
OVER_A_GRAPH = [param for param in methods() if not param.values[0].server]
TRACKING = [param for param in OVER_A_GRAPH if param.values[0].conserves is not None]


def noise_of(scale: float = 1.0, rounds: int = 1000, seed: int = 0) -> LinkNoise:
    return LinkNoise(scale, rounds, simulated_links(seed))


def vectors(m: int, dtype: torch.dtype, d: int = 17) -> Tensor:
    return torch.randn(m, d, dtype=dtype, generator=torch.Generator().manual_seed(m))


def end(method: Algorithm, problem: Quadratics, noise: LinkNoise | None, engine: str = "simulator") -> Any:
    topology = make_topology("ring", workers=problem.m, weights="metropolis")
    return make_engine(engine).run(Job(problem, topology, method, ROUNDS, threads=1, noise=noise)).state


# ---------------------------------------------------------------------------------------------------------------- sums


@settings(deadline=None, max_examples=40)
@given(st.integers(3, 9), st.floats(0.2, 1.0), st.integers(0, 10**6), st.sampled_from([torch.float32, torch.float64]))
def test_sums_over_all_workers_are_untouched(m: int, p: float, seed: int, dtype: torch.dtype) -> None:
    graph = nx.compose(nx.cycle_graph(m), nx.gnp_random_graph(m, p, seed=seed))
    problem, topology, scale = Quadratics(m, d=17, dtype=dtype), make_topology(graph), 8.0
    plain, noisy = (Simulator(problem, topology, 1, noise).mixer(3) for noise in (None, noise_of(scale, seed=seed)))
    x, y = vectors(m, dtype), 2 * vectors(m, dtype)
    rounding = 4 * m * m * scale * torch.finfo(dtype).eps
    for before, exact, sent in zip((x, y), plain(x, y), noisy(x, y), strict=True):
        assert (sent.sum(dim=0) - before.sum(dim=0)).abs().max() < rounding
        assert (sent - exact).abs().max() > 0.1, "each worker's own average is noisy"


def test_a_worker_adds_what_the_formula_says() -> None:
    noise, d = noise_of(0.5), 40
    (sent,) = noise.added([torch.zeros(3, d).double()], links_of({0: [1, 2], 1: [0, 2], 2: [0, 1]}), 7, 1)
    drawn = {}
    for low, high in ((0, 1), (0, 2), (1, 2)):
        drawn[low, high] = torch.zeros(1, d).double()
        key = simulated_links(0)(low, high).derive("link noise", 7, 1, 0)
        add_gaussian(drawn[low, high], [key], [0.5])
    n01, n02, n12 = (drawn[pair][0] for pair in sorted(drawn))
    assert torch.equal(sent, torch.stack([n01 + n02, n12 - n01, -n02 - n12]))


def test_every_vector_of_every_exchange_has_noise_of_its_own() -> None:
    noise, links, zero = noise_of(), links_of({0: [1]}), torch.zeros(1, 30)
    drawn = [v for t in (0, 1) for call in (0, 1) for v in noise.added([zero, zero], links, t, call)]
    drawn += LinkNoise(1.0, 1000, simulated_links(1)).added([zero], links, 0, 0)
    drawn += noise.added([zero], links_of({0: [2]}), 0, 0)
    correlation = np.corrcoef(torch.cat(drawn).numpy()) - np.eye(len(drawn))
    assert np.abs(correlation).max() < 0.8
    again = noise.added([zero], links, 1, 1)[0]
    assert torch.equal(again, drawn[6]), "a repeated round sends the same bits"


def test_a_worker_alone_adds_the_same_bits_as_among_all() -> None:
    graph, x, noise = nx.gnp_random_graph(7, 0.6, seed=1), vectors(7, torch.float32), noise_of()
    neighbours = {i: list(graph[i]) for i in range(7)}
    (together,) = noise.added([x], links_of(neighbours), 2, 0)
    for hosted in ([0], [3, 5], [1, 2, 6]):
        (apart,) = noise.added([x[hosted]], links_of({i: neighbours[i] for i in hosted}), 2, 0)
        assert torch.equal(apart, together[hosted])


@pytest.mark.parametrize("method", [p for p in OVER_A_GRAPH if p.id != "dfedsam"])  # its steps have a fixed length
def test_the_mean_of_the_models_is_that_without_noise(method: Algorithm) -> None:
    """Closed form: with equal curvatures the mean of the gradients is a function of the mean of the models."""
    problem = Quadratics(6, d=5, mu=1.0, L=1.0, heterogeneity=3.0, seed=1, dtype=torch.float64)
    plain, noisy = (end(method, problem, noise) for noise in (None, noise_of()))
    assert (plain.x - noisy.x).norm() > 1
    assert (plain.x.mean(dim=0) - noisy.x.mean(dim=0)).norm() < 1e-11


@pytest.mark.parametrize("method", TRACKING)
def test_tracking_stays_exact(method: Algorithm) -> None:
    state = end(method, Quadratics(6, d=5, heterogeneity=3.0, seed=1, dtype=torch.float64), noise_of())
    gap = conserved_gap(state)
    assert gap is not None
    assert gap.norm() > 1
    assert gap.sum(dim=0).norm() < 1e-11


@pytest.mark.parametrize("method", OVER_A_GRAPH)
def test_models_scatter_around_the_mean_and_do_not_drift_apart(method: Algorithm) -> None:
    """Also those that learn from x − W x: D², LED and ProxSkip scatter two or three times as far as the others."""
    topology = make_topology("ring", workers=6)
    problem = Quadratics(6, d=5, mu=1.0, L=1.5, heterogeneity=0.0, seed=1, dtype=torch.float64)
    memory = Memory(rounds=range(200, 1001, 40))
    make_engine("simulator").run(Job(problem, topology, method, 1000, memory, threads=1, noise=noise_of()))
    scatter = [float((s.state.x - s.state.x.mean(dim=0)).norm()) for s in memory.snapshots]
    assert max(scatter[10:]) < 2 * max(scatter[:10])
    assert max(scatter) < 60


def test_rounds_without_noise_at_the_end_bring_the_models_together() -> None:
    problem = Quadratics(6, d=5, mu=1.0, L=1.0, heterogeneity=0.0, seed=1, dtype=torch.float64)
    method, lam = nf.algorithms.LDSGD(K=1, eta=0.05), make_topology("ring", workers=6, weights="metropolis").lam
    apart, near = (end(method, problem, noise_of(rounds=rounds)).x for rounds in (ROUNDS, ROUNDS - 20))
    assert (near - near.mean(dim=0)).norm() < 2 * lam**20 * (apart - apart.mean(dim=0)).norm()


# ------------------------------------------------------------------------------------------------------------- engines


@pytest.mark.parametrize("method", [p for p in OVER_A_GRAPH if p.id in ("net-fleet", "led", "dfedsam", "pd-sgdm")])
def test_one_thread_per_worker_computes_the_same(method: Algorithm) -> None:
    problem = Quadratics(5, d=5, sigma=0.5, heterogeneity=3.0, seed=1, dtype=torch.float64)
    assert_close(*(end(method, problem, noise_of(), engine) for engine in ("simulator", "threads")), 1e-11)


def test_a_run_that_is_resumed_draws_the_same_noise(tmp_path: Any) -> None:
    options: dict[str, Any] = {"topology": "ring", "workers": 4, "problem": {"kind": "quadratics"}}
    options |= {"privacy": {"link_noise": 0.5}, "checkpoint_every": 5}
    whole = nf.simulate("net-fleet", rounds=10, **options)
    nf.simulate("net-fleet", rounds=5, out=tmp_path, **options)
    resumed = nf.simulate("net-fleet", rounds=10, out=tmp_path, resume=True, **options)
    assert torch.equal(whole.final.state.x, resumed.final.state.x)


def test_a_run_whose_last_rounds_had_no_noise_is_not_made_longer(tmp_path: Any) -> None:
    options: dict[str, Any] = {"topology": "ring", "workers": 4, "problem": {"kind": "quadratics"}, "out": tmp_path}
    options |= {"privacy": {"link_noise": 0.5, "exact_rounds": 1}}
    nf.simulate("net-fleet", rounds=3, **options)
    with pytest.raises(CheckpointError, match="its last ones had no link noise"):
        nf.simulate("net-fleet", rounds=6, resume=True, **options)


# ------------------------------------------------------------------------------------------------------ what is hidden


def explained(seen: Tensor, true: Tensor) -> float:
    """The share of the variance of the true numbers that the best linear guess from what is seen explains."""
    return float(np.corrcoef(seen.reshape(-1), true.reshape(-1))[0, 1] ** 2)


def test_one_neighbour_sees_little_and_all_of_them_see_everything() -> None:
    d, scale = 4000, 10.0
    true, noise = torch.randn(4, d, generator=torch.Generator().manual_seed(0)).double(), noise_of(scale)
    (sent,) = noise.added([true], links_of({0: [1, 3], 1: [0, 2], 2: [1, 3], 3: [0, 2]}), 0, 0)
    known = [noise.added([torch.zeros(1, d).double()], links_of({0: [j]}), 0, 0)[0][0] for j in (1, 3)]
    assert explained(true[0], true[0]) == pytest.approx(1)
    for own in known:  # the noise of the other link remains: 1 part in 1 + scale²
        assert explained(sent[0] - own, true[0]) < 0.02
    assert torch.allclose(sent[0] - known[0] - known[1], true[0])
    assert torch.allclose(sent.sum(dim=0), true.sum(dim=0)), "whoever gets the messages of all sees their sum"


# ------------------------------------------------------------------------------------------------------------ settings


DIGITS: dict[str, Any] = {"topology": {"kind": "ring", "workers": 4}, "problem": {"kind": "quadratics"}, "rounds": 10}


def job(**parts: Any) -> Job:
    made = experiment({**DIGITS, "privacy": {"link_noise": 0.1}, **parts})
    return build_job(made.algorithms[0], 0, made, build_setting(made, 0))


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"algorithms": [{"kind": "fedavg"}]}, "has a server and no links"),
        ({"algorithms": [{"kind": "net-fleet", "compress": "quantize"}]}, "sends packed differences"),
        ({"network": {"loss": 0.1}}, "leaves the noise of its link at one end"),
        ({"topology": {"kind": "star", "workers": 4}}, "worker 1 has no second one"),
        ({"topology": {"kind": "one-peer-exponential", "workers": 4}}, "use a fixed graph"),
        ({"privacy": {"link_noise": 0.1, "exact_rounds": 10}}, "leaves none of the 10 rounds with noise"),
    ],
)
def test_what_does_not_go_with_it_is_rejected(parts: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        job(**parts)


def test_averaged_running_statistics_are_rejected() -> None:
    problem = digits_problem(4, batch_norm_net(), batch_norm="mixed")
    with pytest.raises(ConfigError, match="running variances negative"):
        check_buffers(problem)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"link_noise": 0.0}, r"privacy\.link_noise must be a finite number above 0"),
        ({"link_noise": 0.1, "noise": 1.0}, "needs clip"),
        ({}, "needs clip"),
        ({"link_noise": 0.1, "exact_rounds": -1}, "exact_rounds is the number of rounds"),
        ({"clip": 1.0, "noise": 1.0, "exact_rounds": 1}, "only with link_noise"),
    ],
)
def test_bad_settings(table: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Privacy(**table)


def test_it_goes_with_and_without_private_rows() -> None:
    alone, both = Privacy(link_noise=0.1), Privacy(link_noise=0.1, clip=1.0, noise=1.0)
    assert alone.clip is None
    assert both.to_table()["link_noise"] == 0.1
    made = job(privacy={"link_noise": 0.1, "exact_rounds": 3})
    assert made.noise is not None
    assert (made.noise.scale, made.noise.rounds) == (0.1, 7)
    assert made.problem.spending is None


def test_experiments_without_it_keep_their_hash() -> None:
    made = experiment({**DIGITS, "privacy": {"clip": 1.0, "noise": 1.0}})
    (run,) = made.runs()
    assert run.config["privacy"] == {"clip": 1.0, "noise": 1.0, "epsilon": None, "delta": 1e-5}
    assert experiment({**DIGITS, "privacy": {"link_noise": 0.1}}).runs()[0].hash != run.hash
