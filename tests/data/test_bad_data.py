"""Whatever is wrong with data is said in one sentence: what came, where, and what to do; from Python and files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import netfleet as nf
from netfleet.data.csv_files import declare, merge_statistics, plan_data, site_statistics
from netfleet.data.sites import SITE_VARIABLE
from netfleet.data.statistics import write_statistics
from netfleet.runs.config import experiment
from netfleet.runs.run import run_experiment

X, Y = np.arange(20.0).reshape(10, 2), np.arange(10) % 2
FRAME = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "label": Y})
NAN = X.copy()
NAN[3, 1] = np.nan


def made(x: Any = X, y: Any = Y, **options: Any) -> Callable[[], object]:
    return lambda: nf.make_dataset(x, y, **options)


def framed(frame: Any = FRAME, **options: Any) -> Callable[[], object]:
    return lambda: nf.make_dataset(frame, **{"target": "label", **options})


ARRAYS: dict[str, tuple[Callable[[], object], str]] = {
    "NaN in an array": (made(NAN), r"x has no value \(NaN\) in 1 rows, the first is row 3"),
    "infinity": (made(np.where(X == 3, np.inf, X)), "is not finite; remove or replace"),
    "NaN in a tensor": (made(torch.from_numpy(NAN)), "is not finite; remove or replace"),
    "NaN in a column": (framed(FRAME.assign(b=NAN[:, 1])), "x, column 'b' has no value"),
    "NA in a whole-number column": (framed(FRAME.assign(b=pd.array([1, pd.NA] * 5, "Int64"))), "first is row 1"),
    "texts as inputs": (framed(FRAME.assign(b="tall")), "column 'b' has .* values such as tall, expected numbers"),
    "dates as inputs": (framed(FRAME.assign(b=pd.Timestamp("2020-01-01"))), "encode texts and dates"),
    "objects as inputs": (made([object()] * 10), "expected numbers"),
    "a dict of texts": (made({"a": X, "b": ["x"] * 10}), r"x\['b'\] has .* expected numbers"),
    "a file name as inputs": (made("x.npy"), "x is a str, expected an array"),
    "complex inputs": (made(X * 1j), "expected real numbers"),
    "ragged lists": (made([[1.0], [1.0, 2.0]] * 5), "x has rows of different shapes"),
    "too few targets": (made(X, Y[:9]), "the targets have 9 rows, but x has 10; make the lengths agree"),
    "too many groups": (made(groups=[0] * 11), "groups have 11 rows, but x has 10"),
    "inputs of different lengths": (made({"a": X, "b": X[:4]}), "the inputs in x have 4, 10 rows"),
    "no rows": (made(X[:0], Y[:0]), r"x is empty \(shape \(0, 2\)\)"),
    "a number as inputs": (made(np.float64(3)), "x is a float64, expected an array"),
    "one row": (made(X[:1], Y[:1]), "one row cannot be for training and for testing"),
    "negative labels": (made(y=Y - 1), r"y has the label -1, expected 0, 1, …; give classes = \[all labels"),
    "labels that are ids": (made(y=Y + 5000), "y has the label 5001 but only 10 labels"),
    "a label out of range": (made(y=Y + 2, classes=3), "labels from 2 to 3, expected 0 to 2"),
    "a label that is not listed": (made(y=["x", "y"] * 5, classes=["x", "z"]), "'y' is none of classes"),
    "a class twice": (made(y=["x", "y"] * 5, classes=["x", "x"]), "classes has a value twice"),
    "classes as a text": (made(classes="two"), "classes must be a number or a list of labels"),
    "half a label": (made(y=Y + 0.5, classes=2), r"y has 0.5, which is no label"),
    "texts and numbers as labels": (made(y=np.array(["x", 1] * 5, object)), "y has texts and numbers"),
    "a missing label": (made(y=pd.Series(["x", None] * 5)), "y has (nan|None), expected texts or whole numbers"),
    "classes and numbers": (made(classes=2, numbers=True), "say different things"),
    "groups that are fractions": (made(groups=X[:, 0]), "groups must be one text or whole number for each row"),
    "no targets": (
        made(y=None),
        "got neither y nor target; give the targets as y, or as target = the name of their column",
    ),
    "targets twice": (framed(y=Y), "got both y and target; give"),
    "a target that is not there": (framed(target="lable"), "no column 'lable' .did you mean 'label'..; it has a, b"),
    "a group that is not there": (framed(groups="clinic"), "no column 'clinic'"),
    "a column's name without a frame": (made(groups="clinic"), "'clinic' names a column, but x is a ndarray"),
    "nothing but the target": (framed(FRAME[["label"]]), "x has no columns for x"),
    "a test share of 0": (made(test=0), "test must be a share of the rows between 0 and 1, got 0"),
    "a test share above 1": (made(test=20), "between 0 and 1, got 20; try test = 0.2"),
    "test rows without targets": (made(test=X), "test must be a share of the rows, or the test rows"),
    "test rows of another shape": (made(test=(X[:, :1], Y)), r"training row are float64 \[2\] but of a test row"),
    "a new label among the test rows": (made(test=(X, Y + 1), classes=2), "test_y has labels from 1 to 2"),
    "a group only among the test rows": (made(groups=["a"] * 10, test=(X, Y, [1.5] * 10)), "groups must be one"),
    "a seed that is a text": (made(seed="one"), "seed must be a whole number, got 'one'"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_bad_arrays(name: str) -> None:
    build, words = ARRAYS[name]
    with pytest.raises(nf.NetfleetError, match=words) as caught:
        build()
    check_sentence(str(caught.value))


def check_sentence(text: str) -> None:
    assert "\n" not in text
    assert len(text) < 400
    assert re.search(r"; \w+| must (be|list) ", text), "what to do"


GOOD = "age,sex,ward,days,died\n50,1,A,3,1\n?,0,B,4,0\n61,1,A,5,1\n44,0,B,6,0\n58,1,A,7,1\n"
SPEC: dict[str, Any] = {
    "kind": "csv",
    "path": "{site}.csv",
    "sites": ["north", "south"],
    "target": "days",
    "features": {"age": {"kind": "number", "fill": "mean"}, "sex": "yes/no"},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for site in SPEC["sites"]:
        (tmp_path / f"{site}.csv").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(SITE_VARIABLE, raising=False)
    monkeypatch.delenv("NETFLEET_DATA", raising=False)
    return tmp_path


#: What the file of a site has in place of the good one, what the experiment declares differently, and the words.
FILES: dict[str, tuple[str | bytes | None, dict[str, Any], str]] = {
    "no file": (None, {}, r"there is no file south.csv in the current folder .*; put it there"),
    "an empty file": ("", {}, "south.csv is empty; expected a line with the names"),
    "no rows": ("age,sex,days\n", {}, "south.csv has no rows after its first line"),
    "one row": ("age,sex,days\n1,1,1\n", {}, "south.csv: one row of south cannot be"),
    "bytes that are no text": (b"age,sex\n\xff,1\n", {}, "south.csv: byte 8 is not UTF-8"),
    "no such column": ("Age,sex,days\n1,1,1\n2,1,1\n", {}, "south.csv: there is no column 'age' .did you mean 'Age'"),
    "two columns of a name": ("age,age,days\n1,1,1\n", {}, "south.csv: two columns are called 'age'"),
    "too few fields": (GOOD.replace("44,0,B,6,0", "44,0,B"), {}, "south.csv, line 5: 3 fields, .* names 5 columns"),
    "another delimiter": (GOOD.replace(",", ";"), {}, "there is no column 'age'"),
    "an open quote": (GOOD + '"1,2\n', {}, "south.csv, line 7: not valid CSV"),
    "a word for a number": (GOOD.replace("61", "old"), {}, "south.csv, line 4, column 'age': 'old' is not a number"),
    "NaN": (GOOD.replace("61", "nan"), {}, "line 4, column 'age': 'nan' is not a number; correct it, or add it to"),
    "infinity": (GOOD.replace("61", "1e999"), {}, "line 4, column 'age': '1e999' is not a number"),
    "a decimal comma": (GOOD.replace("61", '"6,1"'), {}, "line 4, column 'age': '6,1' is not a number"),
    "no value": (GOOD, {"features": ["age"]}, "line 3, column 'age': '\\?' means that there is no value, .* add fill"),
    "neither yes nor no": (GOOD.replace("44,0", "44,F"), {}, "line 5, column 'sex': 'F' is neither yes .* nor no"),
    "an unlisted category": (
        GOOD.replace("61,1,A", "61,1,C"),
        {"features": {"ward": {"kind": "category", "values": ["A", "B"]}}},
        "line 4, column 'ward': 'C' is none of the listed values A, B; correct it or list it",
    ),
    "no target": (GOOD.replace("B,6", "B,?"), {}, "line 5, column 'days': '\\?' means .* remove the row"),
    "an unlisted class": (GOOD, {"target": "ward", "classes": ["A", "C"]}, "line 3, column 'ward': 'B' is none of"),
    "a negative time": (GOOD.replace("B,6", "B,-6"), {"event": "died"}, "line 5, column 'days': '-6' is a negative"),
    "an event that is a number": (GOOD, {"event": "age"}, "column 'age' .*features|column 'age': '50' is neither"),
}


@pytest.mark.parametrize("name", FILES)
def test_bad_files(name: str, folder: Path) -> None:
    content, changes, words = FILES[name]
    path = folder / "south.csv"
    path.unlink()
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(nf.NetfleetError, match=words) as caught:
        nf.load_dataset({**SPEC, **changes})
    check_sentence(str(caught.value))


def column(**declaration: Any) -> dict[str, Any]:
    return {"features": {"age": declaration}}


DECLARATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown key": ({"taget": "days"}, "no parameter 'taget' .did you mean 'target'"),
    "no sites": ({"sites": None}, "has a file for each site, but no site is known"),
    "an empty list of sites": ({"sites": []}, "sites is an empty list"),
    "a site twice": ({"sites": ["north", "north"]}, "sites has 'north' twice"),
    "a site that is a path": ({"sites": ["../north"]}, "is no name for a file"),
    "sites of one file": ({"path": "north.csv"}, 'sites are listed, but path = "north.csv" is one file'),
    "a group within sites": ({"group": "ward"}, 'is a file for each site; leave group = "ward" out'),
    "a site that a file does not have": (
        {"path": "north.csv", "group": "ward", "sites": ["A", "B", "C"]},
        "no row has",
    ),
    "a site that is not listed": ({"path": "north.csv", "group": "ward", "sites": ["A"]}, "line 3, column 'ward': 'B'"),
    "no features": ({"features": {}}, "features names no column"),
    "the target as a feature": ({"features": ["age", "days"]}, "column 'days' is the target or the group"),
    "an unknown kind of column": (column(kind="numbr"), "features.age: unknown column 'numbr' .did you mean 'number'"),
    "an unknown key of a column": (column(kind="number", fil=0), "features.age: .* no parameter 'fil'"),
    "a column without a kind": (column(fill=0), "features.age: column: the table has no kind"),
    "a fill that is no number": (column(kind="number", fill="median"), "fill must be a number or one of 'mean'"),
    "a fill that is NaN": (column(kind="number", fill=float("nan")), "fill must be a finite number"),
    "a fill that is no value": (column(kind="category", values=["A", "B"], fill="C"), "fill = 'C' is none of"),
    "a scale without deviation": (column(kind="number", fill=0, scale={"mean": 1}), "scale must be"),
    "a deviation of 0": (column(kind="number", fill=0, scale={"mean": 1, "deviation": 0}), "deviation above 0"),
    "one category": (column(kind="category", values=["A"]), "values must list two or more different values"),
    "categories of two types": (column(kind="category", values=["A", 1]), "all texts or all numbers"),
    "a word that is yes and no": (column(kind="yes/no", yes=["x"], no=["X"]), "'x' is both yes and no"),
    "two targets": ({"classes": [0, 1], "positive_above": 0}, "classes and positive_above say different things"),
    "a test share of 1": ({"test": 1.0}, "test must be a share of the rows between 0 and 1"),
    "a delimiter of two characters": ({"delimiter": "::"}, "delimiter must be one character"),
    "a comma for both": ({"decimal": ","}, "delimiter and decimal are both ','"),
    "statistics of other columns": ({"statistics": {"sex": {}}}, "with mean and deviation of each of age"),
    "statistics that are not there": ({"statistics": "s.json"}, "there is no file s.json"),
    "statistics that are no such file": (
        {"statistics": "north.csv"},
        "not a file that netfleet statistics has written",
    ),
}


@pytest.mark.parametrize("name", DECLARATIONS)
def test_bad_declarations(name: str, folder: Path) -> None:
    changes, words = DECLARATIONS[name]
    spec = {key: value for key, value in {**SPEC, **changes}.items() if value is not None}
    with pytest.raises(nf.NetfleetError, match=words) as caught:
        nf.load_dataset(spec)
    check_sentence(str(caught.value))


def write_all(folder: Path, **changes: Any) -> list[Path]:
    declared = declare({**SPEC, **changes})
    for site in SPEC["sites"]:
        write_statistics(site_statistics(declared, site), folder / f"{site}.json")
    return [folder / f"{site}.json" for site in SPEC["sites"]]


def of_some(folder: Path) -> object:
    return merge_statistics(declare(SPEC), write_all(folder)[:1])


def of_others(folder: Path) -> object:
    return merge_statistics(declare(SPEC), write_all(folder, test=0.4))


def of_two_declarations(folder: Path) -> object:
    files = write_all(folder)
    write_statistics(site_statistics(declare({**SPEC, "test": 0.4}), "south"), files[1])
    return merge_statistics(declare(SPEC), files)


PLANS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no statistics": (lambda _: plan_data(SPEC, ["north", "south"]), "run netfleet statistics at each site"),
    "sites in another order": (
        lambda _: plan_data(SPEC, ["south", "north"]),
        "are south, north; give both in the same",
    ),
    "statistics of a site twice": (lambda f: merge_statistics(declare(SPEC), write_all(f)[:1] * 2), "are there twice"),
    "statistics of some": (of_some, "statistics of north, expected those of north, south"),
    "statistics of another experiment": (of_others, "are of different declarations of the data"),
    "statistics of two experiments": (of_two_declarations, "south and north are of different declarations"),
    "an unknown site": (lambda _: site_statistics(declare(SPEC), "west"), "site 'west' is none of north, south"),
    "nothing to scale": (
        lambda _: site_statistics(declare({**SPEC, "features": {"sex": "yes/no"}}), "north"),
        "add scale",
    ),
    "data of another kind": (lambda _: declare("digits"), "declared in data of kind \"csv\", and this is 'digits'"),
}


@pytest.mark.parametrize("name", PLANS)
def test_bad_plans(name: str, folder: Path) -> None:
    build, words = PLANS[name]
    with pytest.raises(nf.NetfleetError, match=words) as caught:
        build(folder)
    check_sentence(str(caught.value))


def test_a_site_needs_the_statistics_of_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SITE_VARIABLE, "north")
    with pytest.raises(nf.ConfigError, match="which no site knows alone"):
        nf.load_dataset(SPEC)
    (folder / "north.csv").unlink()
    with pytest.raises(nf.DataError, match=r"there is no file north\.csv"):
        nf.load_dataset(SPEC)


PLAYS: dict[str, tuple[dict[str, Any], str]] = {
    "windows of nothing": ({"length": 0}, "length must be at least 1"),
    "a least that is too low": ({"least": 10, "length": 5}, "least must be at least 2 · length . 1 = 11, got 10"),
    "no speakers": ({"speakers": 0}, "speakers must be at least 1"),
    "too many speakers": ({"speakers": 3}, "2 speakers have 20 characters or more .most: 38., expected 3 or more"),
    "nobody says enough": ({"least": 100}, "0 speakers have 100 characters or more .most: 38., .*; lower least"),
    "a character that is not listed": ({"alphabet": "abc"}, "has the character 'd', which the alphabet has not"),
    "sites without an alphabet": ({"path": "{site}.txt", "sites": ["york"]}, "add alphabet"),
    "sites of one text": ({"sites": ["york"]}, "sites are listed, but the text is one file"),
    "no file": ({"path": "p.txt"}, "there is no file p.txt"),
    "no play": ({"path": "prose.txt"}, "prose.txt: no speaker; expected a line 'NAME:'"),
    "no text": ({"path": "bytes.txt"}, "bytes.txt: byte 3 is not UTF-8"),
}


@pytest.mark.parametrize("name", PLAYS)
def test_bad_plays(name: str, folder: Path) -> None:
    (folder / "play.txt").write_text("A:\n" + "dabc " * 7 + "abc\n\nB:\n" + "cab " * 7)
    (folder / "prose.txt").write_text("It was the best of times.\n")
    (folder / "bytes.txt").write_bytes(b"A:\n\xff")
    changes, words = PLAYS[name]
    with pytest.raises(nf.NetfleetError, match=words) as caught:
        nf.load_dataset({"kind": "plays", "path": "play.txt", "length": 5, "least": 20, **changes})
    check_sentence(str(caught.value))


def test_bad_partitions_of_sites() -> None:
    plain, grouped = nf.make_dataset(X, Y), nf.make_dataset(X, Y, groups=[0, 1] * 5)
    with pytest.raises(nf.DataError, match="does not say which site a row is from"):
        nf.make_partition("sites", plain, workers=2, seed=0)
    with pytest.raises(nf.DataError, match=r"has 2 sites, but there are 3 workers; set workers = 2 in \[topology\]"):
        nf.make_partition("sites", grouped, workers=3, seed=0)
    with pytest.raises(nf.DataError, match="worker 1 of 2 has no rows"):
        nf.ModuleProblem(torch.nn.Linear(2, 2), grouped, [np.arange(3), np.arange(0)])
    with pytest.raises(nf.DataError, match="has rows 0 to 99, expected 0 to 7"):
        nf.ModuleProblem(torch.nn.Linear(2, 2), grouped, [np.arange(100)])


def test_a_loss_that_does_not_fit_the_declared_target(folder: Path) -> None:
    problem = {"data": {**SPEC, "scale": "sites"}, "partition": "sites", "model": "softmax"}
    table = {"rounds": 1, "topology": {"kind": "ring", "workers": 2}, "problem": problem}
    with pytest.raises(nf.DataError, match=r"the targets are float64 \[\], expected int64 one label for each row"):
        run_experiment(experiment(table))
