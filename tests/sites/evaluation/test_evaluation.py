"""Two sites train together and alone, compare the models on their own test rows, and give what their policies allow."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score

import netfleet as nf
from netfleet.cli import main
from netfleet.errors import ConfigError, DataError, PolicyError
from netfleet.files import locked
from netfleet.prediction.model_file import read_info, read_model, write_model
from netfleet.problems.module import ModuleProblem
from netfleet.problems.scoring import METRICS
from netfleet.runs.config import experiment
from netfleet.runs.history import History
from netfleet.runs.progress import Quiet
from netfleet.sites.evaluation.baseline import constant_outputs
from netfleet.sites.evaluation.bootstrap import draw_rows, paired, resampled
from netfleet.sites.evaluation.evaluate import evaluate_site, why_withheld
from netfleet.sites.evaluation.matrix import evaluate_plan, make_matrix
from netfleet.sites.evaluation.results import Interval, read_evaluation, write_evaluation
from netfleet.sites.evaluation.verdict import compare
from netfleet.sites.planning.folders import load_site
from netfleet.sites.policy.settings import ShowRules
from netfleet.sites.policy.start import open_site
from netfleet.sites.runtime.alone import alone_problem, train_alone
from netfleet.sites.runtime.step_record import StepRecord
from support.site_memory import run_in_memory

ROUNDS, K, ETA = 6, 3, 0.1


def table(folder: Path, **problem: Any) -> dict[str, Any]:
    data = {"kind": "csv", "path": str(folder / "rows.csv"), "group": "site", "target": "sick", "test": 0.5}
    data |= {"features": ["a", "b"], "positive_above": 0.5, "scale": "sites"}
    kind = {"kind": "classification", "data": data, "partition": "sites", "model": "linear", "loss": "bce", "batch": 4}
    return {
        "rounds": ROUNDS,
        "topology": {"kind": "complete", "workers": 2},
        "problem": kind | problem,
        "algorithms": [{"kind": "net-fleet", "K": K, "eta": ETA}],
        "evaluation": {"every": 1},
        "engine": {"dtype": "float64"},
    }


def write_rows(folder: Path) -> None:
    draw, lines = np.random.default_rng(0), ["a,b,site,sick"]
    for i in range(80):
        a, b = draw.normal(size=2)
        lines.append(f"{a},{b},s{i % 2},{int(a + draw.normal() > 0)}")
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a plan whose two sites have trained, together and alone."""
    folder = tmp_path_factory.mktemp("evaluated")
    write_rows(folder)
    run_in_memory(folder, table(folder), 2)
    for name in ("s0", "s1"):
        train_alone(folder / "plan" / name, *load_site(folder / "plan" / name), Quiet())
    return folder / "plan"


@pytest.fixture
def plan(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "plan")


def show(folder: Path, **rules: Any) -> None:
    lines = [f"{key} = {str(value).lower()}" for key, value in rules.items()]
    (folder / "policy.toml").write_text("\n".join(["[show]", *lines]))


def test_alone_is_sgd_with_the_same_budget(trained: Path) -> None:
    """The pseudo-code of SGD on the site's own mini-batches, as NET-FLEET draws them."""
    problem = alone_problem(*load_site(trained / "s1"))
    x = problem.start()[None]
    g = problem.grad(x, problem.sample(0, 0))
    for t in range(ROUNDS):
        for k in range(1, K + 1):
            x = x - ETA * g
            g = problem.grad(x, problem.sample(t, k))
    tensors = load_file(trained / "s1" / "model-alone.safetensors")
    found = torch.cat([values.flatten() for values in tensors.values()])
    assert torch.allclose(found, x[0], rtol=0, atol=1e-12)
    assert read_info(trained / "s1" / "model-alone.safetensors").origin.kind == "alone"


def test_alone_drops_the_weights_of_sites(tmp_path: Path) -> None:
    from support.site_processes import plan_sites

    write_rows(tmp_path)
    plan_sites(tmp_path, table(tmp_path, weights=[1, 9]), 2)
    assert alone_problem(*load_site(tmp_path / "plan" / "s0")).shares is None


