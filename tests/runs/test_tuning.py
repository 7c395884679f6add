"""Tuning: the grid, what is left behind, what is kept, and what a user reads."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from netfleet import ConfigError, load_experiment
from netfleet.cli import main
from netfleet.report.tuning import draw_tuning, edge_notes, show_score
from netfleet.runs.build import build_setting
from netfleet.runs.config import experiment
from netfleet.runs.history import History
from netfleet.runs.progress import Quiet
from netfleet.runs.run import run_experiment
from netfleet.runs.tuning import Outcome, Trial, at_the_edge, best, rounds_to, score, stages, starts, trials, tune


def quadratics(**changes: Any) -> Any:
    return experiment(
        {
            "rounds": 40,
            "topology": {"kind": "ring", "workers": 4},
            "problem": {"kind": "quadratics", "d": 3},
            "algorithms": [{"kind": "net-fleet", "K": 2}, {"kind": "dsgd", "label": "plain"}],
            "evaluation": {"every": 2},
            **changes,
        }
    )


GRID = {"eta": [0.001, 0.05, 5.0]}


def test_every_method_is_tried_on_the_same_grid() -> None:
    found = trials(quadratics(), {"eta": [0.1, 0.2], "K": [1, 3]})
    assert [t.label for t in found["NET-FLEET"]] == [
        "NET-FLEET, eta = 0.1, K = 1",
        "NET-FLEET, eta = 0.1, K = 3",
        "NET-FLEET, eta = 0.2, K = 1",
        "NET-FLEET, eta = 0.2, K = 3",
    ]
    assert [t.label for t in found["plain"]] == ["plain, eta = 0.1", "plain, eta = 0.2"]  # DSGD has no K
    assert (
        found["NET-FLEET"][3].experiment.algorithms[0] | {"eta": 0.2, "K": 3}
        == (found["NET-FLEET"][3].experiment.algorithms[0])
    )


def test_points_are_scored_on_held_out_training_rows_and_the_winner_runs_on_all() -> None:
    digits = quadratics(problem={"kind": "classification", "data": "digits"})
    tried = trials(digits, {"eta": [0.1]})["plain"][0].experiment
    assert tried.problem["validation"] == 0.1
    problem = build_setting(tried, 0).problem
    assert len(problem.data.test_y) + sum(map(len, problem.parts)) == len(problem.data.train_y)
    assert best(digits, {"plain": [Outcome(Trial("plain", (), tried), 0.9, 40)]}).problem == digits.problem
    own = quadratics(problem={"kind": "classification", "data": "digits", "validation": 0.3})
    assert trials(own, {"eta": [0.1]})["plain"][0].experiment.problem["validation"] == 0.3


def test_the_step_size_of_a_schedule_is_where_it_starts() -> None:
    halved = quadratics(algorithms=[{"kind": "dsgd", "eta": {"kind": "halve", "start": 0.1, "every": 10}}])
    tried = trials(halved, {"eta": [0.4]})["DSGD"][0].experiment.algorithms[0]
    assert tried["eta"] == {"kind": "halve", "start": 0.4, "every": 10}


def test_the_best_point_is_found_and_divergence_is_worst(tmp_path: Path) -> None:
    results = tune(quadratics(rounds=400), GRID, tmp_path)
    for outcomes in results.values():
        assert [dict(o.trial.point)["eta"] for o in outcomes] == [0.05, 0.001, 5.0]
        assert outcomes[-1].score == -math.inf
        assert all(o.rounds == 400 for o in outcomes)
    chosen = best(quadratics(), results)
    assert [table["eta"] for table in chosen.algorithms] == [0.05, 0.05]
    assert chosen.algorithms[1]["label"] == "plain"


def test_what_was_tried_is_not_tried_again(tmp_path: Path) -> None:
    class Counting(Quiet):
        rounds = 0

        def round(self, t: int) -> None:
            Counting.rounds += 1

    first = tune(quadratics(), {"eta": [0.01, 0.05]}, tmp_path, display=Counting())
    made = Counting.rounds
    again = tune(quadratics(), {"eta": [0.01, 0.05]}, tmp_path, display=Counting())
    assert made == 2 * 2 * 40
    assert Counting.rounds == made
    assert {m: [o.score for o in r] for m, r in first.items()} == {m: [o.score for o in r] for m, r in again.items()}


def test_halving_gives_the_winner_the_run_that_the_grid_gives_it(tmp_path: Path) -> None:
    grid = {"eta": [0.001, 0.002, 0.004, 0.01, 0.03, 0.05]}
    whole, halved = tune(quadratics(), grid, tmp_path / "a"), tune(quadratics(), grid, tmp_path / "b", halving=True)
    for method in whole:
        assert whole[method][0].trial.point == halved[method][0].trial.point
        assert whole[method][0].score == halved[method][0].score
        assert sorted(o.rounds for o in halved[method]) == [6, 6, 6, 6, 14, 40]
    run = halved["NET-FLEET"][0].trial.experiment.runs()[0]
    kept = History.load(tmp_path / "b" / run.hash[:16])
    alone = run_experiment(halved["NET-FLEET"][0].trial.experiment, tmp_path / "c")[0]
    assert kept.timeless() == alone.timeless()


@pytest.mark.parametrize(
    ("rounds", "points", "every", "halving", "expected"),
    [
        (90, 9, 1, True, [10, 30, 90]),
        (90, 9, 1, False, [90]),
        (90, 1, 1, True, [90]),
        (100, 5, 10, True, [20, 40, 100]),
        (10, 9, 10, True, [10]),
        (7, 27, 2, True, [2, 4, 7]),
    ],
)
def test_stages(rounds: int, points: int, every: int, halving: bool, expected: list[int]) -> None:
    assert stages(rounds, points, every, halving) == expected


def test_runs_are_counted_ahead() -> None:
    assert starts(quadratics(), {"eta": [0.1] * 6}) == 12
    assert starts(quadratics(seeds=[0, 1]), {"eta": [0.1, 0.2]}, halving=True) == 2 * 2 * (2 + 1)


def history(*accuracies: float | None) -> History:
    records = [{"round": t, "accuracy": a, "loss": 2.0 - t} for t, a in enumerate(accuracies, start=1)]
    return History({}, records=records)


def test_the_last_tenth_of_the_rounds_counts() -> None:
    assert score(history(*([0.0] * 17), 0.5, 0.7, 0.9)) == pytest.approx(0.7)
    assert score(history(None, None)) == 0.0  # −loss of the last
    diverged = replace(history(0.9), diverged="it did")
    assert score(diverged) == -math.inf
    assert show_score(-math.inf) == "diverged"
    assert show_score(0.5) == "50.00 %"
    assert show_score(-2.0) == "loss 2"


def test_a_target_is_reached_at_the_first_record_that_has_it() -> None:
    assert rounds_to(history(0.1, 0.9, 0.7, 0.95), 0.8) == history(0.1, 0.9).records[1]["round"]
    assert rounds_to(history(0.1, 0.5), 0.8) is None
    losses = History({}, records=[{"round": t, "loss": loss} for t, loss in enumerate((2.0, 1.0, -3.0))])
    assert [rounds_to(losses, target) for target in (2.0, 0.5, -3.0, -3.1)] == [0, 2, 2, None]
    with pytest.raises(ConfigError, match=r"above 0 and at most 1 \(0.9 for 90 %\), got 90"):
        rounds_to(history(0.5), 90)


def test_with_a_target_the_fastest_is_best(tmp_path: Path) -> None:
    grid = {"eta": [0.01, 0.05, 0.02]}
    plain = tune(quadratics(), grid, tmp_path)["plain"]
    middle = sorted(-o.score for o in plain)[1]
    aimed = tune(quadratics(), grid, tmp_path, target=middle)["plain"]
    assert [dict(o.trial.point)["eta"] for o in aimed] == [0.05, 0.02, 0.01]
    assert aimed[0].reached < aimed[1].reached  # type: ignore[operator]
    assert aimed[2].reached is None
    trial = aimed[0].trial
    slow, fast, never = (Outcome(trial, s, 9, r) for s, r in ((0.99, 8.0), (0.9, 2.0), (1.0, None)))
    assert sorted([slow, never, fast], key=lambda o: o.rank) == [fast, slow, never]
    with pytest.raises(ConfigError, match="the target must be a number"):
        tune(quadratics(), grid, target=math.nan)


def late() -> Any:
    """What starts fast does not end best: the noise stays where the step size is large."""
    noisy, plain = {"kind": "quadratics", "d": 3, "sigma": 0.5}, [{"kind": "dsgd"}]
    return quadratics(rounds=54, problem=noisy, algorithms=plain, evaluation={"every": 1})


LATE = {"eta": [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}


class Stopping(Quiet):
    """A user who presses Ctrl-C in some round."""

    def __init__(self, after: int) -> None:
        self.left = after

    def round(self, t: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("target", [None, 1.0])
def test_halving_ends_the_same_again_and_after_an_interruption(tmp_path: Path, target: float | None) -> None:
    first = tune(late(), LATE, tmp_path / "whole", halving=True, target=target)
    assert tune(late(), LATE, tmp_path / "whole", halving=True, target=target) == first
    for after in (5, 60, 100):  # in each of the stages
        out = tmp_path / str(after)
        with pytest.raises(KeyboardInterrupt):
            tune(late(), LATE, out, halving=True, target=target, display=Stopping(after))
        assert tune(late(), LATE, out, halving=True, target=target) == first


def test_halving_among_runs_of_the_whole_grid_leaves_the_same_behind(tmp_path: Path) -> None:
    alone = tune(late(), LATE, tmp_path / "alone", halving=True)
    tune(late(), LATE, tmp_path / "both")
    assert tune(late(), LATE, tmp_path / "both", halving=True) == alone


def test_halving_does_not_change_what_a_run_records(tmp_path: Path) -> None:
    dear = quadratics(evaluation={"every": 2, "full_every": 20})
    trial = tune(dear, {"eta": [0.01, 0.02, 0.05]}, tmp_path, halving=True)["plain"][0].trial
    kept = History.load(tmp_path / trial.experiment.runs()[0].hash[:16])
    assert [r["round"] for r in kept if "grad_norm2" in r] == [0, 20, 40]
    assert kept.timeless() == run_experiment(trial.experiment)[0].timeless()


def test_the_setting_of_a_seed_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(
        "netfleet.runs.build.build_setting",
        lambda e, seed, **given: made.append(seed) or build_setting(e, seed, **given),
    )
    tune(quadratics(seeds=[0, 1, 2], rounds=2), {"eta": [0.01, 0.05]})
    assert sorted(made) == [0, 1, 2]


def test_a_method_that_always_diverges_has_no_best_point(tmp_path: Path, capsys: Any) -> None:
    arguments = ["--set", "rounds=60", "--set", "seeds=[0]", "--grid", "eta=1e12,1e15", "--out", str(tmp_path)]
    assert main(["tune", *arguments]) == 1
    said = capsys.readouterr().out
    assert "best" not in said.split("NET-FLEET")[1].split("LD-SGD")[0]
    assert "NET-FLEET diverged at every point; try a smaller eta" in said
    assert not (tmp_path / "tuned.toml").exists()


def test_a_best_value_at_the_edge_is_pointed_out(tmp_path: Path) -> None:
    results = tune(quadratics(), {"eta": [0.001, 0.05]}, tmp_path)
    assert at_the_edge(results["plain"], {"eta": [0.001, 0.05]}) == ["eta"]
    assert at_the_edge(results["plain"], {"eta": [0.05]}) == []
    assert edge_notes(results, {"eta": [0.001, 0.05]})[0] == (
        "NET-FLEET: the best eta is at the edge of the grid; try values beyond it"
    )
    figure = draw_tuning(results, "eta")
    assert [line.get_label() for line in figure.axes[0].lines if line.get_linestyle() != "None"] == [
        "NET-FLEET",
        "plain",
    ]
    assert figure.axes[0].get_xscale() == "log"


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_command_writes_an_experiment_that_runs(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "small.toml"
    file.write_text(
        'rounds = 10\n[topology]\nkind = "ring"\nworkers = 4\n[problem]\nkind = "quadratics"\n'
        '[[algorithms]]\nkind = "net-fleet"\nK = 2\n'
    )
    out = tmp_path / "out"
    assert main(["tune", str(file), "--grid", "eta=0.01,0.05", "--out", str(out), "--target", "1e9"]) == 0
    said = capsys.readouterr().out
    assert "target after" in said
    assert "eta = 0.05" in said
    assert "at the edge of the grid" in said
    assert (out / "tuned-eta.png").stat().st_size > 1000
    assert load_experiment(out / "tuned.toml").algorithms[0]["eta"] == 0.05
    assert main(["run", str(out / "tuned.toml"), "--out", str(tmp_path / "again")]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--grid", "etta=0.1"], "no algorithm of the experiment has a parameter 'etta' (did you mean 'eta'?)"),
        (["--grid", "eta"], "--grid takes NAME=A,B"),
        (["--grid", "eta=a,b"], "--grid takes NAME=A,B"),
        (["--grid", "eta=0.1", "--grid", "eta=0.2"], "eta was given before; give all its values at once"),
        (["--grid", "eta=-1"], "step size must be a finite number above 0, got -1"),
    ],
)
def test_a_bad_grid_is_refused(arguments: list[str], words: str, tmp_path: Path, capsys: Any) -> None:
    assert main(["tune", *arguments, "--out", str(tmp_path / "out")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


class Forbidden(Quiet):
    """A display of runs that must not be begun."""

    def begin(self, label: str, start: int, rounds: int) -> None:
        pytest.fail(f"{label} was begun")


def test_what_the_last_point_would_be_refused_for_is_found_before_the_first(tmp_path: Path) -> None:
    algorithms = [{"kind": "net-fleet", "K": 2}, {"kind": "d2"}]
    torus = quadratics(topology={"kind": "torus", "workers": 16, "weights": "metropolis"}, algorithms=algorithms)
    with pytest.raises(ConfigError, match="D² diverges if W has an eigenvalue below"):
        tune(torus, {"eta": [0.01]}, tmp_path / "out", display=Forbidden())
    labelled = quadratics(problem={"data": "digits", "model": "softmax"})
    with pytest.raises(ConfigError, match=r"above 0 and at most 1 \(0.9 for 90 %\), got 90"):
        tune(labelled, {"eta": [0.01]}, tmp_path / "out", target=90, display=Forbidden())
    assert not (tmp_path / "out").exists()
