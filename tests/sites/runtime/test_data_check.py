"""A site looks at its own data before round 0: contract, changed rows, and what is odd about them."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from netfleet.cli import main
from netfleet.data import make_dataset
from netfleet.data.sites import SITE_VARIABLE
from netfleet.errors import CheckpointError, ConfigError, DataError, PolicyError
from netfleet.sites.network.transport import MemoryNetwork
from netfleet.sites.operations.logs import Log
from netfleet.sites.planning.certificates import load_identity
from netfleet.sites.planning.folders import load_site
from netfleet.sites.policy.in_force import PolicyInForce
from netfleet.sites.policy.rules import Terms
from netfleet.sites.policy.settings import parse_policy
from netfleet.sites.runtime.data_check import check_same_rows, rows_digest
from netfleet.sites.runtime.runner import SiteRunner
from support.site_loops import LOOPS
from support.site_processes import plan_sites

CSV: dict[str, Any] = {
    "rounds": 2,
    "topology": {"kind": "ring"},
    "problem": {
        "kind": "classification",
        "partition": "sites",
        "model": "softmax",
        "batch": 4,
        "data": {
            "kind": "csv",
            "path": "{site}.csv",
            "sites": ["s0", "s1", "s2"],
            "target": "ill",
            "classes": ["no", "yes"],
            "features": {"age": {"kind": "number", "range": [0, 120]}},
        },
    },
    "algorithms": [{"kind": "net-fleet", "K": 2, "eta": 0.05}],
}


def write_rows(ages: list[str], ill: str = "no yes") -> None:
    words = ill.split()
    lines = [f"{age},{words[i % len(words)]}" for i, age in enumerate(ages)]
    Path("s0.csv").write_text("\n".join(["age,ill", *lines]) + "\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of s0, in whose current folder is its file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SITE_VARIABLE, "s0")
    write_rows([str(20 + i) for i in range(30)])
    plan_sites(tmp_path, CSV, 3)
    return tmp_path / "plan" / "s0"


def check(folder: Path, terms: Terms | None = None) -> list[dict[str, Any]]:
    """What a start checks about data; the events that it logs."""
    site, settings = load_site(folder)
    stream = io.StringIO()
    runner = SiteRunner(
        folder,
        site,
        settings,
        load_identity(folder, "s0"),
        Log("s0", stream, as_json=True),
        transport=MemoryNetwork().transport("s0"),
        terms=terms or Terms(),
    )
    runner.check_data(runner._problem())
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_good_data_is_remembered(folder: Path) -> None:
    assert check(folder) == check(folder) == []
    assert json.loads((folder / "run" / "rows.json").read_text())["rows"] == 24


@pytest.mark.parametrize("change", ["a value", "a row more", "the order"])
def test_rows_that_changed_are_refused_without_an_explicit_word(folder: Path, change: str) -> None:
    check(folder)
    ages = [str(20 + i) for i in range(30)]
    if change == "a value":
        ages[3] = "99"
    elif change == "a row more":
        ages.append("77")
    else:
        ages[0], ages[2] = ages[2], ages[0]
    write_rows(ages)
    with pytest.raises(
        DataError, match=r"not those of its last start .*training rows: 24 then, 2\d now.*--data-changed"
    ):
        check(folder)
    (event,) = check(folder, Terms(data_changed=True))
    assert event["event"] == "data"
    assert "accepted" in event["why"]
    assert check(folder) == []  # from now on these are the rows


def test_a_damaged_record_of_the_rows_is_said(folder: Path) -> None:
    check(folder)
    (folder / "run" / "rows.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"cannot read .*rows\.json"):
        check(folder)


def test_rows_are_compared_by_all_that_they_are(tmp_path: Path) -> None:
    assert check_same_rows(tmp_path / "run", "ab", 3, accepted=False) is None
    assert check_same_rows(tmp_path / "run", "ab", 3, accepted=False) is None
    with pytest.raises(DataError, match="not those"):
        check_same_rows(tmp_path / "run", "cd", 3, accepted=False)


def test_a_bad_value_is_named_by_row_and_column_and_not_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value, words in (("121.5", "is not from 0 to 120"), ("Smith", "is not a number"), ("", "there is no value")):
        write_rows(["30", "31", value, *["40"] * 10])
        with pytest.raises(DataError, match=r"s0\.csv, line 4, column 'age': a value \(not shown\) ") as error:
            check(folder)
        assert words in str(error.value)
        assert value == "" or value not in str(error.value)
    monkeypatch.delenv(SITE_VARIABLE)  # in the simulator it is
    write_rows(["30", "31", "121.5", *["40"] * 10])
    for name in ("s1", "s2"):
        Path(f"{name}.csv").write_text(Path("s0.csv").read_text())
    with pytest.raises(DataError, match=r"'121\.5' is not from 0 to 120"):
        check(folder)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([[1.0], [2.0]], ["healthy", "HIV"]),
        ([["Smith"], ["Jones"]], ["healthy", "ill"]),
        ([[1.0], [2.0]], [0.0, 1.5]),
    ],
    ids=["a class", "an input", "a number among labels"],
)
def test_values_of_other_data_are_not_shown_either(x: Any, y: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    classes = 2 if isinstance(y[0], float) else ["healthy", "ill"]
    for site, hidden in ((None, False), ("s0", True)):
        monkeypatch.delenv(SITE_VARIABLE, raising=False) if site is None else monkeypatch.setenv(SITE_VARIABLE, site)
        with pytest.raises(DataError) as error:
            make_dataset(x, y, classes=classes)
        assert hidden == ("a value (not shown)" in str(error.value))
        assert hidden != any(word in str(error.value) for word in ("HIV", "Smith", "1.5"))


@pytest.mark.parametrize(
    ("ages", "ill", "words"),
    [
        (15, "no yes", ["this site has 12 training rows"]),
        (4, "no yes", ["training rows", "a mini-batch has 4 rows"]),
        (30, "no", ["all training rows of this site have the same class"]),
        (30, "no yes", []),
    ],
)
def test_what_is_odd_about_data_is_logged(folder: Path, ages: int, ill: str, words: list[str]) -> None:
    write_rows([str(20 + i) for i in range(ages)], ill)
    events = check(folder)
    assert [event["event"] for event in events] == ["data"] * len(words)
    assert all(word in event["why"] for word, event in zip(words, events, strict=True))


def test_a_policy_makes_errors_of_it(folder: Path) -> None:
    policy = PolicyInForce(parse_policy({"data": {"least_classes": 2}}), Path("own.toml"))
    assert check(folder, Terms(policy)) == []
    write_rows([str(20 + i) for i in range(30)], "no")
    with pytest.raises(PolicyError, match=r"rule data\.least_classes: the plan has 1 classes"):
        check(folder, Terms(policy, data_changed=True))


def test_yes_or_no_is_two_classes_too(folder: Path, tmp_path: Path) -> None:
    """A target with one label per row (bce) is not without classes."""
    data = {**CSV["problem"]["data"], "target": "age", "positive_above": 35, "features": {"ill": "yes/no"}}
    del data["classes"]
    table = {**CSV, "problem": {**CSV["problem"], "data": data, "model": "linear", "loss": "bce"}}
    plan_sites(tmp_path / "binary", table, 3)
    place = tmp_path / "binary" / "plan" / "s0"
    policy = PolicyInForce(parse_policy({"data": {"least_classes": 2}}), Path("own.toml"))
    assert check(place, Terms(policy)) == []
    write_rows(["30"] * 30)
    with pytest.raises(PolicyError, match=r"rule data\.least_classes: the plan has 1 classes"):
        check(place, Terms(policy, data_changed=True))


def test_a_share_of_a_common_data_set_is_remembered_too(tmp_path: Path) -> None:
    table = {**CSV, "problem": {"kind": "classification", "data": "digits", "model": "softmax"}}
    plan_sites(tmp_path, table, 3)
    digests = []
    for name in ("s0", "s1"):
        site, settings = load_site(tmp_path / "plan" / name)
        identity, memory = load_identity(tmp_path / "plan" / name, name), MemoryNetwork().transport(name)
        runner = SiteRunner(tmp_path / "plan" / name, site, settings, identity, Log(name), transport=memory)
        digests.append(rows_digest(runner._problem(), site.number))  # type: ignore[arg-type]
    assert digests[0] != digests[1]


# ---- contract and commands ----


def test_policy_check_finds_changed_rows_and_remembers_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", "check", str(folder)]) == 0
    assert not (folder / "run" / "rows.json").exists()
    check(folder)
    write_rows(["20"] * 30)
    for _ in range(2):
        assert main(["policy", "check", str(folder)]) == 2
        assert "the rows of this site are not those of its last start" in capsys.readouterr().err


def with_contract(tmp_path: Path, **contract: Any) -> Path:
    plan_sites(tmp_path / "other", {**CSV, "contract": contract}, 3)
    return tmp_path / "other" / "plan" / "s0"


def test_a_site_that_breaks_the_contract_does_not_start(folder: Path, tmp_path: Path, capsys: Any) -> None:
    good = with_contract(tmp_path / "good", least_rows=24, least_classes=2, inputs={"shape": [1]})
    assert check(good) == []
    assert main(["policy", "check", str(good)]) == 0
    assert "data: 24 training rows of 2 classes" in capsys.readouterr().out
    bad = with_contract(tmp_path / "bad", least_rows=25)
    with pytest.raises(DataError, match="this site has 24 training rows, the contract says least_rows = 25"):
        check(bad)
    assert main(["policy", "check", str(bad)]) == 2
    assert "least_rows = 25" in capsys.readouterr().err
    assert not (bad / "run").exists()


def test_the_check_looks_at_the_data_too(folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SITE_VARIABLE)  # the command knows which site it is
    (folder / "policy.toml").write_text(tomli_w.dumps({"data": {"least_rows": 25}}))
    assert main(["policy", "check", str(folder)]) == 2
    assert "BROKEN data.least_rows: the plan has 24 training rows" in capsys.readouterr().out
    assert SITE_VARIABLE not in os.environ


def test_a_plan_for_loops_has_no_contract(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[contract\]: a loop of a site's own reads its data itself"):
        plan_sites(tmp_path, {**LOOPS, "contract": {"least_rows": 3}}, 3)
