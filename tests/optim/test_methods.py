"""The classes: the methods' parameters, one object each, and what a type checker says in a user's project."""

from __future__ import annotations

import inspect
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import netfleet
from netfleet import optim
from netfleet.algorithms import ALGORITHMS
from netfleet.registry import parameters

#: The methods that a loop can run, by the name of their class.
METHODS = {ALGORITHMS[kind].__name__: ALGORITHMS[kind] for kind in ALGORITHMS if kind not in ("svrg", "spider")}


def test_every_method_has_a_class_and_every_class_a_method() -> None:
    classes = {name for name in optim.__all__ if issubclass_of(name) and name != "Decentralized"}
    assert classes == set(METHODS)


def issubclass_of(name: str) -> bool:
    found = getattr(optim, name)
    return isinstance(found, type) and issubclass(found, optim.Decentralized)


@pytest.mark.parametrize("name", METHODS)
def test_a_class_takes_what_its_method_takes(name: str) -> None:
    ours = dict(inspect.signature(getattr(optim, name)).parameters)
    theirs = {key: p.default for key, p in parameters(METHODS[name]).items() if key != "eta"}
    ours.pop("params")
    ours.pop("options")
    ours.pop("lr")
    assert {key: p.default for key, p in ours.items()} == theirs


@pytest.mark.parametrize("name", METHODS)
def test_a_class_is_one_object_also_when_pickled(name: str) -> None:
    found = getattr(optim, name)
    assert found is getattr(optim, name)
    assert pickle.loads(pickle.dumps(found)) is found
    assert (found.__module__, found.__qualname__) == ("netfleet.optim.methods", name)


def test_there_is_a_version() -> None:
    assert re.fullmatch(r"\d+\.\d+.*", netfleet.__version__)


PROJECT = """
import torch
import torch.distributed as dist
from torch import nn

import netfleet.optim


def train(model: nn.Module, loader: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    dist.init_process_group("gloo")
    optimizer = netfleet.optim.NetFleet(model.parameters(), lr=0.05, K=10, topology="ring", local=torch.optim.AdamW)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    optimizer.keep(model=model, scheduler=scheduler)
    for x, y in netfleet.optim.Batches(loader, optimizer):
        nn.functional.mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    with optimizer.averaged():
        print(netfleet.__version__)
"""
WRONG = {
    "netfleet.optim.NetFlet(nn.Linear(1, 1).parameters())": "NetFlet",
    "netfleet.optim.NetFleet(nn.Linear(1, 1).parameters(), k=10)": 'Unexpected keyword argument "k"',
    'netfleet.optim.NetFleet(nn.Linear(1, 1).parameters(), K="ten")': 'incompatible type "str"; expected "int"',
    "netfleet.optim.DSGD(nn.Linear(1, 1).parameters(), K=10)": 'Unexpected keyword argument "K"',
    "netfleet.optim.LED(nn.Linear(1, 1).parameters(), topologi='ring')": 'Unexpected keyword argument "topologi"',
}


@pytest.mark.slow
def test_a_users_project_is_checked_strictly(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "right.py").write_text(PROJECT)
    (tmp_path / "wrong.py").write_text("from torch import nn\n\nimport netfleet.optim\n\n" + "\n".join(WRONG) + "\n")
    done = subprocess.run(  # strict, with what `make lint` has cached
        [sys.executable, "-m", "mypy", str(tmp_path / "right.py"), str(tmp_path / "wrong.py")],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "MYPYPATH": "src"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr
    assert "right.py" not in done.stdout
    said = dict(re.findall(r"wrong.py:(\d+): error: (.*)$", done.stdout, flags=re.MULTILINE))
    assert list(said) == [str(line) for line in range(5, 5 + len(WRONG))], done.stdout
    for words, sentence in zip(WRONG.values(), said.values(), strict=True):
        assert words in sentence
