"""Gradients are private: neighbouring data sets cannot be told apart better than (ε, δ) allows."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import beta
from torch import Tensor, nn

import netfleet as nf
from netfleet.algorithms.build import make_algorithm
from netfleet.data import Dataset, load_dataset
from netfleet.errors import ConfigError
from netfleet.privacy.accounting import epsilon_spent
from netfleet.privacy.build import make_private
from netfleet.privacy.mechanism import Mechanism, simulated_secret
from netfleet.privacy.queries import queries_after
from netfleet.privacy.settings import Privacy
from netfleet.problems.module import ModuleProblem
from netfleet.problems.synthetic import Quadratics

ROWS, DELTA, EPSILON, STEPS = 40, 1e-3, 3.0, 2
TINY = {"kind": "classification", "data": "digits", "partition": "iid", "model": "softmax", "batch": 32}


def regression(workers: int, canary: float) -> ModuleProblem:
    """Workers that all have the same rows; every second one has a further row, with a gradient of its own direction."""
    a = torch.randn(ROWS, 1, generator=torch.Generator().manual_seed(0))
    x = torch.cat([torch.cat([a, -a, torch.zeros_like(a)], dim=1), canary * torch.ones(1, 3)])
    y = torch.cat([a, -canary * torch.ones(1, 1)])
    data = Dataset("canary", x, y, x[:2], y[:2])
    parts = [np.arange(ROWS + i % 2) for i in range(workers)]
    model = nn.Sequential(nn.Linear(3, 1, bias=False))
    nn.init.zeros_(model[0].weight)
    return ModuleProblem(model, data, parts, loss="mse", batch=10)


def attack(problem: ModuleProblem) -> tuple[Tensor, Tensor]:
    """What all gradients of a training show of the further row: how far they point to it, without and with it."""
    x = problem.start().repeat(problem.m, 1)
    shown = torch.zeros(problem.m)
    for k in range(1, STEPS + 1):
        g = problem.grad(x, problem.sample(0, k))
        shown += g.mean(dim=1)  # only the further row's gradient has a part along (1, 1, 1)
        x -= 0.01 * g
    return shown[0::2], shown[1::2]


def least_epsilon(without: Tensor, with_row: Tensor) -> float:
    """A lower bound of ε, with 99.9 % confidence, from how well a threshold tells the two apart."""
    thresholds = torch.cat([without, with_row])[::2].quantile(torch.linspace(0.5, 0.99, 50))
    first, second = ([sample[half::2] for sample in (without, with_row)] for half in (0, 1))
    best = max(thresholds, key=lambda threshold: _bound(*first, threshold))
    return _bound(*second, best)


def _bound(without: Tensor, with_row: Tensor, threshold: Tensor) -> float:
    trials = len(without)
    wrong, right = (int((sample > threshold).sum()) for sample in (without, with_row))
    most_wrong = beta.ppf(0.9995, wrong + 1, trials - wrong) if wrong < trials else 1.0
    least_right = beta.ppf(0.0005, right, trials - right + 1) if right else 0.0
    return math.log(max(least_right - DELTA, 1e-12) / most_wrong)


def privately(problem: ModuleProblem, noise: float = 1.0, clip: float = 1.0) -> tuple[ModuleProblem, float]:
    """With the noise that ε is counted for, and with more or less of it, or without the clipping."""
    made = make_private(problem, Privacy(clip=1.0, epsilon=EPSILON, delta=DELTA), (0, STEPS))
    assert made.spending is not None
    assert made._mechanism is not None
    rates = {i: rate._replace(noise=rate.noise * noise / clip) for i, rate in made._mechanism.rates.items()}
    mechanism = replace(made._mechanism, clip=clip, rates=rates)
    return problem.private(mechanism, made.spending), made.spending.epsilon(1)


@pytest.mark.parametrize(("changed", "holds"), [({}, True), ({"noise": 1e-3}, False), ({"clip": 1e4}, False)])
def test_neighbouring_data_sets_cannot_be_told_apart(changed: dict[str, float], holds: bool) -> None:
    problem, epsilon = privately(regression(20_000, 30.0), **changed)
    found = least_epsilon(*attack(problem))
    assert epsilon <= EPSILON
    assert (found <= epsilon) == holds
    assert found > 0.3  # the attack is not blind


def test_epsilon_in_the_history_is_that_of_its_own_steps() -> None:
    privacy = {"clip": 1.0, "noise": 1.5, "delta": 1e-4}
    history = nf.simulate({"kind": "net-fleet", "K": 3}, workers=4, problem=TINY, rounds=8, privacy=privacy)
    rate = 32 / (load_dataset("digits").rows / 4)
    for record in history:
        queries = round(record["samples"] / (4 * 32))
        assert record["epsilon"] == pytest.approx(epsilon_spent(1.5, rate, queries, 1e-4), rel=0.01)
    assert history.last["epsilon"] > history.records[0]["epsilon"] > 0  # the first gradient counts too


def test_training_stops_before_a_budget_is_exceeded() -> None:
    privacy = {"clip": 1.0, "noise": 1.0, "epsilon": 5.0}
    history = nf.simulate({"kind": "k-gt", "K": 5}, workers=4, problem=TINY, rounds=100, privacy=privacy)
    assert 0 < history.last["round"] < 100
    assert history.last["epsilon"] <= 5.0
    with pytest.raises(ConfigError, match="after one more round epsilon would be"):
        nf.simulate(
            "k-gt",
            workers=4,
            problem=TINY,
            rounds=10,
            privacy={"clip": 1.0, "noise": 0.3, "epsilon": 1.0},
        )


def test_a_private_gradient_is_the_clipped_sum_with_noise() -> None:
    problem = regression(2, 30.0)
    made = make_private(problem, Privacy(clip=0.5, noise=1e-9, delta=DELTA), (0, 9))
    x, sample = problem.start().repeat(2, 1), made.sample(0, 1)
    assert sample.drawn is not None
    for i, rows in enumerate(sample.drawn):
        inputs, targets = problem.data.train_x[rows], problem.data.train_y[rows]
        each = 2 * (inputs @ x[i][:, None] - targets) * inputs
        norms = each.norm(dim=1, keepdim=True)
        expected = (each * (0.5 / norms).clamp(max=1)).sum(0) / 10
        assert torch.allclose(made.grad(x, sample)[i], expected, atol=1e-6)


def test_rows_are_drawn_independently_with_the_rate() -> None:
    mechanism = make_private(regression(2, 1.0), Privacy(clip=1.0, noise=1.0, delta=DELTA), (0, 9))._mechanism
    assert mechanism is not None
    sampler, drawn = mechanism.sampler([0], [np.arange(ROWS)]), torch.zeros(500, ROWS)
    for k in range(500):
        drawn[k, sampler.draw(0, k)[0]] = 1
    rate = mechanism.rates[0].rate
    assert abs(drawn.mean() - rate) < 5 * math.sqrt(rate * (1 - rate) / drawn.numel())
    correlations = torch.corrcoef(drawn.T)
    assert correlations.fill_diagonal_(0).abs().max() < 5 / math.sqrt(500)
    assert drawn.sum(1).unique().numel() > 5  # the size of a batch is random too


def test_draws_do_not_depend_on_who_else_is_hosted() -> None:
    whole = make_private(regression(4, 30.0), Privacy(clip=1.0, noise=1.0, delta=DELTA), (0, 9))
    x = whole.start().repeat(4, 1)
    all_of_them = whole.grad(x, whole.sample(3, 2))
    alone = whole.at([2])
    assert torch.equal(alone.grad(x[2:3], alone.sample(3, 2))[0], all_of_them[2])
    assert not torch.equal(all_of_them[0], all_of_them[2])  # same rows, other noise


def test_different_secrets_draw_differently() -> None:
    one, other = simulated_secret(0), simulated_secret(1)
    assert one.derive("noise", 0, 1, 2) != other.derive("noise", 0, 1, 2) != one.derive("noise", 0, 2, 1)
    assert one._replace(epoch=1).derive("noise", 0, 1, 2) != one.derive("noise", 0, 1, 2)


class Centring(nn.Module):
    """A layer that mixes samples in a way of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0)


