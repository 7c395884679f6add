"""`make_problem`: defaults by the data, objects as parts, and what it refuses."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import netfleet as nf
from netfleet.errors import ConfigError, DataError
from netfleet.problems import ModuleProblem

DICE = np.random.default_rng(0)
X, Y, SITE = DICE.normal(size=(60, 4)), DICE.integers(3, size=60), DICE.integers(3, size=60)
DATA = nf.make_dataset(X, Y, groups=SITE)


def module_problem(*args: Any, **options: Any) -> ModuleProblem:
    made = nf.make_problem(*args, **options)
    assert isinstance(made, ModuleProblem)
    return made


def test_each_group_is_a_worker_and_the_targets_choose_the_loss() -> None:
    assert nf.make_problem(DATA).m == 3
    assert module_problem(DATA).task.outputs == "classes"
    assert module_problem(nf.make_dataset(X, X[:, 0]), workers=2).task.outputs == "numbers"
    tokens = torch.randint(5, (20, 6))
    sequences = nf.make_dataset(tokens, tokens, classes=5)
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5))
    assert module_problem(sequences, model, workers=2).task.outputs == "tokens"


def test_weights_and_parts_are_those_that_are_given() -> None:
    parts = [np.arange(10), np.arange(10, 40)]
    problem = module_problem(DATA, "linear", partition=parts, weights=np.array([1.0, 3.0]))
    assert problem.sizes == [10, 30]
    assert problem.shares is not None
    assert problem.shares.tolist() == [0.25, 0.75]


def test_whole_numbers_are_floats_to_models_by_name() -> None:
    assert module_problem(nf.make_dataset(DICE.integers(9, size=(60, 4)), Y), "mlp", workers=2).d > 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nf.make_problem(DATA, workers=5), "has 3 groups, and workers = 5"),
        (lambda: nf.make_problem(nf.make_dataset(X, Y)), "say how many workers"),
        (lambda: nf.make_problem(X, workers=2), "make one with nf.make_dataset"),
        (lambda: nf.make_problem(DATA, nn.Linear), "model must be a name, a table or an nn.Module"),
        (lambda: nf.make_problem(DATA, lr=0.1), "no parameter 'lr'.*it takes: "),
        (lambda: nf.make_problem(DATA, batch=2.5), "batch must be a whole number, got 2.5"),
        (lambda: nf.make_problem(DATA, workers="3"), "workers must be a whole number"),
        (lambda: nf.make_problem(DATA, l2="0.1"), "l2 must be a number"),
        (lambda: nf.make_problem(DATA, nn.Linear(4, 3).requires_grad_(False)), "nothing to train"),
        (lambda: nf.make_problem(DATA, loss="bce"), "needs targets of 0 or 1, got 0 to 2; use cross-entropy"),
        (lambda: module_problem(DATA).module(torch.zeros(3, 5)), "choose one worker's, or the average"),
    ],
)
def test_bad_input_is_one_sentence(make: Callable[[], object], words: str) -> None:
    with pytest.raises((ConfigError, DataError), match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
