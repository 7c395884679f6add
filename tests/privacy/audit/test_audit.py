"""`netfleet audit` as a whole: files, plans and sites, with and without privacy."""

from __future__ import annotations

import csv
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from netfleet.cli import main
from netfleet.data.sites import SITE_VARIABLE
from netfleet.errors import ConfigError
from netfleet.privacy.audit import AuditOptions, audit
from netfleet.privacy.audit.page import verdict
from netfleet.privacy.audit.results import Audit
from netfleet.privacy.audit.target import find_target, methods_by_name
from netfleet.privacy.receipts.audit_file import read_audit
from netfleet.runs.config import experiment
from support.site_processes import plan_sites

FEW = AuditOptions(rounds=2, victims=3, shadows=4, training=2, inverted=1, steps=20)
WORDS = [
    word for name, value in vars(FEW).items() for word in (f"--{name}", str(value))
]  # the same on the command line
PRIVACY = {"clip": 1.0, "noise": 1.0}


def digits(**changes: Any) -> dict[str, Any]:
    problem = {"kind": "classification", "data": "digits", "partition": {"kind": "shards", "per_worker": 2}}
    problem |= {"model": {"kind": "mlp", "hidden": [64]}, "batch": 8}
    table = {"name": "digits", "rounds": 10, "topology": {"kind": "ring", "workers": 5}, "problem": problem}
    return {**table, "algorithms": [{"kind": "net-fleet", "K": 2, "eta": 0.05}], **changes}


def with_batch(batch: int) -> dict[str, Any]:
    return digits(problem={**digits()["problem"], "batch": batch})


@pytest.fixture(scope="module")
def found() -> Audit:
    methods = [{"kind": "net-fleet", "K": 2, "eta": 0.05}, {"kind": "ld-sgd", "K": 2, "eta": 0.05}]
    return audit(experiment(digits(privacy=PRIVACY, algorithms=methods)), FEW)


def test_division_recovers_a_part_of_the_batch_and_nothing_with_privacy(found: Audit) -> None:
    without = found.value("algebra", "batch", "neighbour", "NET-FLEET")
    assert without is not None
    assert 0.1 < without < 0.9
    assert found.value("algebra", "batch", "neighbour", "NET-FLEET", private=True) == 0
    assert found.value("algebra", "rows", "all neighbours", "NET-FLEET", private=True) == 0


def test_a_batch_of_one_is_recovered_with_its_label() -> None:
    made = audit(experiment(with_batch(1)), AuditOptions(rounds=1, victims=5, shadows=0, inverted=1, steps=150))
    for view in ("neighbour", "all neighbours"):
        assert made.value("algebra", "batch", view, "NET-FLEET") == 1
        assert made.value("labels", "advantage", view, "NET-FLEET") == 1
        assert made.value("optimisation", "recovered", view, "NET-FLEET") == 1
    assert made.value("algebra", "batch", "two hops", "NET-FLEET") == 0
    assert made.value("membership", "advantage", "neighbour", "NET-FLEET") is None
    assert "Add [privacy]" in made.notes[-1]


def test_methods_are_ranked_by_what_their_messages_show(found: Audit) -> None:
    assert found.ranking("neighbour") == ["NET-FLEET", "LD-SGD"]
    exact = [found.value("gradients", "exact", "all neighbours", method) for method in ("NET-FLEET", "LD-SGD")]
    assert exact[0] == pytest.approx(1.0)  # with K = 2, x and y of a message are two equations for two gradients
    assert exact[1] == 0


def test_membership_has_an_interval_and_privacy_a_bound(found: Audit) -> None:
    for view in found.views:
        advantage = found.find("membership", "advantage", view, "NET-FLEET", private=True)
        assert advantage is not None
        assert advantage.interval is not None
        low, high = advantage.interval
        assert low <= advantage.value <= high  # type: ignore[operator]
        bound = found.value("membership", "bound", view, "NET-FLEET", private=True)
        assert bound is not None
        assert low <= bound <= 1
        assert found.value("membership", "bound", view, "NET-FLEET") is None


