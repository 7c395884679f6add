"""How optimizers and the processes that have them end."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.modules import module
from torch.utils.data import DataLoader, TensorDataset

from netfleet import ConfigError, optim
from netfleet.errors import EngineError
from support.loops import batches, error, network, train
from support.torchrun import finish, start

SCRIPT = str(Path(__file__).parents[1] / "support" / "ending_loop.py")


def trainings() -> int:
    return sum(thread.name == "netfleet-training" for thread in threading.enumerate())


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("keeps", [False, True], ids=["bare", "with what it keeps"])
def test_an_optimizer_that_is_dropped_in_the_middle_of_a_round_leaves_no_thread(keeps: bool) -> None:
    gc.collect()  # those of earlier tests
    before, hooks, model = trainings(), len(module._global_forward_pre_hooks), network()
    optimizer: Any = optim.LDSGD(model.parameters(), lr=0.1, K=5)
    loop: Any = optim.Batches(batches(), optimizer, steps=7) if keeps else batches()
    scheduler: Any = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    if keeps:
        optimizer.keep(scheduler=scheduler, model=model)
    for batch in loop:
        error(model, batch).backward()
        optimizer.step()
    assert trainings() == before + 1
    assert len(module._global_forward_pre_hooks) == hooks  # the model's calls cost nothing during a round
    dropped = weakref.ref(optimizer)
    del optimizer, scheduler, loop
    gc.collect()
    assert dropped() is None
    assert trainings() == before
    assert model(batches()[0][0]).requires_grad  # the model is usable as before


@pytest.mark.usefixtures("group")
def test_an_interrupt_in_a_wait_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    optimizer = optim.LDSGD(model.parameters(), lr=0.1, K=2)
    train(model, optimizer, count=2)
    questions = optimizer._training.problem.handover._questions

    class Interrupted:
        put = questions.put

        def get(self) -> None:
            questions.get()
            raise KeyboardInterrupt

    monkeypatch.setattr(optimizer._training.problem.handover, "_questions", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        model(batches()[0][0])
    with pytest.raises(EngineError, match="was interrupted; make a new optimizer"):
        optimizer.begin_round()
    with pytest.raises(ConfigError, match="its last state is gone"):
        optimizer.state_dict()
    optimizer._training.problem.handover._answers.put(None)


@pytest.mark.usefixtures("group")
def test_classes_are_pickled_and_copied_and_trainings_are_not() -> None:
    assert pickle.loads(pickle.dumps(optim.NetFleet)) is optim.NetFleet
    assert copy.deepcopy(optim.NetFleet) is optim.NetFleet
    optimizer = optim.NetFleet(network().parameters())
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ConfigError, match="cannot be copied or pickled; save its state_dict"):
            act(optimizer)


@pytest.mark.usefixtures("group")
def test_a_model_can_be_copied_and_saved_in_the_middle_of_a_round(tmp_path: Path) -> None:
    model = network()
    optimizer = optim.NetFleet(model.parameters(), K=5)
    train(model, optimizer, count=8)
    assert not optimizer.round_ended
    torch.save(model.state_dict(), tmp_path / "model.pt")
    again = network(seed=1)
    again.load_state_dict(torch.load(tmp_path / "model.pt"))
    for other in (again, copy.deepcopy(model)):
        assert all(torch.equal(a, b) for a, b in zip(other.parameters(), model.parameters(), strict=True))


@pytest.mark.usefixtures("group")
def test_a_model_that_changes_its_type_is_refused() -> None:
    model = network()
    optimizer = optim.LDSGD(model.parameters(), lr=0.1, K=2)
    train(model, optimizer, count=4)
    model.float()
    with pytest.raises(ConfigError, match=r"make the optimizer after model.to"):
        model(batches()[0][0].float())
    model.double().to("cpu")  # as it was, though elsewhere in memory
    train(model, optimizer, count=4)
    assert optimizer.round == 4


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("what", ["frozen", "unfrozen"])
def test_freezing_later_is_refused(what: str) -> None:
    model = network()
    model[0].requires_grad_(what == "frozen")
    optimizer = optim.LDSGD(model.parameters(), lr=0.1, K=2)
    train(model, optimizer, count=4)
    model[0].requires_grad_(what != "frozen")
    with pytest.raises(ConfigError, match="make a new optimizer after freezing or unfreezing"):
        train(model, optimizer, count=1)
    again = optim.LDSGD(model.parameters(), lr=0.1, K=2)  # which goes on with the model as it is
    train(model, again, count=4)
    assert again.round == 2
    with pytest.raises(ConfigError, match="another optimizer was made for these parameters"):
        optimizer.step()


@pytest.mark.usefixtures("group")
def test_a_model_that_is_frozen_altogether_is_refused_too() -> None:
    model = network()
    optimizer = optim.LDSGD(model.parameters(), lr=0.1, K=2)
    model.requires_grad_(False)
    model(batches()[0][0])
    with pytest.raises(ConfigError, match="make a new optimizer after freezing or unfreezing"):
        optimizer.step()


@pytest.mark.usefixtures("group")
def test_processes_that_load_data_are_started_in_the_middle_of_a_round() -> None:
    model = network()
    optimizer = optim.LDSGD(model.parameters(), lr=0.1, K=3)
    data = TensorDataset(*(torch.cat(parts) for parts in zip(*batches(), strict=True)))
    for _ in range(2):
        for batch in DataLoader(data, batch_size=12, num_workers=1, multiprocessing_context="fork"):
            error(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert optimizer.round == 2


@pytest.mark.parametrize(
    ("how", "codes"),
    [
        ("plain", (0, 0)),
        ("kept", (0, 0)),
        ("destroyed", (0, 0)),
        ("error", (1, 1)),
        ("interrupted", (130, 0)),
        ("caught", (130, 0)),
        ("averaged", (130, 0)),
    ],
)
def test_a_loop_that_ends_in_the_middle_of_a_round_ends_its_process(how: str, codes: tuple[int, int]) -> None:
    ends = finish(start([SCRIPT, how], 2))
    assert tuple(code for code, _, _ in ends) == codes, ends
    words = {
        "error": "RuntimeError: the loop's own",
        "interrupted": "KeyboardInterrupt",
        "averaged": "KeyboardInterrupt",
    }.get(how, "")
    assert words in ends[0][2]
    assert "terminate" not in ends[0][2]
