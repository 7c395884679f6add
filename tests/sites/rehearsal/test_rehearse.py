"""A rehearsal of two sites beside what happens at them; and what is predicted where their rows are elsewhere."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from netfleet.cli import main
from netfleet.data.statistics import merge, read_statistics
from netfleet.errors import ConfigError, DataError
from netfleet.runs.config import experiment
from netfleet.runs.history import History
from netfleet.runs.progress import Quiet
from netfleet.sites.costs.speed import Speed
from netfleet.sites.doctor.print_report import print_json
from netfleet.sites.doctor.probe import Diagnosis
from netfleet.sites.evaluation.matrix import evaluate_plan
from netfleet.sites.planning.folders import load_plan, load_site
from netfleet.sites.rehearsal.done import Done
from netfleet.sites.rehearsal.federation import open_federation
from netfleet.sites.rehearsal.inputs import Known
from netfleet.sites.rehearsal.measurement import Measurement, read_measurements, write_measurement
from netfleet.sites.rehearsal.outcome import compare
from netfleet.sites.rehearsal.rehearse import rehearse
from netfleet.sites.rehearsal.results import Rehearsal, read_rehearsal, write_rehearsal
from netfleet.sites.rehearsal.stand_in import AUROC, Rows, made_up
from netfleet.sites.rehearsal.timeline import Link
from netfleet.sites.runtime.alone import train_alone
from support.doctors import Hospital
from support.site_memory import run_planned
from support.site_processes import plan_sites

SPEEDS = {f"s{i}": Measurement(f"s{i}", Speed(0.01, 0.02)) for i in range(3)}


def table(folder: Path, **more: Any) -> dict[str, Any]:
    data = {"kind": "csv", "path": str(folder / "rows.csv"), "group": "site", "target": "sick", "test": 0.5}
    data |= {"features": {"a": "number", "b": {"kind": "category", "values": ["x", "y"]}}, "classes": ["no", "yes"]}
    problem = {"kind": "classification", "data": data, "partition": "sites", "model": "linear", "batch": 4}
    return {
        "rounds": 5,
        "topology": {"kind": "complete"},
        "problem": problem,
        "algorithms": [{"kind": "net-fleet", "K": 3, "eta": 0.1}],
        "evaluation": {"every": 5},
        "engine": {"dtype": "float64"},
    } | more


def write_rows(folder: Path) -> None:
    draw, lines = np.random.default_rng(0), ["a,b,site,sick"]
    for i in range(80):
        a = draw.normal()
        lines.append(f"{a},{'xy'[i % 3 % 2]},s{i % 2},{'yes' if a + draw.normal() > 0 else 'no'}")
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")


def predict(plan: Path, **known: Any) -> Rehearsal:
    return rehearse(open_federation(plan), Known(**({"measured": SPEEDS} | known)), Quiet())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a plan that was rehearsed; its two sites have trained, together and alone."""
    folder = tmp_path_factory.mktemp("rehearsed")
    write_rows(folder)
    plan = plan_sites(folder, table(folder), 2)
    write_rehearsal(predict(folder / "plan"), folder / "plan" / "rehearsal.json")
    run_planned(plan, folder)
    for name in ("s0", "s1"):
        train_alone(folder / "plan" / name, *load_site(folder / "plan" / name), Quiet())
    evaluate_plan(folder / "plan")
    return folder / "plan"


def test_with_the_sites_rows_bytes_and_scores_are_those_that_come(trained: Path) -> None:
    found = compare(trained)
    for row in found.sites:
        assert row.done is not None
        assert row.done.rounds == 5
        assert row.done.seconds is not None
        assert row.sent == row.done.sent == History.load(trained / row.name / "run").last["bytes"]
        gain = row.predicted.gain
        assert gain is not None
        assert (gain.joint.value, gain.alone.value) == pytest.approx((row.scores.joint, row.scores.alone), abs=1e-9)
        assert gain.better.value == pytest.approx(row.scores.better, abs=1e-9)
    assert found.data == "own"


