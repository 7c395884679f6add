"""Plays: speakers, windows of characters, alphabets, sites with texts of their own, and a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from netfleet import Dataset, load_dataset, make_partition
from netfleet.data import own_tests
from netfleet.data.catalog import TINYSHAKESPEARE
from netfleet.data.csv_files import plan_data
from netfleet.data.sites import SITE_VARIABLE
from netfleet.runs.config import experiment
from netfleet.runs.run import run_experiment

TEXT = "A:\nabcabcabcabcabc\ncab\n\nB:\nbb\n\nSecond C:\nccccccccccccc\n\nB:\nbbbbbbbbbbbb\n\nD:\n\nA:\nca\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "play.txt").write_text(TEXT)
    for name, speech in {"york": "to be or not to be. " * 3, "leeds": "or not to be, to be. " * 4}.items():
        (tmp_path / f"{name}.txt").write_text(f"HAMLET:\n{speech}\n\nAll:\nno\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(SITE_VARIABLE, raising=False)
    return tmp_path


def play(**changes: object) -> Dataset:
    return load_dataset({"kind": "plays", "path": "play.txt", "length": 4, "least": 9, **changes})


def rows(data: Dataset, group: int) -> tuple[Tensor, Tensor]:
    assert data.groups is not None
    assert isinstance(data.train_x, Tensor)
    assert isinstance(data.train_y, Tensor)
    return data.train_x[data.groups == group], data.train_y[data.groups == group]


def test_speakers_are_groups_in_the_order_of_how_much_they_say(folder: Path) -> None:
    data = play()
    assert data.group_names == ("A", "B", "Second C")  # D says nothing
    assert play(least=15).group_names == ("A", "B")
    assert play(speakers=1).group_names == ("A",)
    assert data.groups is not None
    assert data.test_groups is not None
    assert data.test_groups.tolist() == [0, 1, 2]  # a tenth is less than a window


def test_a_row_is_a_window_and_its_targets_are_the_next_characters(folder: Path) -> None:
    data = play()
    alphabet = sorted(set(TEXT))
    assert data.classes == len(alphabet)
    said = "abcabcabcabcabc\ncab\nca"
    x, y = rows(data, 0)
    for i in range(len(x)):
        window = said[4 * i : 4 * i + 5]
        assert "".join(alphabet[t] for t in x[i]) == window[:-1]
        assert "".join(alphabet[t] for t in y[i]) == window[1:]
    assert isinstance(data.test_x, Tensor)
    assert len(x) == 4
    assert "".join(alphabet[t] for t in data.test_x[0]) == said[16:20]  # after those for training


def test_the_last_tenth_of_each_speaker_is_for_testing(folder: Path) -> None:
    (folder / "long.txt").write_text("A:\n" + "ab" * 200 + "\n\nB:\n" + "ba" * 100)
    data = play(path="long.txt")
    assert data.test_groups is not None
    assert data.test_groups.bincount().tolist() == [9, 4]  # of 99 and 49
    assert data.groups is not None
    assert data.groups.bincount().tolist() == [90, 45]


def test_a_declared_alphabet_has_one_number_for_each_of_its_characters(folder: Path) -> None:
    data = play(alphabet="zcba\n")
    assert data.classes == 5
    assert rows(data, 2)[0].unique().tolist() == [3]  # \n, a, b, c, z


def test_a_site_with_a_text_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"path": "{site}.txt", "alphabet": "abcdefghijklmnopqrstuvwxyz ,.\n", "sites": ["york", "leeds"]}
    together = play(**spec)
    planned = plan_data({"kind": "plays", **spec, "sites": None}, ["york", "leeds"])
    assert planned == {"kind": "plays", **spec}
    assert together.group_names == ("york", "leeds")
    (folder / "york.txt").unlink()
    monkeypatch.setenv(SITE_VARIABLE, "leeds")
    alone = play(**spec)
    assert (alone.site, alone.groups, alone.classes) == ("leeds", None, together.classes)
    assert torch.equal(alone.train_x, rows(together, 1)[0])  # type: ignore[arg-type]


class NextCharacter(nn.Module):
    """The scores of the next character depend on the last one only."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.table = nn.Embedding(outputs, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.table(tokens)
        return scores


@pytest.mark.parametrize("partition", ["sites", "groups"])
def test_speakers_train_together(folder: Path, partition: str) -> None:
    problem = {
        "kind": "language",
        "data": {"kind": "plays", "path": "play.txt", "length": 4, "least": 9},
        "partition": partition,
        "model": f"{__name__}:NextCharacter",
    }
    table = {"rounds": 20, "topology": {"kind": "ring", "workers": 3}, "problem": problem, "evaluation": {"every": 20}}
    (history,) = run_experiment(experiment(table | {"algorithms": [{"kind": "net-fleet", "K": 4, "eta": 1.0}]}))
    assert history.last["loss"] < history.records[0]["loss"] / 2
    assert history.last["own_accuracy_mean"] is not None


@pytest.mark.skipif(
    not (Path(os.environ.get("NETFLEET_DATA", "/nowhere")) / "tinyshakespeare.txt").is_file(), reason="needs the file"
)
def test_shakespeares_plays() -> None:
    data = load_dataset("plays")
    assert (data.name, data.classes) == (TINYSHAKESPEARE.name, 65)
    assert data.group_names is not None
    assert data.group_names[:2] == ("GLOUCESTER", "DUKE VINCENTIO")
    some = load_dataset({"kind": "plays", "speakers": 10, "length": 32})
    parts = make_partition("sites", some, workers=10, seed=0)
    assert [len(part) for part in parts] == sorted(map(len, parts), reverse=True)
    assert own_tests(some, parts) is not None
