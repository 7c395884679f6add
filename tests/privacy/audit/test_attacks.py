"""Each attack finds what is there to be found, and nothing where noise or a fresh model hides it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from netfleet.privacy.audit import algebra, membership, optimisation
from netfleet.privacy.audit.labels import LabelGuess, count_labels, read_labels, score_labels
from netfleet.privacy.audit.layers import LinearLayer, first_layer, last_layer
from netfleet.privacy.audit.results import share_interval

CLASSES, INPUTS = 4, (1, 4, 4)


def model(hidden: int = 32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))


def batch(count: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.rand(count, *INPUTS, generator=draw), torch.arange(count) % 2


def gradient(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = nn.functional.cross_entropy(net(x), y)
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(net.parameters()))])


def layers(net: nn.Module) -> tuple[LinearLayer, LinearLayer]:
    first, last = first_layer(net, INPUTS), last_layer(net, CLASSES)
    assert first is not None
    assert last is not None
    return first, last


def noisy(values: Tensor, scale: float) -> Tensor:
    return values + scale * torch.randn(values.shape, generator=torch.Generator().manual_seed(2))


# ------------------------------------------------------------------------------------------------------------- labels


def test_labels_are_read_off_exactly() -> None:
    net, (x, y) = model(), batch(6)
    said = read_labels(gradient(net, x, y), layers(net)[1])
    assert said.tolist() == [True, True, False, False]
    assert sorted(count_labels(gradient(net, x, y), layers(net)[1], 6).tolist()) == sorted(y.tolist())


def test_guesses_score_nothing() -> None:
    true = torch.tensor([True, True, False, False])
    assert score_labels([LabelGuess(true, true)]) == (1, 1, 1)
    assert score_labels([LabelGuess(torch.tensor([True, False, True, False]), true)]).advantage == 0
    assert score_labels([LabelGuess(torch.ones(4, dtype=torch.bool), true)]).advantage == 0


# ------------------------------------------------------------------------------------------------------------ algebra


def recovered(count: int, hidden: int, noise: float = 0.0) -> float:
    net, (x, y) = model(hidden), batch(count)
    found = algebra.quotients(noisy(gradient(net, x, y), noise), layers(net)[0])
    return float(algebra.recovered(found, x, 1.0).double().mean())


def test_division_recovers_one_image_always_and_fewer_of_more() -> None:
    assert recovered(1, 32) == 1
    assert 0 < recovered(8, 64) < 1
    assert recovered(64, 64) < recovered(8, 64) < recovered(8, 1024)


def test_noise_leaves_nothing_to_divide() -> None:
    assert recovered(1, 32, noise=0.01) == 0


def test_an_empty_batch_has_nothing_to_recover() -> None:
    net, (x, y) = model(), batch(2)
    found = algebra.quotients(gradient(net, x, y), layers(net)[0])
    assert algebra.recovered(found, x[:0], 1.0).tolist() == []
    assert algebra.recovered(found[:0], x, 1.0).tolist() == [False, False]


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 4)),
        nn.Sequential(nn.Flatten(), nn.Linear(16, 4, bias=False)),
        nn.Sequential(nn.Flatten(), nn.Tanh(), nn.Linear(16, 4)),
    ],
)
def test_other_first_layers_cannot_be_divided(net: nn.Module) -> None:
    assert first_layer(net, INPUTS) is None


def test_frozen_layers_have_no_place() -> None:
    net = model()
    for parameter in net[1].parameters():  # type: ignore[index]
        parameter.requires_grad_(False)
    assert first_layer(net, INPUTS) is None
    assert layers(model())[1].bias == slice(16 * 32 + 32 + 32 * 4, 16 * 32 + 32 + 32 * 4 + 4)


# -------------------------------------------------------------------------------------------------------- optimisation


def psnr(noise: float) -> float:
    net, (x, y) = model(), batch(1)
    wanted = noisy(gradient(net, x, y), noise)
    loss = nn.CrossEntropyLoss(reduction="none")
    target = optimisation.Target(net, loss, wanted, y, INPUTS, 0.0, 1.0)
    return float(optimisation.match(optimisation.invert(target, 150, 0, 0), x, 1.0).psnr.mean())


def test_optimisation_finds_one_image_and_noise_hides_it() -> None:
    assert psnr(0.0) > 30  # a root mean square error of 3 % of the range
    assert psnr(0.3) < optimisation.RECOVERED


def test_guesses_are_matched_with_the_closest_originals() -> None:
    originals, _ = batch(5)
    found = optimisation.match(originals[[3, 1]], originals, 1.0)
    assert found.places.tolist() == [1, 3]
    assert torch.equal(found.guesses, originals[[1, 3]])


# ---------------------------------------------------------------------------------------------------------- membership


def outcomes(gap: float, seed: int = 0, models: int = 16, rows: int = 200) -> membership.Advantage:
    """Scores whose members are higher by `gap` standard deviations, on rows of different difficulty."""
    draw = np.random.default_rng(seed)
    coins = draw.random((models // 2, rows)) < 0.5
    members = np.stack([coins, ~coins], axis=1).reshape(models, rows)
    scores = 3 * draw.normal(size=rows) + draw.normal(size=(models, rows)) + gap * members
    return membership.advantage([membership.log_ratios(scores, members)], [members])


def test_members_of_an_overfitted_model_are_found() -> None:
    found = outcomes(gap=2.0)
    best = 2 * 0.8413447 - 1  # of two normal distributions, two standard deviations apart
    assert 0.8 * best < found.low < found.value < found.high < best + 0.05
    assert found.at_one_percent > 0.1


def test_nothing_is_found_in_a_fresh_model() -> None:
    found = [outcomes(gap=0.0, seed=seed) for seed in range(40)]
    assert (
        sum(each.low < 0 < each.high for each in found) >= 33
    )  # 95 % intervals: fewer are right once in a thousand times
    assert abs(np.mean([each.value for each in found])) < 0.01  # chance favours no answer


def test_few_shadows_do_not_lean_to_an_answer() -> None:
    found = [outcomes(gap=0.0, seed=seed, models=4).value for seed in range(100)]
    assert abs(np.mean(found)) < 3 * np.std(found) / 10


@pytest.mark.parametrize(("epsilon", "most"), [(0.0, 0.0), (100.0, 1.0)])
def test_what_privacy_allows(epsilon: float, most: float) -> None:
    assert membership.bound(epsilon, 0.0) == most
    assert membership.bound(0.0, 0.1) == pytest.approx(0.1)


def test_intervals_of_shares() -> None:
    assert share_interval(0, 0) is None
    assert share_interval(0, 10) == (0.0, pytest.approx(1 - 0.025**0.1))
    assert share_interval(10, 10) == (pytest.approx(0.025**0.1), 1.0)