def test_the_prediction_stays_once_the_training_has_begun(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (trained / "rehearsal.json").read_bytes()
    assert main(["rehearse", str(trained), "--no-gain"]) == 2
    assert "s0 has begun to train" in capsys.readouterr().err
    assert (trained / "rehearsal.json").read_bytes() == before
    assert main(["rehearse", str(trained), "--compare"]) == 0
    assert "5/5" in capsys.readouterr().out
    assert "Scores, and what was predicted" in (trained / "rehearsal.html").read_text()


def test_what_happened_at_sites_elsewhere_comes_in_their_files(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "operator", tmp_path / "operator")
    shutil.copy(trained / "rehearsal.json", tmp_path / "operator")
    write_measurement(Measurement("s1", done=Done(3, 60.0, 100)), tmp_path / "s1.json")
    s0, s1 = compare(tmp_path / "operator", [tmp_path / "s1.json"]).sites
    assert (s0.done, s1.done) == (None, Done(3, 60.0, 100))
    assert s1.sent == pytest.approx(3 / 5 * s1.predicted.sent)


def test_a_rehearsal_of_another_run_is_not_compared(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "operator", tmp_path / "operator")
    write_rehearsal(replace(read_rehearsal(trained / "rehearsal.json"), run="f" * 64), tmp_path / "rehearsal.json")
    with pytest.raises(ConfigError, match="rehearse again"):
        compare(tmp_path)
    (tmp_path / "rehearsal.json").write_text("{}")
    with pytest.raises(DataError, match="not a file that netfleet rehearse wrote"):
        compare(tmp_path)


def test_a_site_measures_itself_and_its_folder_rehearses_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path)
    plan_sites(tmp_path, table(tmp_path), 2)
    file = tmp_path / "s0.json"
    assert main(["rehearse", str(tmp_path / "plan" / "s0"), "--measure", "--classes", "--out", str(file)]) == 0
    found = read_measurements([file], ["s0", "s1"])["s0"]
    lines = [line.split(",") for line in (tmp_path / "rows.csv").read_text().splitlines()[1:]]
    assert found.speed is not None
    assert found.speed.step > 0
    assert found.rows == sum(found.classes) == sum(line[2] == "s0" for line in lines) / 2
    assert found.links == {}
    shutil.rmtree(tmp_path / "plan" / "operator")
    assert main(["rehearse", str(tmp_path / "plan" / "s0"), "--measured", str(file), "--json", "--no-gain"]) == 0
    assert json.loads(capsys.readouterr().out.partition("\n")[2])["sites"][0]["step_seconds"] >= found.speed.step


# ---- where the rows are elsewhere ----


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    write_rows(tmp_path)
    plan_sites(tmp_path, table(tmp_path), 3)
    (tmp_path / "rows.csv").rename(tmp_path / "moved.csv")
    return tmp_path / "plan"


def test_without_rows_time_and_bytes_are_predicted_and_with_their_numbers_gains(elsewhere: Path) -> None:
    bare = predict(elsewhere)
    assert bare.data == ""
    assert any("add --rows s0=N" in note for note in bare.assumptions)
    found = predict(elsewhere, rows={"s0": 40, "s1": 40, "s2": 400})
    assert (found.data, [site.rows for site in found.sites]) == ("made up", [40, 40, 400])
    assert [site.gain is not None for site in found.sites] == [True] * 3
    assert found.seconds == bare.seconds
    assert any("made-up rows" in note for note in found.assumptions)


def test_rows_of_a_file_are_dealt_out_and_their_number_is_said(elsewhere: Path) -> None:
    found = predict(elsewhere, rows=dict.fromkeys(("s0", "s1", "s2"), 40), data=elsewhere.parent / "moved.csv")
    assert found.data == "file"
    assert any("training rows, fewer than the sites" in note for note in found.assumptions)
    with pytest.raises(ConfigError, match="too few for 3 sites"):
        predict(elsewhere, rows={"s0": 1, "s1": 10_000, "s2": 1}, data=elsewhere.parent / "moved.csv")


