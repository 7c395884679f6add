"""What is saved in a loop alone; `test_ranks.py` has what ranks save together."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils
from torch.utils.data import DataLoader, RandomSampler

from netfleet import ConfigError, optim
from netfleet.errors import CheckpointError
from support.loops import batches as data
from support.loops import error, network, same, train

pytestmark = pytest.mark.usefixtures("group")

SCHEDULERS: tuple[Callable[[Any], Any], ...] = (
    functools.partial(lr_scheduler.StepLR, step_size=2),
    functools.partial(lr_scheduler.CosineAnnealingLR, T_max=20),
    functools.partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=40, cycle_momentum=False),
    functools.partial(lr_scheduler.MultiStepLR, milestones=[3, 9]),
    lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5), lr_scheduler.ExponentialLR(optimizer, 0.9)],
        milestones=[5],
    ),
)


class Loop:
    """A model with dropout and BatchNorm, its moving average, a scheduler and a loader that shuffles."""

    def __init__(self, make: Callable[[Any], Any], schedule: Callable[[Any], Any] = SCHEDULERS[0]) -> None:
        self.model = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 1))
        self.optimizer = make(self.model.parameters())
        self.scheduler = schedule(self.optimizer)
        self.average = swa_utils.AveragedModel(self.model).requires_grad_(False)
        loader = torch.utils.data.DataLoader(torch.arange(12.0)[:, None], batch_size=3, shuffle=True)
        self.batches = optim.Batches(loader, self.optimizer)
        self.optimizer.keep(model=self.model, scheduler=self.scheduler, average=self.average)

    def run(self, steps: int) -> Loop:
        for _ in range(steps):
            x = next(self.batches)
            (self.model(x) - x).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            self.average.update_parameters(self.model)
        return self

    def values(self) -> list[torch.Tensor]:
        return [*self.model.state_dict().values(), *self.average.state_dict().values()]


def k_gt(parameters: Any) -> optim.KGT:
    return optim.KGT(parameters, lr=0.05, K=4, local=torch.optim.AdamW)


@pytest.mark.parametrize("schedule", SCHEDULERS)
def test_a_loaded_loop_goes_on_with_the_same_bits(schedule: Callable[[Any], Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    loop = Loop(k_gt, schedule).run(8)
    loop.optimizer.save(tmp_path / "saved")
    expected = loop.run(8).values()
    torch.manual_seed(1)
    again = Loop(k_gt, schedule)
    again.optimizer.load(tmp_path / "saved")
    assert all(torch.equal(a, b) for a, b in zip(again.run(8).values(), expected, strict=True))
    assert again.optimizer.round == 4


@pytest.mark.parametrize("whose", ["loader", "sampler"])
def test_random_numbers_of_a_loaders_own_resume(whose: str) -> None:
    def drawn(seed: int) -> optim.Batches[torch.Tensor]:
        own = torch.Generator().manual_seed(seed)
        numbers: Any = range(12)
        if whose == "loader":
            return optim.Batches(DataLoader(numbers, batch_size=3, shuffle=True, generator=own))
        return optim.Batches(DataLoader(numbers, batch_size=3, sampler=RandomSampler(numbers, generator=own)))

    first, again = drawn(0), drawn(1)
    for _ in range(6):  # in the middle of the second epoch
        next(first)
    state = first.state_dict()
    expected = [next(first).tolist() for _ in range(6)]
    again.load_state_dict(state)
    assert [next(again).tolist() for _ in range(6)] == expected


def test_what_is_kept_after_loading_is_given_its_state_at_once(tmp_path: Path) -> None:
    model = network()
    optimizer = optim.LED(model.parameters(), lr=0.1, K=2)
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    optimizer.keep(scheduler=scheduler)
    train(model, optimizer, scheduler.step, count=4)
    optimizer.save(tmp_path)
    again = optim.LED(model.parameters(), lr=0.1, K=2)
    again.load(tmp_path)
    late = lr_scheduler.StepLR(again, 1)
    again.keep(scheduler=late)
    assert late.state_dict() == scheduler.state_dict()
    with pytest.raises(CheckpointError, match="no 'scaler', only optimizer, scheduler"):
        again.keep(scaler=torch.amp.GradScaler("cpu"))
    with pytest.raises(ConfigError, match="which has no state_dict"):
        again.keep(data=[])


def test_led_keeps_the_last_rate_in_its_state() -> None:
    def led(model: nn.Module) -> tuple[Any, Any]:
        optimizer = optim.LED(model.parameters(), lr=0.1, K=2)
        return optimizer, lr_scheduler.StepLR(optimizer, 2, gamma=0.3)

    whole, first, second = network(), network(), network()
    optimizer, scheduler = led(whole)
    train(whole, optimizer, scheduler.step)
    optimizer, scheduler = led(first)
    for batch in data()[:8]:
        error(first, batch).backward()
        optimizer.step()
        scheduler.step()
    state = optimizer.state_dict()
    assert state["state"]["netfleet"]["eta"] == pytest.approx(0.1 * 0.3**3)  # of the round before the next one
    again, later = led(second)
    later.load_state_dict(scheduler.state_dict())
    again.load_state_dict(state)
    for batch in data()[8:]:
        error(second, batch).backward()
        again.step()
        later.step()
    assert same(second, whole)


def test_in_the_middle_of_a_round_nothing_can_be_saved(tmp_path: Path) -> None:
    model = network()
    optimizer = optim.LDSGD(model.parameters(), lr=0.1, K=5)
    with pytest.raises(ConfigError, match="save after a round"):
        optimizer.save(tmp_path)
    train(model, optimizer, count=7)
    for act in (optimizer.state_dict, lambda: optimizer.save(tmp_path)):
        with pytest.raises(ConfigError, match="a round is under way"):
            act()
    assert not optimizer.round_ended
    optimizer.load_state_dict(optim.LDSGD(network().parameters(), lr=0.1, K=5).state_dict())  # begins again
    assert optimizer.round_ended


def test_a_state_survives_torch_save(tmp_path: Path) -> None:
    models = network(), network()
    optimizers = [optim.KGT(model.parameters(), lr=0.1, K=2, local="adamw") for model in models]
    train(models[0], optimizers[0], count=4)
    torch.save({"model": models[0].state_dict(), "optimizer": optimizers[0].state_dict()}, tmp_path / "state.pt")
    saved = torch.load(tmp_path / "state.pt")
    models[1].load_state_dict(saved["model"])
    optimizers[1].load_state_dict(saved["optimizer"])
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, count=8)
    assert same(*models)


def test_adapters_of_peft_are_all_that_is_trained() -> None:
    peft = pytest.importorskip("peft")
    base = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1)).double()
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["0", "2"]))
    model.double()
    optimizer = optim.KGT(model.parameters(), lr=0.1, K=2, local="adamw")
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    train(model, optimizer, count=4)
    adapters = {name: p for name, p in model.named_parameters() if "lora" in name}
    assert optimizer.state["netfleet"]["x"].shape == (1, sum(p.numel() for p in adapters.values()))
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == set(adapters)
