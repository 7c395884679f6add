"""Loops on four ranks: what they have in common is compared, nothing that is not finite is sent, sets of files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from support.loop_ranks import METHODS, RANKS
from support.torchrun import finish, start

#: What a sentence speaks of, if not of the case's name.
WORDS = {"rank 0's": "the same loaded state", "K": "K=2"}
pytestmark = pytest.mark.slow
Results = Callable[[str], list[Any]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What each rank found in a case."""
    out = tmp_path_factory.mktemp("loops")
    ends = finish(start([str(Path(__file__).parents[1] / "support" / "loop_ranks.py"), str(out)], RANKS))
    assert [code for code, _, _ in ends] == [0] * RANKS, ends[0][2][-3000:]
    return lambda case: [torch.load(out / f"{case}-{rank}.pt") for rank in range(RANKS)]


def test_all_ranks_have_the_first_ones_parameters_from_the_beginning(results: Results) -> None:
    first, *others = results("starts_together")
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def test_different_frozen_weights_are_refused_on_all_ranks(results: Results) -> None:
    for given, kept in results("different_frozen_weights"):
        assert given.startswith("ConfigError: the ranks do not have the same frozen parameters (")
        assert kept.startswith("ConfigError: the ranks do not have the same frozen parameters of the kept model (")


def test_only_what_is_trained_is_sent(results: Results) -> None:
    for sent, trained in results("bytes_of_adapters"):
        assert sent == 2 * 8 * trained  # to two neighbours, float64


@pytest.mark.parametrize("kind", METHODS)
def test_nothing_that_is_not_finite_is_sent_and_all_ranks_stop(kind: str, results: Results) -> None:
    sentences, clean = zip(*(found[kind] for found in results("not_finite_gradients")), strict=True)
    assert all(clean)
    assert len(set(sentences)) == 1
    assert sentences[0].startswith("DivergedError")
    assert "rank 1" in sentences[0]
    assert "in round " in sentences[0]


@pytest.mark.parametrize("what", ["round", "K", "method", "graph", "rank 0's", "number of ranks"])
def test_states_that_do_not_belong_together_are_refused_on_all_ranks(what: str, results: Results) -> None:
    found = results("different_loads")[: 2 if what == "number of ranks" else RANKS]
    assert all(said["the same"] == "" for said in found)
    for said in found:
        assert said[what].startswith("ConfigError: "), said[what]
        assert WORDS.get(what, what) in said[what]
    assert what != "round" or all("do not have the same round" in said[what] for said in found)


@pytest.mark.parametrize("what", ["averaged()", "save()", "load()", "start"])
def test_ranks_that_have_made_different_numbers_of_steps_all_say_so(what: str, results: Results) -> None:
    (sentence,) = {said[what] for said in results("different_points")}
    assert sentence.startswith("ConfigError: the ranks are at different points of their loops (ranks 0, 1, 3: " + what)
    assert "; rank 2: exchange after round 2); let all ranks make the same number of steps" in sentence


def test_learning_rates_that_differ_in_a_round_are_refused_on_all_ranks(results: Results) -> None:
    found = results("different_rates")
    for what, rates in (("twice", "ranks 0, 1, 2: 0.05; rank 3: 0.025"), ("one group", "0.075 on average")):
        (sentence,) = {said[what] for said in found}
        assert sentence.startswith("ConfigError: the ranks have different learning rates in round 0 (ranks 0, 1, 2: ")
        assert rates in sentence
    assert all(said["the same"] == "" for said in found)


def test_a_saved_run_goes_on_with_the_same_bits(results: Results) -> None:
    for expected, resumed, _ in results("saved_and_loaded"):
        assert all(torch.equal(a, b) for a, b in zip(expected, resumed, strict=True))


def test_fewer_ranks_go_on_with_the_average_model(results: Results) -> None:
    fewer = [found for _, _, found in results("saved_and_loaded")[:2]]
    assert all((t, rate) == (3, pytest.approx(0.1 * 0.7**3)) for t, rate, _ in fewer)
    assert all(torch.equal(a, b) for a, b in zip(fewer[0][2], fewer[1][2], strict=True))


@pytest.mark.parametrize(
    ("what", "words"), [("nothing there", "nothing"), ("foreign", "another method"), ("damaged", "damaged")]
)
def test_folders_that_cannot_be_loaded_are_refused_in_a_sentence(what: str, words: str, results: Results) -> None:
    for said in results("damaged_folders"):
        assert said[what].startswith(("CheckpointError: ", "EngineError: 4 of 4")), said[what]
        assert words in said[what]