def two_labels(model: nn.Module, **options: Any) -> ModuleProblem:
    x, y = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2
    return ModuleProblem(model, Dataset("two", x, y, x, y, classes=2), [np.arange(20)], batch=4, **options)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: two_labels(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))), "'1' mixes the rows"),
        (lambda: two_labels(nn.Sequential(Centring(), nn.Linear(4, 2))), "depends on the other rows of its batch"),
        (lambda: Quadratics(2), "Quadratics has none"),
    ],
)
def test_what_cannot_be_private(make: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make_private(make(), Privacy(clip=1.0, noise=1.0), (0, 5))


def test_a_delta_above_one_row() -> None:
    with pytest.raises(ConfigError, match=r"privacy.delta = 0.1 is not below 1 / 20, the rows of worker 0"):
        make_private(two_labels(nn.Linear(4, 2)), Privacy(clip=1.0, noise=1.0, delta=0.1), (0, 5))


def test_sites_of_different_size_get_noise_of_their_own() -> None:
    counts = queries_after(make_algorithm("k-gt"), 20)
    problem = regression(2, 1.0)
    data = problem.data
    sizes = ModuleProblem(nn.Linear(3, 1), data, [np.arange(40), np.arange(15)], loss="mse", batch=5)
    made = make_private(sizes, Privacy(clip=1.0, epsilon=4.0, delta=DELTA), counts)
    assert made.spending is not None
    spent = made.spending.by_worker(20)
    assert made.spending.rates[1].noise > made.spending.rates[0].noise
    assert all(3.9 < value <= 4.0 for value in spent.values())


def test_the_mechanism_hides_its_secret() -> None:
    made = make_private(regression(2, 1.0), Privacy(clip=1.0, noise=1.0, delta=DELTA), (0, 9))
    assert isinstance(made._mechanism, Mechanism)
    assert simulated_secret(0).key.hex() not in repr(made._mechanism)


def test_a_run_whose_noise_was_solved_cannot_have_more_rounds(tmp_path: Path) -> None:
    """The rounds that are done have less noise than more rounds would need for the same ε."""

    def run(rounds: int, privacy: dict[str, float]) -> None:
        parts = {"workers": 2, "problem": TINY, "privacy": privacy, "out": tmp_path / str(len(privacy)), "resume": True}
        nf.simulate({"kind": "k-gt", "K": 2}, rounds=rounds, **parts)  # type: ignore[arg-type]

    run(2, {"clip": 1.0, "epsilon": 8.0})
    with pytest.raises(ConfigError, match="cannot have more; start another one, or give"):
        run(4, {"clip": 1.0, "epsilon": 8.0})
    for rounds in (2, 4):
        run(rounds, {"clip": 1.0, "noise": 1.0, "delta": 1e-4})
