"""An ordinary loop: alone, LD-SGD is the torch optimizer of its local steps, so what loops do can be compared."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from netfleet import ConfigError, optim
from support.loops import batches, error, network, same, train

pytestmark = pytest.mark.usefixtures("group")

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "StepLR": functools.partial(lr_scheduler.StepLR, step_size=3, gamma=0.5),
    "cosine": functools.partial(lr_scheduler.CosineAnnealingLR, T_max=12),
    "one cycle": functools.partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=13),
    "warm-up from 0": functools.partial(lr_scheduler.LambdaLR, lr_lambda=lambda t: min(1.0, t / 5)),
    "plateau": functools.partial(lr_scheduler.ReduceLROnPlateau, patience=1),
}


def pair(**options: Any) -> tuple[nn.Module, nn.Module, Any, Any]:
    """A model that netfleet trains, one that torch's AdamW trains, and the two optimizers."""
    ours, theirs = network(), network()
    adamw = torch.optim.AdamW(theirs.parameters(), lr=0.05, weight_decay=0.1)
    options = {"K": 1, "local": "adamw", "weight_decay": 0.1, **options}
    return ours, theirs, optim.LDSGD(ours.parameters(), lr=0.05, **options), adamw


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_after_every_step_does_what_it_does_elsewhere(name: str) -> None:
    ours, theirs, *optimizers = pair()
    for model, optimizer in zip((ours, theirs), optimizers, strict=True):
        scheduler = SCHEDULERS[name](optimizer)
        step = functools.partial(scheduler.step, 1.0) if name == "plateau" else scheduler.step
        train(model, optimizer, step)
    assert same(ours, theirs)


def test_a_round_has_the_rate_of_its_beginning() -> None:
    ours, theirs, ld_sgd, adamw = pair(K=4)
    scheduler = lr_scheduler.StepLR(ld_sgd, step_size=4, gamma=0.5)  # stepped after every local step
    train(ours, ld_sgd, scheduler.step)
    scheduler = lr_scheduler.StepLR(adamw, step_size=4, gamma=0.5)
    train(theirs, adamw, scheduler.step)
    assert same(ours, theirs)


@pytest.mark.parametrize("K", [1, 4])
def test_groups_have_their_own_rates_decays_and_betas(K: int) -> None:
    models = network(), network()
    groups = [
        [
            {"params": model[0].parameters(), "lr": 0.1, "betas": (0.5, 0.9)},
            {"params": [model[2].weight], "weight_decay": 0.0},
            {"params": [model[2].bias], "eps": 1e-3},
        ]
        for model in models
    ]
    optimizers: list[Any] = [
        optim.LDSGD(groups[0], lr=0.05, K=K, local=torch.optim.AdamW, weight_decay=0.1),
        torch.optim.AdamW(groups[1], lr=0.05, weight_decay=0.1),
    ]
    for model, optimizer in zip(models, optimizers, strict=True):
        scheduler = lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)
        train(model, optimizer, scheduler.step)
    assert same(*models)


def test_plain_steps_have_rates_and_decays_by_groups() -> None:
    models = network(), network()
    groups = [
        [{"params": m[0].parameters(), "lr": 0.1}, {"params": m[2].parameters(), "weight_decay": 0.2}] for m in models
    ]
    train(models[0], optim.LDSGD(groups[0], lr=0.05, K=3))
    train(models[1], torch.optim.SGD(groups[1], lr=0.05))
    assert same(*models)


def with_clipping(model: nn.Module, optimizer: Any) -> None:
    for batch in batches():
        error(model, batch).mul(10).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()


def with_accumulation(model: nn.Module, optimizer: Any) -> None:
    for number, batch in enumerate(batches(), start=1):
        error(model, batch).div(3).backward()
        if number % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()


def with_zeros_first(model: nn.Module, optimizer: Any) -> None:
    for batch in batches():
        optimizer.zero_grad()
        error(model, batch).backward()
        optimizer.step()


def with_the_models_zeros(model: nn.Module, optimizer: Any) -> None:
    for batch in batches():
        error(model, batch).backward()
        optimizer.step()
        model.zero_grad()


def with_gradients_by_hand(model: nn.Module, optimizer: Any) -> None:
    for batch in batches():
        parameters = list(model.parameters())
        for p, gradient in zip(parameters, torch.autograd.grad(error(model, batch), parameters), strict=True):
            p.grad = gradient
        optimizer.step()


