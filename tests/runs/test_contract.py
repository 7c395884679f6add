"""The contract about data: what breaks it is found before round 0, by row and column, without the value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
import torch

import netfleet as nf
from netfleet.data import load_dataset
from netfleet.data.sites import SITE_VARIABLE
from netfleet.errors import ConfigError, DataError
from netfleet.runs.config import experiment
from netfleet.runs.contract_check import check_dataset
from netfleet.runs.identity import digest
from netfleet.runs.run import run_experiment

DIGITS: dict[str, Any] = {
    "rounds": 1,
    "topology": {"kind": "ring", "workers": 3},
    "problem": {"kind": "classification", "data": "digits", "partition": "iid", "model": "softmax"},
    "algorithms": [{"kind": "net-fleet", "K": 1}],
}
RIGHT: dict[str, Any] = {
    "inputs": {"shape": [1, 8, 8], "dtype": "float32", "range": [0, 1]},
    "targets": {"shape": [], "dtype": "int64", "range": [0, 9]},
    "least_rows": 479,
    "least_classes": 10,
}


@pytest.fixture(autouse=True)
def in_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SITE_VARIABLE, raising=False)


def with_contract(**contract: Any) -> nf.Experiment:
    return experiment({**DIGITS, "contract": contract})


def test_data_that_keeps_its_contract_trains() -> None:
    (history,) = run_experiment(with_contract(**RIGHT))
    (other,) = run_experiment(experiment(DIGITS))
    assert history.records[-1]["accuracy"] == other.records[-1]["accuracy"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"inputs": {"shape": [64]}},
            r"inputs of the training rows have the shape \[1, 8, 8\], the contract says \[64\]",
        ),
        ({"inputs": {"dtype": "float64"}}, "inputs of the training rows are float32, the contract says float64"),
        ({"inputs": {"range": [0, 0.9]}}, r"entry \d+ of row \d+ is not from 0 to 0\.9, and \d+ of 1437 rows are like"),
        ({"targets": {"range": [0, 8]}}, r"targets of the training rows: entry 0 of row \d+ is not from 0 to 8"),
        ({"least_rows": 480}, "worker 0 has 479 training rows, the contract says least_rows = 480"),
        ({"least_classes": 11}, "worker 0 has 10 classes among its rows, the contract says least_classes = 11"),
        ({"columns": ["a"]}, "does not name its columns, and the contract does"),
    ],
)
def test_what_breaks_a_contract_is_said(change: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        run_experiment(with_contract(**change))


def test_test_rows_are_looked_at_too() -> None:
    data = load_dataset("digits")
    assert isinstance(data.test_x, torch.Tensor)
    contract = with_contract(**RIGHT).contract
    assert contract is not None
    check_dataset(contract, data)
    spoilt = data.test_x.clone()
    spoilt[5, 0, 2, 3] = 2.0
    with pytest.raises(DataError, match=r"test rows: entry 19 of row 5 is not from 0 to 1, and 1 of 360 rows"):
        check_dataset(contract, replace(data, test_x=spoilt))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"rows": 3}, r"unknown key 'rows' in \[contract\]"),
        ({"inputs": {"type": "x"}}, "unknown key 'type' in contract.inputs"),
        ({"inputs": 3}, r"\[inputs\] must be a table"),
        ({"inputs": {"range": [3, 1]}}, "range must be the lowest and the highest number"),
        ({"targets": {"range": [3]}}, "range must be the lowest and the highest number"),
        ({"least_rows": -1}, "least_rows must be 0 or more"),
        ({"columns": "age"}, "columns in .contract. must be a list of a text"),
    ],
)
def test_what_is_wrong_in_a_contract_is_said(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        with_contract(**table)


def test_a_problem_without_data_has_no_contract() -> None:
    table = {**DIGITS, "problem": {"kind": "quadratics"}, "contract": {"least_rows": 1}}
    with pytest.raises(ConfigError, match="is about data, and Quadratics has none"):
        run_experiment(experiment(table))


# ---- hashes ----


def test_a_contract_is_in_the_hash_and_none_is_not() -> None:
    plain, other = experiment(DIGITS), with_contract(least_rows=1)
    assert "contract" not in plain.runs()[0].config
    assert plain.runs()[0].hash != other.runs()[0].hash != with_contract(least_rows=2).runs()[0].hash


def test_a_contract_is_written_and_read_back(tmp_path: Any) -> None:
    settings = with_contract(**RIGHT)
    (tmp_path / "e.toml").write_text(settings.to_toml())
    again = nf.load_experiment(tmp_path / "e.toml")
    assert again == settings
    assert again.hash == settings.hash


# ---- the order of columns ----

FRAME = pd.DataFrame({"age": [1.0, 2, 3, 4, 5], "pressure": [5.0, 4, 3, 2, 1], "ill": [0, 1, 0, 1, 0]})


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["age", "pressure"], ""),
        (["pressure", "age"], "the columns are in another order: column 1 is 'age', the contract has 'pressure' there"),
        (["age"], "column 'pressure' is not in the contract"),
        (["age", "crp", "pressure"], "column 'crp' is missing"),
    ],
)
def test_columns_are_those_of_the_contract_in_their_order(columns: list[str], words: str) -> None:
    contract = with_contract(columns=columns).contract
    data = nf.make_dataset(FRAME, target="ill", classes=2)
    assert contract is not None
    assert data.columns == ("age", "pressure")
    if not words:
        return check_dataset(contract, data)
    with pytest.raises(DataError, match=words):
        check_dataset(contract, data)
    return None


def test_a_column_is_named_and_the_patients_value_is_not() -> None:
    contract = with_contract(inputs={"range": [0, 4.5]}).contract
    frame = FRAME.assign(age=[1.0, 2, 3, 4, 4.75])
    assert contract is not None
    data = nf.make_dataset(frame, target="ill", classes=2, test=frame)
    with pytest.raises(DataError) as error:
        check_dataset(contract, data)
    assert "column 'pressure' of row 0 is not from 0 to 4.5, and 2 of 5 rows are like that" in str(error.value)
    assert "4.75" not in str(error.value)


def test_names_of_columns_do_not_change_what_identifies_data() -> None:
    data = nf.make_dataset(FRAME, target="ill", classes=2)
    assert digest(data) == digest(replace(data, columns=None))