def test_scores_are_those_of_the_sites_own_test_rows(plan: Path) -> None:
    found = evaluate_site(plan / "s0", open_site(plan / "s0"))
    problem = alone_problem(*load_site(plan / "s0"))
    assert isinstance(problem, ModuleProblem)
    assert problem.test_parts is not None
    rows = problem.test_parts[0]
    y = problem.test_targets[torch.from_numpy(rows)]  # type: ignore[index]
    assert found.rows == len(rows)
    scores = {model.name: model.scores for model in found.models}
    assert list(scores) == ["joint", "alone", "majority"]
    for name, file in (("joint", "model"), ("alone", "model-alone")):
        module = problem.module(problem.start())
        module.load_state_dict(load_file(plan / "s0" / f"{file}.safetensors"))
        outputs = module(problem.data.test_x[rows].double()).detach()[:, 0]  # type: ignore[index, call-overload]
        assert scores[name]["auroc"].value == pytest.approx(roc_auc_score(y.numpy(), outputs.numpy()))
        assert scores[name]["accuracy"].value == pytest.approx(((outputs > 0) == (y > 0.5)).double().mean().item())
        interval = scores[name]["auroc"]
        assert interval.low <= interval.value <= interval.high  # type: ignore[operator]
    assert found.comparison is not None
    assert found.comparison.metric == "auroc"
    difference = scores["joint"]["auroc"].value - scores["alone"]["auroc"].value  # type: ignore[operator]
    assert found.comparison.better.value == pytest.approx(difference)


def test_the_model_of_a_site_predicts_new_rows(plan: Path) -> None:
    model = nf.load_model(plan / "s0" / "model.safetensors")
    assert model.info.classes == ("sick <= 0.5", "sick > 0.5")
    said = model.predict(np.array([[5.0, 0.0], [-5.0, 0.0]]))
    assert said.values.tolist() == ["sick > 0.5", "sick <= 0.5"]
    assert set(model.info.metrics) == {"accuracy", "loss"}


def test_the_best_model_by_validation_rows_is_kept(tmp_path: Path) -> None:
    write_rows(tmp_path)
    run_in_memory(tmp_path, table(tmp_path, validation=0.3, batch=1), 2)
    for name in ("s0", "s1"):
        folder = tmp_path / "plan" / name
        losses = [record["loss"] for record in History.load(folder / "run")]
        origin = read_info(folder / "model-best.safetensors").origin
        assert (origin.round, origin.best) == (int(np.argmin(losses)), True)
        assert read_info(folder / "model.safetensors").origin.round == ROUNDS
    found = evaluate_site(folder, open_site(folder))  # on test rows, which no validation row is
    assert [model.name for model in found.models] == ["joint", "joint, best", "majority"]
    assert found.rows == 20
    assert "netfleet node DIR --alone" in found.notes[0]


def test_test_rows_do_not_choose_a_model(trained: Path) -> None:
    assert not (trained / "s0" / "model-best.safetensors").exists()


def test_the_matrix_has_every_model_on_every_site(plan: Path, capsys: Any) -> None:
    assert main(["evaluate", str(plan)]) == 0
    assert "s1: " in capsys.readouterr().out
    matrix = json.loads((plan / "evaluation.json").read_text())
    rows = {row["model"]: row["cells"] for row in matrix["rows"]}
    assert list(rows) == ["joint of s0", "joint of s1", "alone of s0", "alone of s1", "baseline"]
    assert all(set(cells) == {"s0", "s1"} for cells in rows.values())
    own = read_evaluation(plan / "s1" / "evaluation.json")
    assert rows["joint of s1"]["s1"]["value"] == own.models[0].scores["auroc"].value
    page = (plan / "evaluation.html").read_text()
    assert "Did it help?" in page
    assert f"s0\n{own.rows} test rows" in page


