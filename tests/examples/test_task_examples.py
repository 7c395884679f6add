"""The examples of tasks, each against a known answer."""

import importlib.util
import math
import os
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score

import netfleet as nf
from netfleet.data.tensors import only
from netfleet.runs import score_table

EXAMPLES = Path(__file__).parents[2] / "examples"
DATA = Path(os.environ.get("NETFLEET_DATA", "/nowhere"))
has_heart = pytest.mark.skipif(not (DATA / "heart").is_dir(), reason="needs the heart data in NETFLEET_DATA")
has_plays = pytest.mark.skipif(
    not (DATA / "tinyshakespeare.txt").is_file(), reason="needs tinyshakespeare.txt in NETFLEET_DATA"
)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_regression_is_as_good_as_ridge_on_all_rows() -> None:
    history, problem = load("regression").main()
    data = problem.data
    x, y = data.train_x.numpy(), data.train_y.numpy()
    ridge = Ridge(alpha=0.01 * len(y) / 2).fit(x, y)  # (1/n) Σ (y − wx)² + (l2/2)‖w‖²
    assert history.last["r2"] == pytest.approx(ridge.score(data.test_x.numpy(), data.test_y.numpy()), abs=0.02)
    assert history.last["accuracy"] is None


def test_survival_finds_the_coefficients() -> None:
    example = load("survival")
    history, problem = example.main()
    weights = history.final.state.x.mean(0)[: len(example.HAZARD)].numpy()
    assert np.abs(weights - example.HAZARD).max() < 3 / math.sqrt(problem.data.rows / 3)  # about three standard errors
    assert history.last["concordance"] > 0.75


@has_heart
def test_four_hospitals_are_as_good_as_one_model_on_all_patients() -> None:
    file = EXAMPLES / "hospitals" / "hospitals.toml"
    table = tomllib.loads(file.read_text())
    data = nf.load_dataset(table["problem"]["data"])
    x, y = only(data.train_x).numpy(), only(data.train_y).numpy()
    central = LogisticRegression(C=1 / (len(y) * table["problem"]["l2"]), max_iter=1000).fit(x, y)
    expected = roc_auc_score(only(data.test_y), central.decision_function(only(data.test_x).numpy()))
    (history,) = nf.run(nf.load_experiment(file))
    assert history.last["auroc"] == pytest.approx(expected, abs=0.01)
    pooled = next(s for s in history.scores if (s.data, s.label, s.metric) == ("", "", "auroc"))
    assert pooled.value == pytest.approx(history.last["auroc"])
    assert pooled.low < expected < pooled.high  # type: ignore[operator]
    assert {s.data for s in history.scores} == {"", "cleveland", "hungarian", "switzerland", "va"}


def bigram_loss(data: nf.Dataset) -> float:
    """The mean negative log-likelihood on test rows of how often a character follows another in all training rows."""
    assert data.classes is not None
    before, after = only(data.train_x).flatten(), only(data.train_y).flatten()
    counts = torch.ones(data.classes, data.classes, dtype=torch.float64)
    counts.index_put_((before, after), torch.ones(len(before), dtype=torch.float64), accumulate=True)
    chances = (counts / counts.sum(1, keepdim=True)).log()
    return -chances[only(data.test_x).flatten(), only(data.test_y).flatten()].mean().item()


@has_plays
@pytest.mark.slow
def test_the_transformer_is_better_than_a_bigram_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_table, "RESAMPLES", 2)  # intervals are not looked at, and take longer than the training
    changes = ["rounds=25", "evaluation={every=25, gradient=false, worker_test_samples=100}", "topology.workers=4"]
    changes += ["problem.data={kind='plays', length=16, speakers=4}", "problem.model.width=32"]
    changes += ["algorithms=[{kind='k-gt', K=20, eta=0.5}]", "evaluation.metrics=['perplexity']"]
    path = EXAMPLES / "plays" / "plays.toml"
    experiment = nf.load_experiment(path, changes)
    (history,) = nf.run(experiment)
    assert history.last["loss"] < bigram_loss(nf.load_dataset(experiment.problem["data"]))
    assert history.last["perplexity"] == pytest.approx(math.exp(history.last["loss"]), rel=1e-3)
