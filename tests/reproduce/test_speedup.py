"""The study of linear speedup: its points, that they are kept, the fit and the picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from netfleet import ConfigError, randomness
from netfleet.cli import main
from netfleet.problems.synthetic import Quadratics
from netfleet.runs.build import build_problem
from netfleet.runs.config import EngineConfig
from netfleet.runs.metrics import consensus_error
from netfleet.runs.progress import Quiet
from netfleet.theory import bounds as theory
from reproduce.speedup import figure as fits
from reproduce.speedup import study as measured_points
from reproduce.speedup.figure import Row
from reproduce.speedup.study import Results, load_study

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


@pytest.mark.slow
def test_points_are_kept_and_not_made_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = path.parent.parent
    command = ["reproduce", "speedup", "--from", str(folder), "--work", str(folder / "work")]
    assert main([*command, "--seeds", "1"]) == 0
    study, results = load_study(path), Results(path.with_suffix(".json"))
    assert len(results) == 8
    assert (folder / "work" / "1-seeds" / "speedup.png").exists()
    assert main(command) == 0
    assert len(Results(path.with_suffix(".json"))) == 16
    said = capsys.readouterr().out
    assert "exponent of m" in said
    assert "16 runs of NET-FLEET" in said
    monkeypatch.setattr(measured_points, "averaged_metric", lambda *_: pytest.fail("made again"))
    assert main(command) == 0
    again = Results(path.with_suffix(".json"))
    assert results.items() <= again.items()
    found = fits.rows(study, again)["corollary"]
    assert [(row.m, row.S, len(row.values)) for row in found] == [(1, 8, 2), (3, 8, 2), (1, 27, 2), (3, 27, 2)]
    assert (folder / "figures" / "speedup.png").exists()


def test_an_unfinished_study_says_so(path: Path) -> None:
    study, results = load_study(path), Results(path.with_suffix(".json"))
    assert fits.measured([(study, results)]) == []
    points = list(study.points())
    for point in points:
        results.keep(point, 1.0)
    assert [s.title for s, _ in fits.measured([(study, results)])] == ["small"]
    results.pop(points[0].hash)
    assert [s.title for s, _ in fits.measured([(study, results)])] == ["small (15 of 16 runs)"]


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
        assert "speedup takes --seeds and --draw only" in capsys.readouterr().err
    assert main(["reproduce", "speedup", "--from", str(path.parent)]) == 2
    assert "no studies" in capsys.readouterr().err
    assert main(["reproduce", "speedup", "--draw", "--from", str(path.parent.parent)]) == 0
    assert "no runs yet" in capsys.readouterr().out


def test_a_run_that_diverges_is_infinite_and_not_fitted(path: Path) -> None:
    path.write_text(STUDY.replace("0.05", "500.0").replace("[8, 27]", "[27]"))
    point = next(load_study(path).points())
    assert measured_points.averaged_metric(point, Quiet()) == np.inf
    assert fits.fit([Row(1, S, 1, 0.1, (np.inf,)) for S in (1, 2, 3)]) is None


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
    watched = measured_points.Watched(problem, stride=2)
    models = torch.randn(5, 2, 3)
    for x in models:
        assert watched.problem.grad(x, problem.sample(0, 0)).equal(problem.full_grad(x))
    expected = [
        problem.objective(x.mean(0))[1].square().sum() + problem.smoothness**2 * consensus_error(x)  # type: ignore[operator]
        for x in models[1::2]  # the middle of each stretch
    ]
    assert watched.total / watched.count == pytest.approx(np.mean(expected), rel=1e-5)


def test_the_fit_tells_workers_from_steps_and_how_far_seeds_differ() -> None:
    rng = np.random.default_rng(0)

    def value(m: int, S: int) -> float:
        return float(3 * m**-0.3 * S**-0.6 * np.exp(0.02 * rng.normal()))

    pairs = [(m, S) for m in (1, 4, 16) for S in (10, 100, 1000)]
    found = fits.fit([Row(m, S, 1, 0.1, (value(m, S), value(m, S), value(m, S))) for m, S in pairs])
    assert found is not None
    for law, exponent in ((found.workers, -0.3), (found.steps, -0.6)):
        assert law is not None
        assert law.low < exponent < law.high
        assert law.high - law.low < 0.2
    assert -0.6 < found.work.mean < -0.3


def test_a_fit_needs_what_it_tells_apart() -> None:
    exact = [Row(m, 100, 1, 0.1, (m**-0.5,)) for m in (1, 4, 16, 64)]  # one S only
    found = fits.fit(exact)
    assert found is not None
    assert (found.workers, found.steps, found.work.seeds) == (None, None, 1)
    assert found.work.mean == pytest.approx(-0.5)
    assert found.at(400) == pytest.approx(0.5)
    assert fits.fit(exact[:2]) is None


def test_a_law_passes_amid_the_means_that_are_drawn() -> None:
    uneven = [Row(m, 100, 1, 0.1, (m**-0.5, 9 * m**-0.5)) for m in (1, 4, 16)]  # seeds that differ much
    found = fits.fit(uneven)
    assert found is not None
    for row in uneven:
        assert found.at(row.work) == pytest.approx(row.mean)


def test_rows_inside_the_corollary() -> None:
    assert Row(4, 512, 2, 0.1, ()).inside()
    assert not Row(4, 511, 2, 0.1, ()).inside()
    assert not Row(4, 512, 2, 0.1, ()).inside(16)
    assert Row(4, 8192, 2, 0.1, ()).inside(16)


def test_a_huge_metric_has_diverged(path: Path) -> None:
    study, results = load_study(path), Results(path.with_suffix(".json"))
    for value, point in zip((1e9, *[1.0] * 15), study.points(), strict=True):
        results.keep(point, value)
    values = [v for rows in fits.rows(study, results).values() for row in rows for v in row.values]
    assert sorted(values) == [1.0] * 15 + [np.inf]


def test_every_line_reaches_the_target_with_the_fewest_workers() -> None:
    lines = {
        name: [Row(m, S, 1, 0.1, (c * S**-0.5,)) for m in (1, 4) for S in (4, 100)] for name, c in (("a", 1), ("b", 2))
    }
    assert fits.reachable(lines) == pytest.approx(0.2)
    needed = fits.rounds_to(lines["b"], fits.reachable(lines))
    assert {m: need[0] for m, need in needed.items() if need} == {1: pytest.approx(100), 4: pytest.approx(100)}


def test_runs_stay_below_the_theorem(path: Path) -> None:
    study, results = load_study(path), Results(path.with_suffix(".json"))
    for point in study.points():
        results.keep(point, measured_points.averaged_metric(point, Quiet()))
    margin = measured_points.margin(study, results)
    assert margin is not None
    assert margin[0] == 16
    assert 0 < margin[1] < 1
    point = next(study.points())
    results.keep(point, 1e9)
    assert measured_points.margin(study, results)[1] > 1e3  # type: ignore[index]


def test_noise_drawn_ahead_is_the_noise_of_its_address() -> None:
    problem = Quadratics(3, d=4, sigma=0.5, seed=2, dtype=torch.float64)
    x = torch.zeros(3, 4, dtype=torch.float64)
    for t, k in ((0, 1), (1, 1), (0, 2), (5000, 1), (3, 1)):
        noise = randomness.normal("noise", 2, np.arange(3)[:, None], t, k, np.arange(4)[None]) * 0.25
        for f in (problem, problem.at([1])):
            rows = list(f.workers)
            assert torch.equal(f.grad(x[rows], f.sample(t, k)), f.full_grad(x[rows]) + torch.from_numpy(noise)[rows])


def test_centred_quadratics_have_one_minimum_whatever_their_heterogeneity() -> None:
    made = [Quadratics(5, d=3, heterogeneity=h, centred=True, seed=1, dtype=torch.float64) for h in (0.0, 50.0)]
    assert torch.allclose(made[0].optimum, made[1].optimum, atol=1e-10)  # type: ignore[arg-type]
    assert (made[1].b - made[1].optimum).norm() > 50


def test_rounds_to_a_target_are_interpolated() -> None:
    measured = [Row(m, S, 1, 0.1, ((m * S) ** -0.5,)) for m in (1, 4) for S in (10, 100, 1000)]
    assert fits.rounds_to(measured, 0.05) == {1: (pytest.approx(400), False), 4: (pytest.approx(100), False)}
    assert fits.rounds_to(measured, 0.2) == {1: (pytest.approx(25), False), 4: (pytest.approx(10), True)}
    assert fits.rounds_to(measured, 0.02) == {1: None, 4: (pytest.approx(625), False)}
    assert fits.rounds_to(measured, 0.01) == {1: None, 4: None}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[1, 3]", "[0, 3]"), "workers must be a list of whole numbers"),
        (("[8, 27]", "[]"), "rounds must be a list"),
        (("0.05", "-1.0"), "scale > 0"),
        (("seeds", "fixed = 9\nseeds"), "fixed, the rounds that are drawn"),
        (("scale", "scales"), "unknown key 'scales'"),
        (("K = 2", "K = -2"), "lines need K >= 0"),
        ((STUDY[STUDY.index("[[lines]]") :], "lines = []"), "one or more"),
        ((STUDY[STUDY.index("[[lines]]") :], "lines = [3]"), "one or more"),
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


def test_results_that_cannot_be_read_are_said_so(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"a": 1,')
    with pytest.raises(ConfigError, match="does not hold a study's results"):
        Results(tmp_path / "broken.json")
