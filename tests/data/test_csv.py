"""CSV files: types, missing values, categories, targets, splits, and the scaling of columns over all sites."""

from __future__ import annotations

import csv
import json
import random
import re
import tomllib
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from netfleet import ConfigError, Dataset, Experiment, load_dataset, make_partition
from netfleet.cli import main
from netfleet.data import own_tests
from netfleet.data.csv_files import declare, plan_data, site_statistics
from netfleet.data.sites import SITE_VARIABLE, holds_own_data
from netfleet.data.splits import split_share, stable_numbers
from netfleet.data.statistics import Sums, merge, read_statistics, sums_of, write_statistics
from netfleet.errors import DataError
from netfleet.runs.config import experiment
from netfleet.runs.run import run_experiment
from netfleet.sites.planning.nodes_file import NodeEntry, NodesFile
from netfleet.sites.planning.plan import load_planned, make_plan

ROOT = Path(__file__).parents[2]
SITES = ["north", "east", "south"]
FEATURES = {
    "age": "number",
    "pressure": {"kind": "number", "fill": "mean", "indicator": True},
    "ward": {"kind": "category", "values": ["A", "B"], "indicator": True},
    "smokes": {"kind": "yes/no", "fill": False},
    "same": "number",
}
SPEC: dict[str, Any] = {
    "kind": "csv",
    "path": "{site}.csv",
    "sites": SITES,
    "target": "score",
    "positive_above": 5,
    "features": FEATURES,
    "scale": "sites",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three sites of different size, with gaps, and one file with all of them; the current folder."""
    draw, whole = random.Random(0), []
    for number, site in enumerate(SITES):
        rows = [
            {
                "patient": f"{site}-{i}",
                "age": f"{draw.gauss(50 + 10 * number, 9):.1f}",
                "pressure": "?" if draw.random() < 0.3 else str(draw.randint(90, 180)),
                "ward": draw.choice(["A", "B", "NA"]),
                "smokes": draw.choice(["yes", "No", "1", "0", ""]),
                "same": "0.1",
                "score": str(draw.randint(0, 10)),
                "site": site,
            }
            for i in range(20 + 15 * number)
        ]
        write(tmp_path / f"{site}.csv", rows)
        whole += rows
    write(tmp_path / "all.csv", whole)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(SITE_VARIABLE, raising=False)
    return tmp_path


def write(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def one_file(text: str, **changes: Any) -> Dataset:
    """The data of a small file; a target that is a number unless the changes say otherwise."""
    Path("t.csv").write_text(text)
    return load_dataset({"kind": "csv", "path": "t.csv", "target": "y", "test": 0.25, **changes})


def whole(data: Dataset) -> list[list[float]]:
    """All rows of x, sorted, because it does not matter here which are for testing."""
    return sorted(torch.cat([data.train_x, data.test_x]).tolist())  # type: ignore[list-item]


def equal(one: Dataset, other: Dataset) -> bool:
    fields = ("train_x", "train_y", "test_x", "test_y", "groups", "test_groups")
    return all(torch.equal(getattr(one, field), getattr(other, field)) for field in fields)


# ---- columns ----


def test_numbers_are_filled_marked_and_scaled_by_constants(folder: Path) -> None:
    text = "y,a\n1,10\n2,?\n3,\n4,1.4e1\n"
    column = {"kind": "number", "fill": 12, "indicator": True, "scale": {"mean": 10, "deviation": 2}}
    assert whole(one_file(text, features={"a": column})) == [[0, 0], [1, 1], [1, 1], [2, 0]]


def test_spellings_of_missing_values_belong_to_all_columns_or_to_one(folder: Path) -> None:
    text = "y,a,b\n1,0,0\n2,-,7\n3,5,-\n4,5,7\n"
    columns = {"a": {"kind": "number", "fill": -1, "missing": ["0"]}, "b": {"kind": "number", "fill": -1}}
    assert whole(one_file(text, features=columns, missing=["-"])) == [[-1, 0], [-1, 7], [5, -1], [5, 7]]


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ({"kind": "number", "fill": 0, "range": [0, 30]}, ""),
        ({"kind": "number", "fill": 0, "range": [2, 30]}, r"line 2, column 'a': '1' is not from 2 to 30; correct it"),
        ({"kind": "number", "fill": 0, "range": [0, 29]}, r"line 5, column 'a': '30' is not from 0 to 29"),
        ({"kind": "number", "fill": 0, "most_missing": 0.25}, ""),
        (
            {"kind": "number", "fill": 0, "most_missing": 0.24},
            r"column 'a': 1 of 4 rows have no value, more than most_mis",
        ),
        (
            {"kind": "category", "values": [1, 2, 30], "indicator": True, "most_missing": 0.0},
            "1 of 4 rows have no value",
        ),
        ({"kind": "yes/no", "yes": ["1"], "no": ["2", "30"], "fill": False, "most_missing": 0.1}, "1 of 4 rows"),
    ],
)
def test_columns_have_ranges_and_a_largest_share_of_missing_values(
    folder: Path, column: dict[str, Any], words: str
) -> None:
    text = "a,y\n1,1\n2,2\n?,3\n30,4\n"
    if not words:
        assert one_file(text, features={"a": column}).rows == 3
        return
    with pytest.raises(DataError, match=words):
        one_file(text, features={"a": column})


def test_a_range_that_makes_no_sense_is_refused(folder: Path) -> None:
    for column in ({"range": [3, 1]}, {"range": [1]}, {"most_missing": 2}):
        with pytest.raises(ConfigError, match=r"features\.a: (range|most_missing) must be"):
            one_file("a,y\n1,1\n2,2\n", features={"a": {"kind": "number", **column}})


def test_categories_are_one_hot_and_a_missing_one_is_none_of_them(folder: Path) -> None:
    text = "y,w\n1,B\n2,A\n3,?\n4,C\n"
    column = {"kind": "category", "values": ["A", "B", "C"], "indicator": True}
    found = whole(one_file(text, features={"w": column}))
    assert found == [[0, 0, 0, 1], [0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0]]
    filled = whole(one_file(text, features={"w": {"kind": "category", "values": ["A", "B", "C"], "fill": "A"}}))
    assert filled == [[0, 0, 1], [0, 1, 0], [1, 0, 0], [1, 0, 0]]


def test_categories_that_are_listed_as_numbers_are_compared_as_numbers(folder: Path) -> None:
    column = {"kind": "category", "values": [1, 2]}
    assert whole(one_file("y,w\n1,1\n2,1.0\n3,2\n4,02\n", features={"w": column})) == [[0, 1], [0, 1], [1, 0], [1, 0]]


def test_yes_and_no_in_any_case_and_in_ones_own_words(folder: Path) -> None:
    text = "y,a,b\n1,YES,male\n2,0,Female\n3,true,female\n4,?,male\n"
    columns = {"a": {"kind": "yes/no", "fill": True}, "b": {"kind": "yes/no", "yes": ["male"], "no": ["female"]}}
    assert whole(one_file(text, features=columns)) == [[0, 0], [1, 0], [1, 1], [1, 1]]


def test_inputs_are_in_alphabetical_order_whatever_the_order_of_files_and_declarations(folder: Path) -> None:
    one = one_file("y,a,b\n1,1,2\n2,3,4\n3,5,6\n4,7,8\n", features={"b": "number", "a": "number"})
    other = one_file("b,name,a,y\n2,x,1,1\n4,x,3,2\n6,x,5,3\n8,x,7,4\n", features=["a", "b"])
    assert torch.equal(one.train_x, other.train_x)  # type: ignore[arg-type]
    assert whole(one) == [[1, 2], [3, 4], [5, 6], [7, 8]]


def test_files_as_spreadsheets_write_them(folder: Path) -> None:
    text = '\ufeffy;a;"b c"\r\n1;1,5;"2,5"\r\n\r\n2; 2,5 ;3\r\n'
    found = one_file(text, features=["a", "b c"], delimiter=";", decimal=",", test=0.5)
    assert whole(found) == [[1.5, 2.5], [2.5, 3]]


# ---- targets ----


def test_targets_are_numbers_classes_thresholds_or_times(folder: Path) -> None:
    text = "y,end,a\n0,yes,1\n2,no,2\n1,no,3\n2,yes,4\n"
    number = one_file(text, features=["a"])
    assert (number.classes, number.train_y.dtype) == (None, torch.float64)  # type: ignore[union-attr]
    named = one_file(text, target="end", features=["a"], classes=["no", "yes"])
    assert named.classes == 2
    above = one_file(text, features=["a"], positive_above=1)
    survival = one_file(text, features=["a"], event="end")
    for data, targets in [
        (number, {1: 0, 2: 2, 3: 1, 4: 2}),
        (named, {1: 1, 2: 0, 3: 0, 4: 1}),
        (above, {1: 0, 2: 1, 3: 0, 4: 1}),
        (survival, {1: [0, 1], 2: [2, 0], 3: [1, 0], 4: [2, 1]}),
    ]:
        x, y = torch.cat([data.train_x, data.test_x]), torch.cat([data.train_y, data.test_y])  # type: ignore[list-item]
        assert dict(zip(x[:, 0].int().tolist(), y.tolist(), strict=True)) == targets


# ---- sites ----


def test_the_simulator_reads_all_sites_in_their_order(folder: Path) -> None:
    data = load_dataset(SPEC)
    assert data.group_names == tuple(SITES)
    parts = make_partition("sites", data, workers=3, seed=5)
    assert [len(part) for part in parts] == [16, 28, 40]
    assert data.groups is not None
    assert all((data.groups[torch.from_numpy(part)] == i).all() for i, part in enumerate(parts))
    tests = own_tests(data, parts)
    assert tests is not None
    assert [len(rows) for rows in tests] == [4, 7, 10]


def test_one_file_with_a_column_of_sites_gives_the_same(folder: Path) -> None:
    grouped = {**SPEC, "path": "all.csv", "group": "site"}
    assert equal(load_dataset(SPEC), load_dataset(grouped))
    reverse = load_dataset({**grouped, "sites": SITES[::-1]})
    assert reverse.group_names == tuple(SITES[::-1])
    del grouped["sites"]
    assert load_dataset(grouped).group_names == tuple(SITES)  # as they appear


def test_one_file_for_all_has_no_groups(folder: Path) -> None:
    spec = {key: value for key, value in SPEC.items() if key != "sites"} | {"path": "all.csv"}
    data = load_dataset(spec)
    assert (data.groups, data.site, data.rows + data.tests) == (None, None, 105)


@pytest.mark.parametrize("number", range(3))
def test_a_site_alone_has_the_rows_that_the_simulator_gives_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    planned = plan_data(SPEC | {"statistics": collect(folder)}, SITES)
    together = load_dataset(SPEC)
    for other in SITES[:number] + SITES[number + 1 :]:
        (folder / f"{other}.csv").unlink()
    monkeypatch.setenv(SITE_VARIABLE, SITES[number])
    alone = load_dataset(planned)
    assert (alone.site, alone.groups) == (SITES[number], None)
    assert together.groups is not None
    assert together.test_groups is not None
    assert torch.equal(alone.train_x, together.train_x[together.groups == number])  # type: ignore[index,arg-type]
    assert torch.equal(alone.test_y, together.test_y[together.test_groups == number])  # type: ignore[index,arg-type]
    parts = make_partition("sites", alone, workers=3, seed=0)
    assert all(len(part) == alone.rows for part in parts)


def test_a_relative_path_may_be_below_the_data_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    monkeypatch.setenv("NETFLEET_DATA", str(folder))
    assert load_dataset(SPEC).group_names == tuple(SITES)


# ---- the split ----


@given(st.integers(2, 60), st.floats(0.01, 0.99), st.integers(1, 4))
def test_the_split_keeps_the_share_of_every_label(rows: int, share: float, labels: int) -> None:
    strata = np.arange(rows) % labels
    train, test = split_share(share, stable_numbers("site", rows), strata)
    assert sorted([*train, *test]) == list(range(rows))
    assert min(len(train), len(test)) >= 1
    assert abs(len(test) - rows * share) <= 1
    for label in range(min(labels, rows)):
        size, count = int((strata == label).sum()), int((strata[test] == label).sum())
        assert abs(count - size * len(test) / rows) < 2


def test_the_split_depends_on_the_site_and_not_on_the_process(folder: Path) -> None:
    one, other = (split_share(0.2, stable_numbers(name, 50))[1].tolist() for name in ("north", "east"))
    assert one != other
    assert one == split_share(0.2, stable_numbers("north", 50))[1].tolist()
    assert equal(load_dataset(SPEC), load_dataset(SPEC))


# ---- statistics ----


def collect(folder: Path) -> str:
    """The statistics of all sites, by way of files."""
    declared = declare(SPEC)
    for site in SITES:
        write_statistics(site_statistics(declared, site), folder / f"{site}.json")
    write_statistics(merge([read_statistics(folder / f"{site}.json") for site in SITES[::-1]]), folder / "all.json")
    return "all.json"


def test_scaled_columns_have_mean_0_and_deviation_1_over_the_training_rows_of_all_sites(folder: Path) -> None:
    x = load_dataset(SPEC).train_x
    assert isinstance(x, torch.Tensor)
    age, pressure, absent = x[:, 0], x[:, 1], x[:, 2] > 0
    assert abs(age.mean()) < 1e-12
    assert abs(age.std(correction=0) - 1) < 1e-12
    assert absent.any()
    assert (pressure[absent] == 0).all()  # the mean
    assert abs(pressure[~absent].std(correction=0) - 1) < 1e-12


def test_a_constant_column_becomes_exactly_0(folder: Path) -> None:
    data = load_dataset({**SPEC, "features": ["same"]})  # 0.1, whose sums in binary are not exact
    assert all(row == [0.0] for row in whole(data))


def test_merged_statistics_give_what_the_simulator_computes(folder: Path) -> None:
    assert equal(load_dataset(SPEC), load_dataset({**SPEC, "statistics": collect(folder)}))
    planned = plan_data(SPEC | {"statistics": "all.json"}, SITES)
    assert isinstance(planned, dict)
    assert sorted(planned["statistics"]) == ["age", "pressure", "same"]
    again = tomllib.loads("\n".join(f"{k}={v['mean']!r}" for k, v in planned["statistics"].items()))
    assert again == {name: column["mean"] for name, column in planned["statistics"].items()}
    assert equal(load_dataset(SPEC), load_dataset(planned))


@given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=30), st.data())
def test_sums_do_not_depend_on_how_rows_are_spread_over_sites(values: list[float], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(values)))
    order = data.draw(st.permutations(values))
    parts = sums_of(np.array(order[cut:])) + sums_of(np.array(order[:cut]))
    assert parts == sums_of(np.array(values))
    mean, deviation = parts.moments("x")
    assert mean == pytest.approx(np.mean(values), rel=1e-12, abs=1e-6)
    assert deviation == pytest.approx(np.std(values), rel=1e-6, abs=1e-5)


def test_small_deviations_of_large_numbers_are_not_lost() -> None:
    assert sums_of(np.array([1.7e9, 1.7e9 + 2])).moments("t") == (1.7e9 + 1, 1.0)


def test_what_leaves_a_site_is_counts_and_sums_of_the_columns_that_need_them(folder: Path) -> None:
    collect(folder)
    found = json.loads((folder / "east.json").read_text())
    assert set(found) == {"sites", "declaration", "columns"}
    assert set(found["columns"]) == {"age", "pressure", "same"}
    for sums in found["columns"].values():
        assert set(sums) == {"count", "missing", "sum", "sum_of_squares"}
    assert found["columns"]["same"] == {"count": 28, "missing": 0, "sum": "2.8", "sum_of_squares": "0.28"}
    assert sum(found["columns"]["pressure"][key] for key in ("count", "missing")) == 28


def test_a_column_without_any_value_says_so() -> None:
    with pytest.raises(Exception, match="'ca' has no value in the training rows of any site"):
        Sums(0, 9, Decimal(0), Decimal(0)).moments("ca")


# ---- plans ----

NODES = NodesFile(tuple(NodeEntry(name, f"10.0.0.{i}:1") for i, name in enumerate(SITES, start=1)))
EXPERIMENT = """
rounds = 4
topology = { kind = "ring", workers = 3, weights = "metropolis" }
engine = { dtype = "float64" }
[problem]
partition = "sites"
model = "softmax"
batch = 8
[problem.data]
kind = "csv"
path = "{site}.csv"
sites = ["north", "east", "south"]
target = "score"
positive_above = 5
scale = "sites"
[problem.data.features]
age = "number"
pressure = { kind = "number", fill = "mean" }
[[algorithms]]
kind = "net-fleet"
K = 2
"""


@pytest.fixture
def file(folder: Path) -> str:
    (folder / "e.toml").write_text(EXPERIMENT)
    return "e.toml"


def statistics(file: str) -> None:
    for site in SITES:
        assert main(["statistics", file, "--site", site, "--out", f"{site}.json"]) == 0
    files = [f"{site}.json" for site in SITES]
    assert main(["statistics", file, "--merge", *files, "--out", "statistics.json"]) == 0


def test_the_plan_has_the_statistics_and_its_hash_covers_them(file: str, folder: Path, capsys: Any) -> None:
    with pytest.raises(ConfigError, match="run netfleet statistics at each site"):
        load_planned(file, [], NODES)
    statistics(file)
    planned = load_planned(file, ["problem.data.statistics=statistics.json"], NODES)
    assert set(planned.problem["data"]["statistics"]["age"]) == {"mean", "deviation"}
    first = make_plan(planned, NODES).run
    moved = planned.problem["data"]["statistics"] | {"age": {"mean": 0.0, "deviation": 1.0}}
    data = planned.problem["data"] | {"statistics": moved}
    other = replace(planned, problem=planned.problem | {"data": data})
    assert make_plan(other, NODES).run != first
    assert "few rows" not in capsys.readouterr().out


def test_the_planned_experiment_trains_as_the_file_does(file: str) -> None:
    statistics(file)
    planned = load_planned(file, ["problem.data.statistics=statistics.json"], NODES)
    states = [final_state(settings) for settings in (planned, experiment(tomllib.loads(EXPERIMENT)))]
    assert torch.equal(*states)


def final_state(settings: Experiment) -> torch.Tensor:
    (history,) = run_experiment(settings)
    assert history.final is not None
    return history.final.state.x


def test_the_command_warns_of_sums_over_few_values(file: str, folder: Path, capsys: Any) -> None:
    rows = list(csv.DictReader((folder / "north.csv").read_text().splitlines()))
    write(folder / "north.csv", [row | ({"pressure": "?"} if i > 4 else {}) for i, row in enumerate(rows)])
    assert main(["statistics", file, "--site", "north", "--out", "n.json"]) == 0
    assert "few rows have a value in pressure" in capsys.readouterr().out


def test_weights_by_rows_need_the_rows_of_sites_with_their_own_files(file: str) -> None:
    overrides = ["problem.weights=rows", "problem.data.scale=none", 'problem.data.features=["age"]']
    with pytest.raises(ConfigError, match="add rows"):
        load_planned(file, overrides, NODES)
    assert holds_own_data(SPEC)
    assert holds_own_data("own_data:load")
    assert not holds_own_data("digits")
    assert not holds_own_data({**SPEC, "path": "all.csv"})


# ---- the documentation ----


def test_the_example_of_the_reference_page_is_valid(folder: Path) -> None:
    page = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    (text,) = (b for b in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if 'kind = "csv"' in b)
    declared = declare(tomllib.loads(text)["problem"]["data"])
    assert declared.own_files
    assert declared.scaled
