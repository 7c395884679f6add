"""The study of linear speedup: its points, that they are kept, the fit and the picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from netfleet import ConfigError, theory
from netfleet.config import EngineConfig
from netfleet.experiment import build_problem
from netfleet.metrics import consensus_error
from netfleet.reproduce import scaling
from netfleet.reproduce.scaling import Results, Row, load_study
from netfleet.reproduce.speedup import draw_speedup

STUDY = """
title = "small"
workers = [1, 3]
rounds = [8, 27]
seeds = [0, 1]
scale = 0.05
problem = { kind = "quadratics", d = 3, sigma = 1.0 }
topology = { kind = "complete" }
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "small.toml").write_text(STUDY)
    return tmp_path / "small.toml"


def test_points_take_k_and_the_step_size_of_the_corollary(path: Path) -> None:
    points = list(load_study(path).points())
    assert len(points) == 8
    assert {(p.m, p.S, p.K, p.eta) for p in points} == {
        (m, S, *theory.corollary(m, S, 0.05)) for m in (1, 3) for S in (8, 27)
    }


def test_points_are_kept_and_not_made_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, results = load_study(path), Results(path.with_suffix(".json"))
    scaling.perform(study, results)
    assert len(results) == 8
    monkeypatch.setattr(scaling, "averaged_metric", lambda *_: pytest.fail("made again"))
    again = Results(path.with_suffix(".json"))
    scaling.perform(study, again)
    assert again == results
    found = scaling.rows(study, again)
    assert [(row.m, row.S, len(row.values)) for row in found] == [(1, 8, 2), (3, 8, 2), (1, 27, 2), (3, 27, 2)]
    assert draw_speedup({"small": found}).axes


def test_the_metric_is_averaged_over_the_steps() -> None:
    problem = build_problem({"kind": "quadratics", "d": 3}, 2, 0, EngineConfig())
    watched = scaling.Watched(problem, stride=2)
    models = torch.randn(5, 2, 3)
    for x in models:
        assert watched.problem.grad(x, problem.sample(0, 0)).equal(problem.full_grad(x))
    expected = [
        problem.objective(x.mean(0))[1].square().sum() + problem.smoothness**2 * consensus_error(x)  # type: ignore[operator]
        for x in models[::2]
    ]
    assert watched.total / watched.count == pytest.approx(np.mean(expected), rel=1e-5)


def test_the_fit_finds_a_power_law_and_its_uncertainty() -> None:
    rng = np.random.default_rng(0)
    pairs = [(m, S) for m in (1, 4, 16) for S in (10, 100)]
    measured = [Row(m, S, 1, 0.1, (3 * (m * S) ** -0.5 * np.exp(0.05 * rng.normal()),)) for m, S in pairs]
    found = scaling.fit(measured)
    assert found.low < -0.5 < found.high
    assert found.high - found.low < 0.2
    assert found.at(100) == pytest.approx(0.3, rel=0.1)


def test_rounds_to_a_target_are_interpolated() -> None:
    measured = [Row(m, S, 1, 0.1, ((m * S) ** -0.5,)) for m in (1, 4) for S in (10, 100, 1000)]
    assert scaling.rounds_to(measured, 0.05) == {1: pytest.approx(400), 4: pytest.approx(100)}
    assert scaling.rounds_to(measured, 0.01) == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[1, 3]", "[0, 3]"), "workers must be a list of whole numbers"),
        (("[8, 27]", "[]"), "rounds must be a list"),
        (("0.05", "-1.0"), "scale > 0"),
        (("scale", "scales"), "unknown key 'scales'"),
    ],
)
def test_a_bad_study_is_refused_in_words(path: Path, change: tuple[str, str], message: str) -> None:
    path.write_text(STUDY.replace(*change))
    with pytest.raises(ConfigError, match=f"small.toml.*{message}"):
        load_study(path)
