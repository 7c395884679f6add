"""Methods as optimizers in a group of one; `engines/test_distributed.py` compares four ranks with the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from netfleet import Algorithm, ConfigError, optim


def quadratic(x: nn.Parameter, optimizer: Any) -> Callable[[], torch.Tensor]:
    """½‖x − 1‖²."""

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = ((x - 1) ** 2).sum() / 2
        loss.backward()
        return loss.detach()

    return closure


@pytest.mark.usefixtures("group")
def test_alone_net_fleet_is_gradient_descent_with_k_steps_a_round() -> None:
    x = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = optim.NetFleet([x], lr=0.1, K=4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    by_hand, losses = torch.zeros(3, dtype=torch.float64), []
    for rate in (0.1, 0.05, 0.025):
        first = ((by_hand - 1) ** 2).sum() / 2
        losses.append((optimizer.step(quadratic(x, optimizer)), first))
        scheduler.step()
        for _ in range(4):
            by_hand = by_hand - rate * (by_hand - 1)
        assert torch.allclose(x, by_hand, atol=1e-14)
    assert losses[0][0] == losses[0][1]


@pytest.mark.usefixtures("group")
def test_weight_decay_is_each_groups_own() -> None:
    x, z = (nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2))
    optimizer = optim.LDSGD([{"params": [x], "weight_decay": 0.5}, {"params": [z]}], lr=0.1, K=2)
    optimizer.step(quadratic(x, optimizer))  # the gradient of x is 0 at 1, z has none
    assert torch.allclose(x, torch.tensor([0.95 + 0.1 * 0.05 - 0.1 * 0.5 * 0.95] * 2, dtype=torch.float64))
    assert torch.equal(z, torch.ones(2, dtype=torch.float64))


@pytest.mark.usefixtures("group")
def test_batch_norm_statistics_are_trained_and_restored_around_the_average() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = optim.NetFleet(model.parameters(), lr=0.01, K=3, buffers=model.buffers())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.randn(8, 3)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return loss

    before = model[1].running_mean.clone()
    optimizer.step(closure)
    assert not torch.equal(before, model[1].running_mean)
    own = model[0].weight.detach().clone()
    with optimizer.averaged():
        assert torch.allclose(model[0].weight, own)
    assert torch.equal(model[0].weight, own)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x, z: optim.LED([{"params": [x]}, {"params": [z], "lr": 1.0}]), "one learning rate"),
        (lambda x, z: optim.MomentumTracking([{"params": [x]}, {"params": [z], "lr": 1.0}]), "a momentum of its own"),
        (lambda x, z: optim.NetFleet([x, nn.Parameter(z.detach().float())]), "one type and device"),
        (lambda x, z: optim.DFedSAM([x]), "a closure with an argument"),
        (lambda x, z: optim.Decentralized([x], "svrg"), "passes over all"),
        (lambda x, z: optim.NetFleet([x], topology={"kind": "ring", "workers": 3}), "workers = 3"),
        (lambda x, z: optim.NetFleet([x], K=0), "K, the number of local steps"),
    ],
)
def test_what_cannot_work_is_refused(build: Callable[..., Any], message: str) -> None:
    x, z = (nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(2))

    def go() -> None:
        optimizer = build(x, z)
        optimizer.step(quadratic(x, optimizer))

    with pytest.raises(ConfigError, match=message):
        go()


@pytest.mark.usefixtures("group")
def test_a_step_without_a_forward_pass_is_refused() -> None:
    with pytest.raises(ConfigError, match="before the round began"):
        optim.NetFleet([nn.Parameter(torch.zeros(2))]).step()


@pytest.mark.usefixtures("group")
def test_frozen_and_unused_parameters_stay_as_they_are() -> None:
    x, frozen, unused = (nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(3))
    frozen.requires_grad_(False)
    optimizer = optim.LDSGD([x, frozen, unused], lr=0.1, K=2, weight_decay=0.5)
    optimizer.step(quadratic(x, optimizer))
    assert torch.equal(frozen, torch.ones(2, dtype=torch.float64))
    assert torch.equal(unused, torch.ones(2, dtype=torch.float64))
    assert optimizer.state["netfleet"]["t"] == 1


@pytest.mark.usefixtures("group")
def test_a_default_of_the_closure_is_its_own_business() -> None:
    x = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = optim.NetFleet([x], lr=0.1, K=2)
    plain = quadratic(x, optimizer)

    def closure(batch: float = 2.0) -> torch.Tensor:
        assert batch == 2.0
        return plain()

    assert optimizer.step(closure) == 1.5


@pytest.mark.usefixtures("group")
def test_a_learning_rate_may_be_zero_where_nothing_is_divided_by_it() -> None:
    x = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = optim.NetFleet([x], lr=0.1, K=2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: float(t))  # warms up from 0
    optimizer.step(quadratic(x, optimizer))
    assert torch.equal(x, torch.zeros(3, dtype=torch.float64))
    scheduler.step()
    optimizer.step(quadratic(x, optimizer))
    assert float(x.detach().min()) > 0
    divides = optim.LED([x], lr=0.1, K=2)
    divides.param_groups[0]["lr"] = 0.0
    with pytest.raises(ConfigError, match="above 0 for LED"):
        divides.step(quadratic(x, divides))


@dataclass(frozen=True, kw_only=True)
class Rates(Algorithm):
    """Its models are the step sizes of the round and of the one before."""

    class State(NamedTuple):
        x: torch.Tensor

    def init(self, f: Any, mix: Any, x: torch.Tensor) -> State:
        return self.State(x)

    def round(self, f: Any, mix: Any, t: int, s: State) -> State:
        now, before = self.step_size(t), self.step_size(max(t - 1, 0))
        return self.State(torch.tensor([[now, before]], dtype=s.x.dtype))


@pytest.mark.usefixtures("group")
def test_under_a_scheduler_a_round_knows_the_rate_of_the_round_before_also_after_loading() -> None:
    x = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer, scheduler, seen = None, None, []
    for _ in range(4):  # each round in a new process, as it were
        saved = None if optimizer is None else (optimizer.state_dict(), scheduler.state_dict())
        optimizer = optim.Decentralized([x], Rates(eta=0.8))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
        if saved is not None:
            optimizer.load_state_dict(saved[0])
            scheduler.load_state_dict(saved[1])
        optimizer.step(quadratic(x, optimizer))
        scheduler.step()
        seen.append(tuple(x.tolist()))
    assert seen == [(0.8, 0.8), (0.8, 0.8), (0.4, 0.8), (0.4, 0.4)]


@pytest.mark.usefixtures("group")
def test_what_cannot_be_is_refused() -> None:
    x = nn.Parameter(torch.zeros(3))
    optimizer = optim.NetFleet([x], lr=torch.tensor(0.1), K=2)
    with pytest.raises(ConfigError, match="cannot be added later"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    with pytest.raises(ConfigError, match="float32 or float64"):
        optim.NetFleet([nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))])
    with pytest.raises(ConfigError, match="weight_decay must be"):
        optim.NetFleet([x], weight_decay=-0.1)
    other = optim.KGT([nn.Parameter(torch.zeros(3))], K=2)
    optimizer.step(quadratic(x, optimizer))
    with pytest.raises(ConfigError, match="load the state of the same method"):
        other.load_state_dict(optimizer.state_dict())


def test_without_a_process_group_it_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="init_process_group"):
        optim.NetFleet([nn.Parameter(torch.zeros(2))])