def test_audit_json_has_its_schema(found: Audit, tmp_path: Path) -> None:
    table = json.loads(found.write_json(tmp_path).read_text())
    assert set(table) == {"version", "experiment", "settings", "privacy", "views", "results", "ranking", "notes"}
    assert table["version"] == 1
    assert set(table["experiment"]["runs"]) == {"NET-FLEET", "LD-SGD"}
    assert len(table["experiment"]["hash"]) == 64
    assert list(table["views"]) == ["neighbour", "all neighbours", "two hops"]
    assert set(table["ranking"]) == set(table["views"])
    types = {"attack": str, "name": str, "view": str, "method": str, "private": bool, "victims": int, "words": str}
    for result in table["results"]:
        assert set(result) == {*types, "value", "interval"}
        assert all(isinstance(result[key], kind) for key, kind in types.items())
        assert result["value"] is None or isinstance(result["value"], float)
        assert result["interval"] is None or len(result["interval"]) == 2
    assert {result["attack"] for result in table["results"]} == {
        "gradients",
        "labels",
        "algebra",
        "optimisation",
        "membership",
    }


def test_an_audit_is_reproducible() -> None:
    settings = experiment(with_batch(2))
    first, second = audit(settings, FEW), audit(settings, FEW)
    assert first.findings == second.findings


def test_models_without_a_linear_first_layer_and_data_without_labels() -> None:
    made = audit(experiment(digits(problem={**digits()["problem"], "model": {"kind": "cnn", "channels": 2}})), FEW)
    (division,) = [f for f in made.findings if f.attack == "algebra" and f.view == "neighbour"]
    assert division.value is None
    assert "not linear" in division.words
    assert made.value("optimisation", "psnr", "neighbour", "NET-FLEET") is not None


def test_a_penalty_hides_nothing() -> None:
    """Its gradient is l2 · x, and x is known."""
    penalised = with_batch(1)
    penalised["problem"] |= {"l2": 0.1, "weights": [0.4, 0.3, 0.1, 0.1, 0.1]}
    made = audit(experiment(penalised), AuditOptions(rounds=1, victims=5, shadows=0, inverted=0))
    assert made.value("algebra", "batch", "neighbour", "NET-FLEET") == 1
    assert made.value("labels", "advantage", "neighbour", "NET-FLEET") == 1


def test_messages_of_half_the_bits_show_labels_too() -> None:
    method = {"kind": "net-fleet", "K": 2, "eta": 0.05, "compress": "cast"}
    made = audit(experiment(digits(algorithms=[method])), AuditOptions(rounds=1, victims=5, shadows=0, inverted=0))
    assert made.value("labels", "advantage", "neighbour", "NET-FLEET, cast") == 1
    assert "no plain sums of gradients" in made.notes[0]


def test_methods_that_do_not_fit_are_left_out_with_a_note() -> None:
    methods = [{"kind": "spider"}, {"kind": "net-fleet"}]
    made = audit(experiment(digits(privacy=PRIVACY, algorithms=methods)), FEW)
    assert any("SPIDER, private, was left out" in note for note in made.notes)
    assert made.value("gradients", "exact", "server", "SPIDER") is not None


# ---------------------------------------------------------------------------------------------------- the command line


def test_the_verdict_says_nothing_of_attacks_that_do_not_apply(found: Audit) -> None:
    """An attack that was not tried has not found 0 %."""
    assert "of a batch's inputs exactly, reads off 100 % of its labels and tells members" in verdict(found)
    without = [replace(f, value=None) if f.attack == "labels" else f for f in found.findings]
    words = verdict(replace(found, findings=tuple(without)))
    assert words.count("of a batch's inputs exactly and tells members from other rows") == 2
    assert "labels" not in words