def test_a_slow_site_is_named_with_the_time_box_that_would_help(elsewhere: Path) -> None:
    slow = SPEEDS | {"s2": Measurement("s2", Speed(0.09, 0.02))}
    found = predict(elsewhere, measured=slow, gains=False)
    assert found.slow is not None
    assert found.slow.name == "s2"
    assert found.box is not None
    assert found.box.steps == (3, 3, 1)
    assert found.box.round < found.box.without == pytest.approx(found.round_seconds, rel=0.01)
    assert predict(elsewhere, gains=False).slow is None


def test_with_a_time_box_steps_follow_the_speeds(tmp_path: Path) -> None:
    write_rows(tmp_path)
    plan_sites(tmp_path, table(tmp_path, time_box={"seconds": 0.05}), 2)
    measured = {"s0": Measurement("s0", Speed(0.01)), "s1": Measurement("s1", Speed(0.04))}
    found = predict(tmp_path / "plan", measured=measured)
    assert [site.steps for site in found.sites] == [3, 1]
    assert found.box is not None
    assert found.box.planned
    assert all(site.gain is not None for site in found.sites)


def test_links_that_both_ends_measured_count_at_their_slower_rate(elsewhere: Path) -> None:
    fast, slow = Link(0.001, 1e6), Link(0.5, 1e3)
    measured = {"s0": replace(SPEEDS["s0"], links={"s1": fast, "s2": fast}), "s1": replace(SPEEDS["s1"], links={})}
    measured |= {"s2": replace(SPEEDS["s2"], links={"s0": slow})}
    before, after = (predict(elsewhere, measured=each, gains=False) for each in (SPEEDS, measured))
    assert after.round_seconds > before.round_seconds + 0.5
    assert any("1 of 3 links" in note for note in after.assumptions)


def test_loops_of_the_sites_own_need_the_models_size_and_a_speed(tmp_path: Path) -> None:
    own = {key: value for key, value in table(tmp_path).items() if key != "evaluation"}
    plan_sites(tmp_path, own | {"problem": {"kind": "own-loop"}}, 2)
    with pytest.raises(ConfigError, match="add --parameters N"):
        predict(tmp_path / "plan")
    with pytest.raises(ConfigError, match="add --step-seconds S"):
        predict(tmp_path / "plan", parameters=100, measured={})
    found = predict(tmp_path / "plan", parameters=100)
    assert found.sites[0].sent == 5 * 2 * 100 * 8
    assert any("loops of their own" in note for note in found.assumptions)


# ---- made-up rows ----


def contract(**more: Any) -> dict[str, Any]:
    agreed = {"inputs": {"shape": [8], "dtype": "float64"}, "targets": {"range": [0, 1]}} | more
    problem = {"kind": "classification", "data": "digits", "model": "linear"}
    return {"rounds": 1, "topology": {"kind": "complete", "workers": 2}, "problem": problem, "contract": agreed}


def test_made_up_rows_have_the_assumed_strength_and_the_classes_that_sites_tell() -> None:
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.metrics import roc_auc_score

    sites = [Rows("s0", 4000), Rows("s1", 4000, (3000, 1000))]
    data = made_up(experiment(contract()), sites, seed=3)
    assert data.groups is not None
    x, y = np.asarray(data.train_x), np.asarray(data.train_y)
    best = LinearDiscriminantAnalysis().fit(x, y)
    assert roc_auc_score(np.asarray(data.test_y), best.decision_function(np.asarray(data.test_x))) == pytest.approx(
        AUROC, abs=0.02
    )
    second = data.train_y[data.groups == 1]  # type: ignore[index]
    assert float(second.double().mean()) == pytest.approx(0.25, abs=0.03)
    assert torch.equal(data.train_x, made_up(experiment(contract()), sites, seed=3).train_x)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="of 3 classes, and the plan has 2"):
        made_up(experiment(contract()), [Rows("s0", 10, (1, 2, 3))], seed=0)


def test_made_up_rows_keep_the_contract() -> None:
    agreed = {"inputs": {"shape": [2, 3], "dtype": "float32", "range": [0, 250]}, "targets": {"range": [0.5, 2.5]}}
    data = made_up(experiment(contract(**agreed)), [Rows("s0", 50)], seed=0)
    x, y = data.train_x, data.train_y
    assert isinstance(x, torch.Tensor)
    assert isinstance(y, torch.Tensor)
    assert (x.shape, x.dtype) == ((50, 2, 3), torch.float32)
    assert 0 <= float(x.min()) < float(x.max()) <= 250
    assert 0.5 <= float(y.min()) < float(y.max()) <= 2.5