def test_policies_keep_models_and_scores(plan: Path) -> None:
    show(plan / "s0", model_to_others=False, alone_model_to_others=False)
    show(plan / "s1", evaluation_to_operator=False)
    matrix = evaluate_plan(plan)
    assert [row.model for row in matrix.rows if "s0" in row.cells] == [
        "joint of s0", "joint of s1", "alone of s0", "alone of s1", "baseline"
    ]  # fmt: skip
    assert all("s1" not in row.cells for row in matrix.rows)
    assert "show.evaluation_to_operator" in matrix.absent["s1"]
    text = (plan / "s1" / "evaluation.json").read_text()
    assert "auroc" not in text.replace('"metric": "auroc"', "")
    assert read_evaluation(plan / "s1" / "evaluation.json").models == ()
    left_out = evaluate_site(plan / "s1", open_site(plan / "s1"), [plan / "s0"]).left_out
    assert left_out == {
        "joint of s0": "s0's policy: show.model_to_others is false",
        "alone of s0": "s0's policy: show.alone_model_to_others is false",
    }


def test_few_test_rows_and_private_plans_give_no_scores(tmp_path: Path) -> None:
    plain = experiment(table(tmp_path))
    private = experiment(table(tmp_path) | {"privacy": {"clip": 1.0, "noise": 1.0}})
    assert why_withheld(ShowRules(least_test_rows=20), plain, 20) == ""
    assert "least_test_rows" in why_withheld(ShowRules(least_test_rows=21), plain, 20)
    assert "privacy" in why_withheld(ShowRules(), private, 20)
    assert why_withheld(ShowRules(evaluation_to_operator=True), private, 20) == ""


def test_collected_evaluations_make_the_same_matrix(plan: Path) -> None:
    expected = evaluate_plan(plan)
    (plan / "operator" / "evaluations").mkdir()
    for name in ("s0", "s1"):
        shutil.move(plan / name / "evaluation.json", plan / "operator" / "evaluations" / f"{name}.json")
        shutil.rmtree(plan / name)  # the sites are on other machines
    assert evaluate_plan(plan) == expected
    shutil.copy(plan / "operator/evaluations/s0.json", plan / "operator/evaluations/s1.json")
    with pytest.raises(DataError, match="is of s0 in run"):
        evaluate_plan(plan)
    (plan / "operator/evaluations/s1.json").unlink()
    assert evaluate_plan(plan).absent == {"s1": "nothing has come from it"}


def test_a_model_given_by_people_is_evaluated_and_one_of_another_run_is_not(plan: Path) -> None:
    given = plan / "s0" / "models"
    given.mkdir()
    shutil.copy(plan / "s1" / "model.safetensors", given / "theirs.safetensors")
    info, tensors = read_model(plan / "s1" / "model.safetensors")
    stays, old = replace(info.origin, stays=True), replace(info.origin, run="0" * 64)
    write_model(given / "private.safetensors", replace(info, origin=stays), tensors)
    write_model(given / "old.safetensors", replace(info, origin=old), tensors)
    write_model(given / "other.safetensors", info, {"w": torch.zeros(1)})
    found = evaluate_site(plan / "s0", open_site(plan / "s0"))
    assert "theirs" in [model.name for model in found.models]
    assert "stays at s1" in found.left_out["private"]
    assert "is of run 000000000000" in found.left_out["old"]
    assert "not a model of this plan" in found.left_out["other"]


def test_changed_rows_are_refused(plan: Path, trained: Path) -> None:
    path = trained.parent / "rows.csv"
    before = path.read_text()
    try:
        path.write_text(before.replace("s0,0", "s0,1", 1))
        with pytest.raises(DataError, match="not those of its last start"):
            evaluate_site(plan / "s0", open_site(plan / "s0"))
        assert evaluate_site(plan / "s0", open_site(plan / "s0"), data_changed=True).models
    finally:
        path.write_text(before)


def test_nothing_is_evaluated_before_the_training_or_against_the_policy(plan: Path) -> None:
    (plan / "s0" / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="no joint model to evaluate"):
        evaluate_site(plan / "s0", open_site(plan / "s0"))
    (plan / "s0" / "policy.toml").write_text('[training]\nmethods = ["k-gt"]')
    with pytest.raises(PolicyError, match=r"training\.methods"):
        open_site(plan / "s0")