def test_the_command_writes_a_page_and_a_file(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "digits.toml"
    file.write_text(experiment(digits(privacy=PRIVACY)).to_toml())
    assert main(["audit", str(file), *WORDS, "--methods", "net-fleet,k-gt", "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "Seen by one neighbour" in out
    assert "K-GT, private" in out
    page = (tmp_path / "out" / "audit.html").read_text()
    assert "data:image/png;base64," in page
    assert "http" not in page  # nothing is loaded from elsewhere
    assert json.loads((tmp_path / "out" / "audit.json").read_text())["privacy"]["noise"] == 1.0


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--rounds", "0"], "rounds of an audit must be a whole number from 1 on, got 0"),
        (["--shadows", "3"], "shadows must be an even number from 4 on"),
        (["--methods", "net-flet"], "did you mean 'net-fleet'"),
        (["--methods", ","], "--methods names no method"),
        (["--methods", "dsgd,dsgd"], "two algorithms are called 'DSGD'"),
        (["--set", "problem={kind='quadratics'}"], "Quadratics has none"),
        (["--set", "topology={kind='ring', workers=1}"], "an audit needs neighbours, and there is one worker"),
    ],
)
def test_bad_options(words: list[str], why: str, tmp_path: Path, capsys: Any) -> None:
    assert main(["audit", *words, "--out", str(tmp_path / "out")]) == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_no_plan(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"neither a plan nor a site's folder.*made by netfleet plan"):
        find_target(str(tmp_path))


def test_other_methods_take_over_the_step_size() -> None:
    (led, dsgd) = methods_by_name("led, dsgd", experiment(digits()))
    assert (led["eta"], led["K"]) == (0.05, 2)
    assert "K" not in dsgd


# -------------------------------------------------------------------------------------------------------------- plans


def test_a_plan_and_a_sites_folder(tmp_path: Path, capsys: Any) -> None:
    plan = plan_sites(tmp_path, digits(), 5)
    folder = tmp_path / "plan"
    assert main(["audit", str(folder), *WORDS]) == 0
    table = json.loads((folder / "audit.json").read_text())
    assert table["experiment"]["runs"] == {"NET-FLEET": plan.experiment}
    assert find_target(str(folder / "operator")).victim is None
    assert main(["audit", str(folder / "s3"), *WORDS, "--shadows", "0"]) == 0
    results = json.loads((folder / "s3" / "audit.json").read_text())["results"]
    assert {result["victims"] for result in results} == {1}
    attacks = read_audit(folder / "s3")  # as the report of what left the site does
    assert attacks is not None
    assert any(attack.result.startswith("100 %: share of the labels in a batch") for attack in attacks)


def own_files(folder: Path) -> dict[str, Any]:
    """Sites with a file each."""
    draw = random.Random(0)
    for site in ("s0", "s1", "s2"):
        with (folder / f"{site}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["age", "dose", "ill"])
            rows.writerows([[draw.random(), draw.random(), draw.choice([0, 1])] for _ in range(60)])
    data = {"kind": "csv", "path": str(folder / "{site}.csv"), "sites": ["s0", "s1", "s2"], "target": "ill"}
    data |= {"features": {"age": "number", "dose": "number"}, "positive_above": 0.5}
    problem = {"kind": "classification", "data": data, "partition": "sites", "model": "mlp", "batch": 1}
    return digits(problem=problem, topology={"kind": "ring", "workers": 3})


def test_a_site_audits_its_own_rows_where_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv(SITE_VARIABLE, "")  # what the command sets is taken back
    plan_sites(tmp_path, own_files(tmp_path), 3)
    (tmp_path / "s0.csv").unlink()
    assert main(["audit", str(tmp_path / "plan"), *WORDS]) == 2
    assert "netfleet audit SITE-FOLDER" in capsys.readouterr().err
    assert main(["audit", str(tmp_path / "plan" / "s1"), *WORDS]) == 0
    table = json.loads((tmp_path / "plan" / "s1" / "audit.json").read_text())
    found = {(r["attack"], r["name"], r["view"]): r["value"] for r in table["results"]}
    assert found["algebra", "batch", "neighbour"] == 1