# ---- files ----


def test_files_of_statistics_and_of_the_doctor_complete_a_measurement(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("speed.json", "sums.json", "doctor.json")]
    write_measurement(SPEEDS["s0"], files[0])
    sums = {"count": 9, "missing": 3, "sum": "1", "sum_of_squares": "2"}
    files[1].write_text(json.dumps({"sites": ["s0"], "declaration": "x", "columns": {"a": sums}}))
    link = {"name": "s1", "to": "yes", "back": "yes", "clock": 0.0, "delay": 0.02, "rate": 1e6}
    files[2].write_text(json.dumps({"subject": "s0", "neighbours": [link, link | {"name": "s2", "delay": None}]}))
    found = read_measurements(files, ["s0", "s1"])
    assert found == {"s0": Measurement("s0", SPEEDS["s0"].speed, 12, (), {"s1": Link(0.02, 1e6)})}
    both = merge([read_statistics(files[1]), replace(read_statistics(files[1]), sites=("s1",))])
    files[1].write_text(json.dumps({"sites": both.sites, "declaration": "x", "columns": {"a": sums}}))
    with pytest.raises(DataError, match="sums of several sites"):
        read_measurements([files[1]], ["s0", "s1"])


def test_what_the_doctor_prints_are_the_links_of_a_rehearsal(
    elsewhere: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hospital = Hospital(tmp_path)
    hospital.silent["s2"] = Diagnosis("refused", "refuses the connection", "start it")
    report = hospital.examine()
    print_json(report)
    file = tmp_path / "doctor.json"
    file.write_text(capsys.readouterr().out)
    (link,) = (each for each in report.links if each.name == "s1")
    assert link.delay is not None
    assert link.rate is not None
    found = read_measurements([file], ["s0", "s1", "s2"])
    assert found == {"s0": Measurement("s0", links={"s1": Link(link.delay, link.rate)})}
    said = predict(elsewhere, measured=SPEEDS | found, step_seconds=dict.fromkeys(SPEEDS, 0.01), gains=False)
    assert any("Assumed for 2 of 3 links" in note for note in said.assumptions)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"site": "other"}, "none of the plan's sites"),
        ({"speed": {"step": 0.0}}, "a step takes no time"),
        ({"speed": {"step": -1.0}}, "negative"),
        ({"links": {"s1": {"latency": 0.1, "rate": 0.0}}}, "no rate"),
        ({"rows": "many"}, "rows"),
        ({"links": None}, "neither a measurement"),
    ],
)
def test_a_wrong_file_is_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / "s0.json"
    write_measurement(SPEEDS["s0"], path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=words):
        read_measurements([path], ["s0", "s1"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rows", "s0=3,nobody=4"], "nobody' is none of the sites|nobody is none of the sites"),
        (["--rows", "s0"], "takes NAME=NUMBER"),
        (["--step-seconds", "-1"], "takes numbers above 0"),
        (["--measure"], "--out FILE.json"),
        (["--out", "x.json"], "belong to --measure"),
        (["--compare"], "make it before the training"),
    ],
)
def test_wrong_options_say_what_is_expected(
    options: list[str], words: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    place = elsewhere / "s0" if "--measure" in options else elsewhere
    assert main(["rehearse", str(place), *options]) == 2
    assert re.search(words, capsys.readouterr().err)


def test_the_plan_tells_the_rows_that_nodes_toml_says(elsewhere: Path) -> None:
    path = elsewhere / "operator" / "plan.toml"
    text = path.read_text().replace('name = "s1"\n', 'name = "s1"\nrows = 77\n', 1)
    path.write_text(text)
    assert [site.rows for site in load_plan(path.parent).sites] == [0, 77, 0]
    assert [site.rows for site in predict(elsewhere, gains=False).sites] == [None, 77, None]
