"""What `netfleet init` writes runs, has a comment on every key, and replaces nothing that it was not asked to."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from netfleet import load_experiment
from netfleet.cli import main
from netfleet.runs.config import experiment
from netfleet.runs.run import run_experiment
from netfleet.sites.planning.folders import load_site
from netfleet.sites.policy.in_force import find_policy
from netfleet.sites.policy.settings import read_policy
from netfleet.sites.policy.start import folder_facts
from netfleet.templates.files import experiment_text, site_texts
from support.site_processes import free_ports

TEXTS = {"experiment": experiment_text(Path("ring.toml")), **site_texts()}
SITES = ("north", "east", "south")
PLAN = ["plan", "experiment.toml", "--nodes", "nodes.toml", "--out", "plan"]


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the commands are given."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_data", raising=False)
    return tmp_path


# ---- an experiment ----


def test_the_first_experiment_runs_and_carries_the_name_of_its_file(empty: Path, capsys: Any) -> None:
    assert main(["init", "my ring.toml"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("wrote my ring.toml\n")
    assert "  netfleet run 'my ring.toml'\n" in out
    made = load_experiment(empty / "my ring.toml", ["rounds=2"])
    assert made.name == "my ring"
    assert [history.last["round"] for history in run_experiment(made)] == [2, 2]


def options(text: str) -> list[str]:
    """The text with one block of its options switched on, for each block."""
    lines, found = text.splitlines(), []
    off = re.compile(r"# (?=\[|\w+ = )")
    marks = [bool(off.match(line)) for line in lines]
    for start in (i for i, mark in enumerate(marks) if mark and not marks[i - 1]):
        end = next(i for i in range(start, len(lines) + 1) if i == len(lines) or not marks[i])
        found.append("\n".join(off.sub("", line) if start <= i < end else line for i, line in enumerate(lines)))
    return found


def test_every_option_of_the_first_experiment_is_one() -> None:
    texts = options(TEXTS["experiment"])
    assert len(texts) == 4
    plain = tomllib.loads(TEXTS["experiment"])
    for table in map(tomllib.loads, texts):
        assert table != plain
        assert experiment(table | {"rounds": 1}).runs()


@pytest.mark.parametrize("name", ["experiment", "experiment.toml"])
def test_every_key_has_a_comment_where_it_is_first_used(name: str) -> None:
    keys: set[str] = set()
    for line in TEXTS[name].splitlines():
        assert len(line) < 120
        if found := re.match(r"(?:# )?(\w+) = ", line):
            assert found[1] in keys or re.search(r"  # \S", line.removeprefix("# ")), line
            keys.add(found[1])
    assert len(keys) > 10


# ---- sites ----


def test_the_files_for_sites_are_simulated_and_planned_and_keep_their_policy(empty: Path, capsys: Any) -> None:
    assert main(["init", "--site"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) < 80
    steps = re.findall(r"^  netfleet (.*)$", out, flags=re.MULTILINE)
    assert steps == ["run experiment.toml", " ".join(PLAN)]
    assert run_experiment(load_experiment("experiment.toml"))[0].last["auroc"] > 0.8
    assert main(PLAN) == 0
    policy, _ = read_policy(empty / "policy.toml")
    for name in SITES:
        (empty / "plan" / name / "policy.toml").write_text(TEXTS["policy.toml"])
        assert main(["policy", "check", f"plan/{name}"]) == 0
        neighbours = folder_facts(empty / "plan" / name).neighbours
        assert policy.neighbours.least == len(neighbours)
    assert find_policy(empty / "plan" / "north", None).path is not None
    assert load_site(empty / "plan" / "north")[0].name == "north"
    assert "BROKEN" not in capsys.readouterr().out


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize("missing", [["grpc"], []])
def test_it_says_what_sites_still_need(missing: list[str], capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "netfleet.cli.init.missing_packages", lambda *names: [each for each in names if each in missing]
    )
    assert main(["init", "--site"]) == 0
    assert ("  pip install 'netfleet[sites]'\n" in capsys.readouterr().out) == bool(missing)


@pytest.mark.slow
def test_the_sites_train_as_the_simulator_does(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["init", "--site", "trial"]) == 0
    monkeypatch.chdir(empty / "trial")
    text = TEXTS["nodes.toml"]
    for old, new in zip(("7411", "7412", "7413"), free_ports(3), strict=True):
        text = text.replace(old, str(new))
    Path("nodes.toml").write_text(text)
    assert main([*PLAN, "--set", "rounds=5"]) == 0
    monkeypatch.setenv("NETFLEET_POLICY", "policy.toml")
    assert main(["up", "plan"]) == 0
    (expected,) = run_experiment(load_experiment("experiment.toml", ["rounds=5"]))
    assert expected.final is not None
    for row, name in zip(expected.final.state.x, SITES, strict=True):
        model = torch.cat([each.flatten() for each in load_file(f"plan/{name}/model.safetensors").values()])
        torch.testing.assert_close(model, row)


def test_a_site_without_rows_says_where_it_looked(empty: Path, capsys: Any) -> None:
    assert main(["init", "--site"]) == 0
    (empty / "data" / "east.npz").unlink()
    assert main(["run", "experiment.toml"]) == 2
    assert f"no rows of east in {empty / 'data' / 'east.npz'}; put them there, or change" in capsys.readouterr().err


# ---- what is there stays ----


def test_nothing_is_replaced_unless_asked_and_rows_never(empty: Path, capsys: Any) -> None:
    (empty / "nodes.toml").write_text("mine")
    assert main(["init", "--site"]) == 2
    assert "nodes.toml already exists; give another path, or add --overwrite to replace it" in capsys.readouterr().err
    assert [path.name for path in empty.iterdir()] == ["nodes.toml"]
    (empty / "data").mkdir()
    np.savez(empty / "data" / "east.npz", x=np.zeros(3))
    assert main(["init", "--site", "--overwrite"]) == 0
    assert (empty / "nodes.toml").read_text() == TEXTS["nodes.toml"]
    assert np.load(empty / "data" / "east.npz")["x"].tolist() == [0, 0, 0]
    assert main(["init"]) == 2
    assert "experiment.toml already exists" in capsys.readouterr().err
    assert main(["init", "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ring"], "an experiment is a file NAME.toml, got 'ring'; try ring.toml"),
        (["no/ring.toml"], "there is no folder 'no'; make it (mkdir -p no), or choose another"),
        (["file.txt/ring.toml"], "'file.txt' is not a folder"),
        (["."], "'.' is a folder; name a file in it: experiment.toml (or add --site)"),
        (["--site", "ring.toml"], "--site writes several files into a folder, got 'ring.toml'; name a folder"),
        (["--site", "no/trial"], "there is no folder 'no'"),
        (
            ["--site", "taken"],
            "taken/policy.toml is a folder where a file was expected; remove it, or give another path",
        ),
        (["--site", "file.txt", "--overwrite"], "'file.txt' is not a folder"),
    ],
)
def test_a_place_that_cannot_be_written_to_is_named(empty: Path, capsys: Any, arguments: list[str], words: str) -> None:
    (empty / "file.txt").touch()
    (empty / "taken" / "policy.toml").mkdir(parents=True)
    before = sorted(empty.rglob("*"))
    assert main(["init", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert sorted(empty.rglob("*")) == before
