"""The study of linear speedup: its points, that they are kept, the fit and the picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from netfleet import ConfigError, theory
from netfleet.cli import main
from netfleet.config import EngineConfig
from netfleet.experiment import build_problem
from netfleet.metrics import consensus_error
from netfleet.progress import Quiet
from netfleet.reproduce import scaling
from netfleet.reproduce.scaling import Results, Row, load_study

STUDY = """
title = "small"
workers = [1, 3]
rounds = [8, 27]
seeds = [0, 1]
scale = 0.05
problem = { kind = "quadratics", d = 3, sigma = 1.0 }
topology = { kind = "erdos-renyi", p = 1.0 }
[[lines]]
label = "corollary"
[[lines]]
label = "ring"
K = 2
topology = { kind = "ring" }
problem = { heterogeneity = 4.0 }
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "speedup" / "small.toml"
    path.parent.mkdir()
    path.write_text(STUDY)
    return path


def test_points_take_k_and_the_step_size_of_the_corollary(path: Path) -> None:
    points = list(load_study(path).points())
    assert len(points) == 16
    for line, K in (("corollary", None), ("ring", 2)):
        assert {(p.m, p.S, p.K, p.eta) for p in points if p.line.label == line} == {
            (m, S, *theory.corollary(m, S, 0.05, K)) for m in (1, 3) for S in (8, 27)
        }
    problem = points[-1].experiment.problem
    assert (problem["heterogeneity"], problem["sigma"], points[-1].experiment.topology["kind"]) == (4.0, 1.0, "ring")


def test_dear_points_are_left_out(path: Path) -> None:
    path.write_text("most_steps = 30\n" + STUDY)
    assert {(p.m, p.S, p.K) for p in load_study(path).points()} == {
        (1, 8, 2),
        (3, 8, 1),
        (3, 27, 1),
        (1, 8, 2),
        (3, 8, 2),
    }


def test_points_are_kept_and_not_made_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = path.parent.parent
    command = ["reproduce", "speedup", "--from", str(folder), "--work", str(folder / "work")]
    assert main([*command, "--seeds", "1"]) == 0
    study, results = load_study(path), Results(path.with_suffix(".json"))
    assert len(results) == 8
    assert (folder / "work" / "full-1-seeds" / "speedup.png").exists()
    assert main(command) == 0
    assert len(Results(path.with_suffix(".json"))) == 16
    assert "slope where" in capsys.readouterr().out
    monkeypatch.setattr(scaling, "averaged_metric", lambda *_: pytest.fail("made again"))
    assert main(command) == 0
    again = Results(path.with_suffix(".json"))
    assert results.items() <= again.items()
    found = scaling.rows(study, again)["corollary"]
    assert [(row.m, row.S, len(row.values)) for row in found] == [(1, 8, 2), (3, 8, 2), (1, 27, 2), (3, 27, 2)]
    assert (folder / "figures" / "speedup.png").exists()


def test_one_study_can_be_run_by_its_name(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.with_stem("other").write_text(STUDY)
    source = ["--from", str(path.parent.parent)]
    assert main(["reproduce", "speedup-other", *source]) == 0
    assert len(Results(path.with_name("other.json"))) == 16
    assert not path.with_suffix(".json").exists()
    capsys.readouterr()
    assert main(["reproduce", "speedup-others", *source]) == 2
    assert "there are speedup (all of them), speedup-other, speedup-small" in capsys.readouterr().err


def test_the_command_says_what_it_does_not_take(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["--verify", "2"], ["--threads", "1"]):
        assert main(["reproduce", "speedup", *option, "--from", str(path.parent.parent)]) == 2
        assert "--scale, --seeds and --draw only" in capsys.readouterr().err
    assert main(["reproduce", "speedup", "--from", str(path.parent)]) == 2
    assert "no studies" in capsys.readouterr().err
    assert main(["reproduce", "speedup", "--draw", "--from", str(path.parent.parent)]) == 0
    assert "no runs yet" in capsys.readouterr().out


def test_a_run_that_diverges_is_infinite_and_not_fitted(path: Path) -> None:
    path.write_text(STUDY.replace("0.05", "500.0").replace("[8, 27]", "[27]"))
    point = next(load_study(path).points())
    assert scaling.averaged_metric(point, Quiet()) == np.inf
    assert scaling.fit([Row(1, S, 1, 0.1, (np.inf,)) for S in (1, 2, 3)]) is None


def test_parts_keep_f_the_same_for_any_number_of_workers() -> None:
    x = torch.randn(5, dtype=torch.float64)
    slopes = []
    for m in (1, 2, 4, 8):
        problem = build_problem({"kind": "quadratics", "d": 5, "parts": 8}, m, 3, EngineConfig(dtype="float64"))
        slopes.append(problem.objective(x)[1])
        assert problem.objective(problem.optimum)[1].norm() < 1e-12  # type: ignore[arg-type]
    assert all(torch.allclose(slope, slopes[0], atol=1e-12) for slope in slopes)
    with pytest.raises(ConfigError, match="multiple of the 3 workers"):
        build_problem({"kind": "quadratics", "parts": 8}, 3, 0, EngineConfig())


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
    assert found is not None
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
        (("K = 2", "K = -2"), "lines need K >= 0"),
        ((STUDY[STUDY.index("[[lines]]") :], "lines = []"), "one or more"),
    ],
)
def test_a_bad_study_is_refused_in_words(path: Path, change: tuple[str, str], message: str) -> None:
    path.write_text(STUDY.replace(*change))
    with pytest.raises(ConfigError, match=f"small.toml.*{message}"):
        load_study(path)


def test_the_metric_is_taken_at_every_local_step_in_turn(path: Path) -> None:
    path.write_text("measures = 4\n" + STUDY)
    strides = {(p.S, p.K): p.stride for p in load_study(path).points()}
    assert strides == {(8, 1): 2, (8, 2): 5, (27, 1): 6, (27, 2): 13, (27, 3): 20}