def test_alone_has_no_network(plan: Path, capsys: Any) -> None:
    assert main(["node", str(plan / "s0"), "--alone", "--rejoin"]) == 2
    assert "--rejoin is about one" in capsys.readouterr().err


def test_an_evaluation_is_read_as_it_was_written(plan: Path) -> None:
    found = evaluate_site(plan / "s0", open_site(plan / "s0"))
    write_evaluation(found, plan / "it.json")
    assert read_evaluation(plan / "it.json") == found
    (plan / "it.json").write_text("{}")
    with pytest.raises(DataError, match="not a file that netfleet evaluate wrote"):
        read_evaluation(plan / "it.json")
    assert make_matrix(["s0"], {}, found.run).absent == {"s0": "nothing has come from it"}


@pytest.mark.parametrize(
    ("better", "rows", "rarest", "verdict"),
    [
        (Interval(0.1, 0.05, 0.2), 50, 20, "it helped"),
        (Interval(0.1, -0.05, 0.2), 50, 20, "too close to call"),
        (Interval(-0.1, -0.2, -0.05), 50, 20, "it did not help"),
        (Interval(0.1, 0.05, 0.2), 9, None, "too close to call"),
        (Interval(0.1, 0.05, 0.2), 50, 4, "too close to call"),
        (Interval(0.1), 50, 20, "too close to call"),
    ],
)
def test_the_verdict_follows_the_interval(better: Interval, rows: int, rarest: int | None, verdict: str) -> None:
    found = compare("auroc", better, rows, rarest)
    assert found.verdict == verdict
    assert found.words.lower().startswith(verdict)


def test_draws_keep_the_number_of_each_class_and_pair_the_models() -> None:
    strata = np.array([0] * 7 + [1] * 3)
    draws = draw_rows(strata, seed=0, count=20)
    assert (torch.from_numpy(strata)[draws].sum(1) == 3).all()
    assert torch.equal(draws, draw_rows(strata, seed=0, count=20))
    outputs = torch.randn(10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    targets = torch.from_numpy(strata).double()
    again = resampled(METRICS["auroc"], outputs, targets, draws)
    value = METRICS["auroc"](outputs, targets)
    assert value is not None
    assert len(set(again)) > 1
    assert paired((value, again), (value, again), 1) == Interval(0.0, 0.0, 0.0)
    assert paired((1.0, [1.0] * 3), (3.0, [3.0] * 3), -1) == Interval(2.0, 2.0, 2.0)


def test_the_baseline_says_the_larger_class_of_the_training_rows(trained: Path) -> None:
    problem = alone_problem(*load_site(trained / "s0"))
    assert isinstance(problem, ModuleProblem)
    outputs = constant_outputs(problem, 0, 5)
    assert outputs is not None
    share = problem.data.train_y[torch.from_numpy(problem.parts[0])].double().mean()  # type: ignore[index]
    assert torch.allclose(torch.sigmoid(outputs), share.expand(5, 1))


def test_alone_takes_as_many_steps_as_the_joint_training_did(tmp_path: Path) -> None:
    from support.site_processes import plan_sites

    write_rows(tmp_path)
    plan_sites(tmp_path, table(tmp_path) | {"time_box": {"seconds": 60.0}}, 2)
    folder, record = tmp_path / "plan" / "s0", StepRecord(tmp_path / "plan" / "s0" / "run")
    (folder / "run").mkdir()
    taken = [1, 3, 2, 1, 2, 3]
    for t, steps in enumerate(taken):
        record.write(t, steps)
    site, settings = load_site(folder)
    with locked(folder), pytest.raises(ConfigError, match="wait for its end"):  # as netfleet node does
        train_alone(folder, site, settings, Quiet())
    train_alone(folder, site, settings, Quiet())
    problem = alone_problem(site, settings)
    x = problem.start()[None]
    g = problem.grad(x, problem.sample(0, 0))
    for t, steps in enumerate(taken):
        for k in range(1, steps + 1):
            x = x - ETA * g
            g = problem.grad(x, problem.sample(t, k))
    found = torch.cat([values.flatten() for values in load_file(folder / "model-alone.safetensors").values()])
    assert torch.allclose(found, x[0], rtol=0, atol=1e-12)
