"""A model's file describes itself; loading runs nothing, and predictions are those of the training's own data path."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import netfleet as nf
from netfleet.cli import main
from netfleet.errors import CheckpointError, ConfigError, DataError
from netfleet.prediction.model_file import read_model, write_model
from netfleet.prediction.model_info import ModelInfo, Origin, model_info
from netfleet.problems.module import ModuleProblem
from netfleet.runs.build import build_problem
from netfleet.runs.config import EngineConfig, experiment

ROWS = """age,smokes,cough,sick
30,yes,none,well
40,no,dry,ill
50,?,wet,ill
60,no,none,well
35,yes,dry,ill
"""
ORIGIN = Origin("f" * 64, "s0", 7)


def table(path: Path, loss: str = "cross-entropy", **target: Any) -> dict[str, Any]:
    cough = {"kind": "category", "values": ["none", "dry", "wet"]}
    features = {"age": "number", "smokes": {"kind": "yes/no", "fill": False}, "cough": cough}
    data = {"kind": "csv", "path": str(path), "features": features, "scale": "sites", **target}
    problem = {"kind": "classification", "data": data, "partition": "iid", "model": "softmax", "loss": loss}
    return {
        "rounds": 1,
        "topology": {"kind": "complete", "workers": 1},
        "problem": problem,
        "engine": {"dtype": "float64"},
    }


def trained(folder: Path, **target: Any) -> tuple[Path, ModuleProblem]:
    """A file with the initial model of a problem, and the problem."""
    (folder / "rows.csv").write_text(ROWS)
    settings = experiment(table(folder / "rows.csv", **(target or {"target": "sick", "classes": ["well", "ill"]})))
    problem = build_problem(settings.problem, 1, 0, EngineConfig(dtype="float64"))
    assert isinstance(problem, ModuleProblem)
    info = model_info(problem, settings, ORIGIN, {"accuracy": 0.5, "auroc": None})
    write_model(folder / "model.safetensors", info, problem.module(problem.start()).state_dict())
    return folder / "model.safetensors", problem


def test_a_file_predicts_what_the_problem_computes(tmp_path: Path) -> None:
    path, problem = trained(tmp_path)
    model = nf.load_model(path)
    said = model.predict(tmp_path / "rows.csv")
    data, module = problem.data, problem.module(problem.start())
    assert isinstance(data.train_x, torch.Tensor)
    for x in data.train_x:
        expected = module(x[None]).softmax(-1).detach().numpy()
        assert np.abs(said.probabilities - expected).sum(1).min() < 1e-12  # one of the file's rows is this one
    assert set(said.values) <= {"well", "ill"}
    assert model.info.origin == ORIGIN
    assert model.info.metrics == {"accuracy": 0.5}
    assert "rows.csv" not in model.info.to_json()  # where the rows are is nobody's business


def test_files_frames_and_arrays_say_the_same(tmp_path: Path) -> None:
    path, _ = trained(tmp_path)
    model, frame = nf.load_model(path), pd.read_csv(tmp_path / "rows.csv", na_values="?")
    expected = model.predict(tmp_path / "rows.csv").probabilities
    assert np.array_equal(model.predict(frame[["sick", "smokes", "cough", "age"]]).probabilities, expected)
    array = frame[["age", "cough", "smokes"]].to_numpy()  # the alphabetical order
    assert np.array_equal(model.predict(array).probabilities, expected)
    with pytest.raises(DataError, match=r"shape \[5, 2\], expected \[rows, 3\] with the columns age, cough, smokes"):
        model.predict(array[:, :2])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("40,", "forty,", "line 3, column 'age': 'forty' is not a number"),
        ("40,", ",", "line 3, column 'age': '' means that there is no value"),
        ("dry", "loud", "line 3, column 'cough': 'loud' is none of the listed values"),
        ("age", "Age", "no column 'age'"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, capsys: Any, old: str, new: str, words: str) -> None:
    path, _ = trained(tmp_path)
    (tmp_path / "new.csv").write_text(ROWS.replace(old, new, 1))
    assert main(["predict", str(path), str(tmp_path / "new.csv")]) == 2
    assert words in capsys.readouterr().err


def test_a_row_of_a_frame_is_named(tmp_path: Path) -> None:
    frame = pd.DataFrame({"age": [30, None], "smokes": ["no", "no"], "cough": ["dry", "dry"]})
    with pytest.raises(DataError, match="the data frame, row 1, column 'age'"):
        nf.load_model(trained(tmp_path)[0]).predict(frame)


def test_the_command_writes_a_line_for_each_row(tmp_path: Path, capsys: Any) -> None:
    path, _ = trained(tmp_path)
    assert main(["predict", str(path), str(tmp_path / "rows.csv"), "--out", str(tmp_path / "out.csv")]) == 0
    assert main(["predict", str(path), str(tmp_path / "rows.csv")]) == 0
    text = capsys.readouterr().out
    assert (tmp_path / "out.csv").read_text() in text
    found = pd.read_csv(io.StringIO((tmp_path / "out.csv").read_text()))
    assert list(found) == ["prediction", "probability of well", "probability of ill"]
    assert np.allclose(found.iloc[:, 1:].sum(axis=1), 1, atol=1e-5)


def test_loading_imports_nothing_unless_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = trained(tmp_path)
    (tmp_path / "own_code.py").write_text(
        "from pathlib import Path\nfrom torch import nn\nPath(__file__).with_name('ran').touch()\n"
        "def make(inputs, outputs):\n    return nn.Sequential(nn.Flatten(), nn.Linear(inputs[0], outputs))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    info, tensors = read_model(path)
    for changed in (
        replace(info, model={"kind": "own_code:make"}),
        replace(info, data={**(info.data or {}), "features": {"age": {"kind": "own_code:make"}}}),
    ):
        write_model(path, changed, tensors)
        with pytest.raises(ConfigError, match="needs code that is not netfleet's: own_code:make"):
            nf.load_model(path)
        assert not (tmp_path / "ran").exists()
    write_model(path, replace(info, model={"kind": "own_code:make"}), tensors)
    assert nf.load_model(path, trust_code=True).predict(tmp_path / "rows.csv").classes == ("well", "ill")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": {"kind": "mlp", "hidden": [10**12]}}, "do not fit"),  # which would need terabytes
        ({"model": {"kind": "no-such-model"}}, "unknown model"),
        ({"inputs": (3,)}, "do not fit"),
        ({"dtype": "load"}, "none of torch's"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path, _ = trained(tmp_path)
    info, tensors = read_model(path)
    write_model(path, replace(info, **change), tensors)
    with pytest.raises((CheckpointError, ConfigError), match=words):
        nf.load_model(path)


def test_other_and_damaged_files_are_refused(tmp_path: Path) -> None:
    path, _ = trained(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"damaged.*get it again"):
        nf.load_model(path)
    path.write_bytes(whole[:50])
    with pytest.raises(CheckpointError, match="cannot be read as a model"):
        nf.load_model(path)
    info, tensors = ModelInfo(ORIGIN), {"x": torch.zeros(2)}
    write_model(path, info, tensors)
    with pytest.raises(ConfigError, match="does not know its architecture"):
        nf.load_model(path)
    write_model(path, replace(info, format=2), tensors)
    with pytest.raises(CheckpointError, match="format 2; this version reads format 1"):
        nf.load_model(path)


@pytest.mark.parametrize("key", ["origin", "inputs", "classes", "format"])
def test_a_description_with_other_types_is_an_error(tmp_path: Path, key: str) -> None:
    from netfleet.prediction.model_info import parse_info

    info = json.loads(read_model(trained(tmp_path)[0]).info.to_json())
    with pytest.raises(CheckpointError):
        parse_info(json.dumps({**info, key: {"kind": 3}}), "a file")
