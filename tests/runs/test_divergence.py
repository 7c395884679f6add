"""Runs that blow up but stay finite are marked as diverged, and only those."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from netfleet import ALGORITHMS, DivergedError, NetFleet, simulate
from netfleet.cli import main
from netfleet.runs.config import experiment
from netfleet.runs.divergence import divergence
from netfleet.runs.run import run_experiment
from netfleet.runs.tuning import tune

WILD: dict[str, Any] = {
    "rounds": 8,
    "topology": {"kind": "ring", "workers": 4},
    "problem": {"kind": "quadratics"},
    "algorithms": [{"kind": "net-fleet", "eta": 2.0, "K": 3}, {"kind": "dsgd", "eta": 0.05}],
    "evaluation": {"every": 2},
}


def record(t: int, loss: float, apart: float | None = 0.0, **more: float) -> dict[str, Any]:
    return {"round": t, "loss": loss, "consensus_error": apart, **more}


@pytest.mark.parametrize(
    ("first", "last", "what"),
    [
        (record(0, 2.3), record(60, 2.3, 1e10), "the consensus error is 1.0e\\+10 after round 60 with step size 0.5"),
        (record(0, 2.3), record(60, 3e6, 1.0), "the loss of x̄ is 3.0e\\+06"),
        (record(0, 1e-9), record(60, 1.1e6), "the loss of x̄"),
        (record(0, 2.3, None), record(60, 1e7, None), "the loss of x̄"),  # a site
    ],
)
def test_a_value_far_above_the_start_is_divergence(first: Any, last: Any, what: str) -> None:
    words = divergence([first, record(30, 1.0), last], NetFleet(eta=0.5))
    with pytest.raises(DivergedError, match=f"^NET-FLEET diverged: {what}.* Use a smaller step size"):
        raise DivergedError(words)


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (record(0, 2.3), record(60, 2.3, 2e6)),  # below the limit
        (record(0, -5e3), record(60, -1e9, 4e9)),  # a problem in large units
        (record(0, 0.0, distance2=1e6), record(60, 1e11, 1e11, distance2=1.0)),
        (record(0, 2.3), record(60, 1e-12, None)),
    ],
)
def test_what_is_in_proportion_to_the_start_is_not(first: Any, last: Any) -> None:
    assert divergence([first, record(30, 1e20, 1e20), last], NetFleet()) is None  # only the end counts
    assert divergence([], NetFleet()) is None


@pytest.mark.parametrize("engine", ["simulator", "threads"])
def test_a_run_that_blows_up_is_marked_and_keeps_its_records(tmp_path: Path, engine: str) -> None:
    table = experiment(WILD | {"engine": {"kind": engine}})
    wild, sound = run_experiment(table, tmp_path)
    assert wild.diverged is not None
    assert "after round 8 with step size 2" in wild.diverged
    assert [r["round"] for r in wild] == [0, 2, 4, 6, 8]
    assert all(math.isfinite(r["loss"]) for r in wild)
    assert sound.diverged is None
    again = run_experiment(table, tmp_path, resume=True)  # there is nothing left to run
    assert [h.diverged for h in again] == [wild.diverged, None]


@pytest.mark.usefixtures("undrawn")
def test_simulate_raises_and_the_command_says_so(tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(DivergedError, match=r"NET-FLEET diverged: the loss of x̄ is .* after round 8"):
        simulate(NetFleet(eta=2.0, K=3), problem="quadratics", topology="ring", workers=4, rounds=8)
    changes = ["problem={kind='quadratics'}", "rounds=8", "seeds=[0]", "algorithms=[{kind='net-fleet', eta=2.0, K=3}]"]
    arguments = [word for change in changes for word in ("--set", change)]
    assert main(["run", *arguments, "--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "netfleet: NET-FLEET diverged: the loss of x̄" in said.err
    assert "✗ NET-FLEET: diverged after round 8" in " ".join(said.out.split())


def test_in_tuning_a_point_that_blows_up_is_the_worst(tmp_path: Path) -> None:
    table = experiment(WILD | {"rounds": 9, "evaluation": {"every": 1}})
    for _ in range(2):  # the second time from the folder
        results = tune(table, {"eta": [0.01, 0.05, 2.0]}, tmp_path)
        for outcomes in results.values():
            scores = {dict(o.trial.point)["eta"]: o.score for o in outcomes}
            assert [eta for eta, score in scores.items() if score == -math.inf] == [2.0]


@pytest.mark.parametrize("heterogeneity", [1.0, 1e6])
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_no_sound_run_is_hit_however_different_the_workers_are(name: str, heterogeneity: float) -> None:
    problem = {"kind": "quadratics", "heterogeneity": heterogeneity, "sigma": 1.0}
    history = simulate({"kind": name, "eta": 0.01}, problem=problem, workers=6, topology="ring", rounds=60)
    assert history.rounds == 60  # and nothing was raised