def with_evaluation(model: nn.Module, optimizer: Any) -> None:
    for batch in batches():
        error(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        ended = getattr(optimizer, "round_ended", None)
        with torch.no_grad():
            error(model, batch)
        assert getattr(optimizer, "round_ended", None) is ended


def with_wrong_numbers_thrown_away(model: nn.Module, optimizer: Any) -> None:
    """As a GradScaler does: a step that is left out."""
    for number, batch in enumerate(batches()):
        error(model, batch).backward()
        if number % 4 == 1:
            model[0].weight.grad.fill_(float("nan"))
        else:
            optimizer.step()
        optimizer.zero_grad()


def with_an_error_in_between(model: nn.Module, optimizer: Any) -> None:
    for number, batch in enumerate(batches()):
        try:
            error(model, batch).backward()
            if number % 4 == 1:
                raise MemoryError
            optimizer.step()
        except MemoryError:
            pass
        optimizer.zero_grad()


def with_parameters_changed_by_the_loop(model: nn.Module, optimizer: Any) -> None:
    for batch in batches():
        error(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model[0].weight.clamp_(-0.3, 0.3)
        numbers = nn.utils.parameters_to_vector(model.parameters()).detach() * 0.99
        nn.utils.vector_to_parameters(numbers, model.parameters())  # gives them other memory


def with_a_compiled_model(model: nn.Module, optimizer: Any) -> None:
    train(torch.compile(model, backend="eager"), optimizer)  # type: ignore[arg-type]


LOOPS: tuple[Callable[[nn.Module, Any], None], ...] = (
    with_clipping,
    with_accumulation,
    with_zeros_first,
    with_the_models_zeros,
    with_gradients_by_hand,
    with_evaluation,
    with_wrong_numbers_thrown_away,
    with_an_error_in_between,
    with_parameters_changed_by_the_loop,
)


@pytest.mark.parametrize("loop", LOOPS, ids=[loop.__name__ for loop in LOOPS])
def test_what_loops_do_works_as_with_torch(loop: Callable[[nn.Module, Any], None]) -> None:
    ours, theirs, ld_sgd, adamw = pair(K=4)
    loop(ours, ld_sgd)
    loop(theirs, adamw)
    assert same(ours, theirs)
    assert not same(ours, network())


@pytest.mark.slow  # torch's compiler takes seconds to start
def test_a_compiled_model_is_trained() -> None:
    ours, theirs, ld_sgd, adamw = pair(K=4)
    with_a_compiled_model(ours, ld_sgd)
    train(theirs, adamw)
    assert same(ours, theirs)


def test_mixed_precision_with_a_scaler_skips_what_overflows() -> None:
    model = network().float()
    optimizer, scaler = optim.LDSGD(model.parameters(), lr=0.05, K=2), torch.amp.GradScaler("cpu", init_scale=2.0**127)
    rounds = []
    for x, y in batches():
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.mse_loss(model(x.float()), y.float())
        scaler.scale(loss * 16).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        rounds.append(optimizer.round)
    assert scaler.get_scale() < 2.0**127  # some steps were left out
    assert 0 < rounds[-1] < len(rounds) // 2
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


def test_a_moving_average_of_the_model_follows_it() -> None:
    ours, theirs, ld_sgd, adamw = pair(K=4)
    averages = [
        torch.optim.swa_utils.AveragedModel(m, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
        for m in (ours, theirs)
    ]
    train(ours, ld_sgd, lambda: averages[0].update_parameters(ours))
    train(theirs, adamw, lambda: averages[1].update_parameters(theirs))
    assert same(*averages)


def test_tied_weights_are_one_parameter() -> None:
    def tied() -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 1)).double()
        model[2].weight = model[0].weight
        return model

    torch.manual_seed(0)
    ours, theirs = tied(), tied()
    theirs.load_state_dict(ours.state_dict())
    train(ours, optim.LDSGD(ours.parameters(), lr=0.1, K=3))
    train(theirs, torch.optim.SGD(theirs.parameters(), lr=0.1))
    assert same(ours, theirs)
    assert ours[2].weight is ours[0].weight


def test_two_parameters_that_share_memory_are_refused() -> None:
    x = torch.zeros(6)
    with pytest.raises(ConfigError, match="share memory without being one parameter"):
        optim.LDSGD([nn.Parameter(x[:4]), nn.Parameter(x[2:])])


def test_two_optimizers_train_one_process_as_a_gan_does() -> None:
    def adversaries(make: Callable[[Any], Any]) -> list[nn.Module]:
        torch.manual_seed(0)
        maker, judge = (nn.Linear(2, 2).double() for _ in range(2))
        by_maker, by_judge = make(maker.parameters()), make(judge.parameters())
        for number in range(8):
            noise = torch.full((3, 2), 0.1 * number, dtype=torch.float64)
            by_judge.zero_grad()
            (judge(maker(noise).detach()) - judge(noise)).square().mean().backward()
            by_judge.step()
            judge.requires_grad_(False)
            by_maker.zero_grad()
            judge(maker(noise)).square().mean().backward()
            by_maker.step()
            judge.requires_grad_(True)
        return [maker, judge]

    ours = adversaries(lambda p: optim.LDSGD(p, lr=0.1, K=2))
    theirs = adversaries(lambda p: torch.optim.SGD(p, lr=0.1))
    assert all(same(a, b) for a, b in zip(ours, theirs, strict=True))


def test_sparse_gradients_and_unused_parameters() -> None:
    def embedded(make: Callable[[Any], Any]) -> nn.Module:
        torch.manual_seed(0)
        model = nn.ModuleDict({"table": nn.Embedding(7, 2, sparse=True), "unused": nn.Linear(2, 1)}).double()
        optimizer = make(model.parameters())
        for number in range(6):
            model["table"](torch.tensor([number, 0, number])).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model

    ours, theirs = embedded(lambda p: optim.LDSGD(p, lr=0.1, K=3)), embedded(lambda p: torch.optim.SGD(p, lr=0.1))
    assert same(ours, theirs)


def test_other_memory_layouts_keep_theirs() -> None:
    def images(make: Callable[[Any], Any]) -> nn.Module:
        torch.manual_seed(0)
        model = nn.Conv2d(2, 3, 3).double().to(memory_format=torch.channels_last)
        optimizer = make(model.parameters())
        for number in range(6):
            model(torch.full((1, 2, 4, 4), 0.1 * number, dtype=torch.float64)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                model.weight.clamp_(-0.2, 0.2)
        return model

    ours, theirs = images(lambda p: optim.LDSGD(p, lr=0.1, K=3)), images(lambda p: torch.optim.SGD(p, lr=0.1))
    assert same(ours, theirs)
    assert ours.weight.is_contiguous(memory_format=torch.channels_last)


def test_tensors_without_a_module() -> None:
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = optim.NetFleet([x], lr=0.1, K=2)
    for _ in range(5):
        optimizer.begin_round()
        (x - 1).square().sum().backward()
        optimizer.step()
    assert 0 < float(x.detach().min()) < 1
    assert optimizer.round == 2


def test_names_of_parameters_may_be_given() -> None:
    model = network()
    optimizer = optim.LDSGD(model.named_parameters(), lr=0.1, K=2)
    train(model, optimizer)
    assert optimizer.param_groups[0]["param_names"][0] == "0.weight"


def test_a_step_without_a_backward_pass_has_a_gradient_of_zero() -> None:
    model = network()
    optimizer = optim.LDSGD(model.parameters(), lr=0.1, K=2, weight_decay=0.5)
    before = [p.detach().clone() for p in model.parameters()]
    model(batches()[0][0])
    optimizer.step()
    optimizer.step()
    assert optimizer.round == 1
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


def test_weight_decay_leaves_alone_what_the_step_did_not_use() -> None:
    model = network()
    optimizer = optim.LDSGD(model.parameters(), lr=0.1, K=4, weight_decay=0.5)
    error(model, batches()[0]).backward()
    optimizer.zero_grad()  # thrown away
    before = model[2].weight.detach().clone()
    model[0](batches()[0][0]).sum().backward()
    optimizer.step()
    assert torch.equal(model[2].weight, before)


def test_an_own_average_is_shown_in_the_middle_of_a_round_and_nothing_is_trained_with_it() -> None:
    ours, theirs, ld_sgd, adamw = pair(K=4)

    def look() -> None:
        with ld_sgd.averaged():
            error(ours, batches()[0])  # with gradients: this is no training either
            for act in (ld_sgd.step, ld_sgd.begin_round):
                with pytest.raises(ConfigError, match="the average of all ranks now"):
                    act() if act == ld_sgd.step or ld_sgd.round_ended else ld_sgd.step()

    train(ours, ld_sgd, look)
    train(theirs, adamw)
    assert same(ours, theirs)
