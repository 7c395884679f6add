"""The documentation's code runs, and what is generated is current."""

from __future__ import annotations

import doctest
import importlib
import json
import pkgutil
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import netfleet
from netfleet.algorithms import ALGORITHMS
from netfleet.runs.config import experiment
from netfleet.runs.run import run_experiment
from reproduce.panels import find_panels

ROOT = Path(__file__).parents[1]
MODULES = [m.name for m in pkgutil.walk_packages(netfleet.__path__, "netfleet.") if not m.name.endswith("__main__")]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("name", ["netfleet", *MODULES])
def test_the_examples_in_docstrings_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_readmes_experiment_runs_and_so_do_changes_of_it() -> None:
    (text,) = blocks("README.md", "toml")
    table = tomllib.loads(text) | {"rounds": 2, "seeds": [0]}
    histories = run_experiment(experiment(table))
    assert [h.label for h in histories] == ["NET-FLEET", "LD-SGD"]
    changes = [block for block in blocks("docs/experiments.md", "toml") if "csv" not in block]  # tests/data/test_csv.py
    assert len(changes) == 4
    for change in changes:
        assert run_experiment(experiment(table | tomllib.loads(change)))[0].last["round"] == 2


@pytest.mark.slow
def test_the_readmes_python_runs_in_a_fresh_interpreter_that_knows_every_problem(tmp_path: Path) -> None:
    (code,) = blocks("README.md", "python")
    first = "import netfleet; netfleet.simulate(problem='quadratics', topology='ring', workers=3, rounds=1)\n"
    both = first + code.replace("rounds=100", "rounds=5")
    done = subprocess.run([sys.executable, "-W", "error", "-c", both], cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "curves.png").exists()


@pytest.mark.slow
def test_the_page_on_python_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in blocks("docs/python.md", "python"):
        exec(code, names)
    assert names["history"].last["auroc"] > 0.8
    assert (tmp_path / "first.png").exists()
    assert (tmp_path / "compared.png").exists()
    assert set(names["frame"]["label"]) == {"NET-FLEET", "LD-SGD"}


@pytest.mark.parametrize("page", ["start", "howto/own_model", "howto/graph", "explanation/net_fleet"])
def test_the_python_on_short_pages_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = blocks(f"docs/{page}.md", "python")
    assert code
    exec("\n".join(code), {})


def test_the_notebook_goes_from_a_csv_to_a_picture_in_twenty_lines() -> None:
    lines = [line for cell in blocks("docs/tutorials/own_data.md", "{code-cell}") for line in cell.splitlines() if line]
    assert 10 < len(lines) <= 20


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda p: p.name)
def test_the_example_experiments_are_valid(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(path.parent))
    assert experiment(tomllib.loads(path.read_text())).runs()


def test_the_reference_page_is_current() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_reference.py"))["reference"]()
    assert (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8") == made, "run python docs/make_reference.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "page"),
    [
        *((name, name) for name in ("methods", "failures", "theory", "weights", "audit", "link_noise", "hospitals")),
        ("slow_sites", "sites"),
        ("rehearsal", "sites"),
        ("attackers", "sites"),
    ],
)
def test_pages_made_from_results_are_current(name: str, page: str) -> None:
    made = runpy.run_path(str(ROOT / "docs" / f"make_{name}.py"))["page"]()
    assert (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") == made, f"run python docs/make_{name}.py"


@pytest.mark.parametrize(
    ("label", "change", "words"),
    [
        ("LED", {"round": 80.0}, "there before NET-FLEET"),
        ("K-GT", {"round": None}, "there before NET-FLEET"),
        ("K-GT", {"eta": 0.03}, "larger step sizes"),
        ("LD-SGD", {"accuracy": 0.99}, "ends higher than LD-SGD"),
        ("LD-SGD", {"worker_accuracy": 0.93}, "far higher by the workers' models"),
        ("LD-SGD", {"round": 300.0}, "not there first"),
    ],
)
def test_results_that_say_otherwise_do_not_get_the_old_words(label: str, change: dict[str, float], words: str) -> None:
    script = runpy.run_path(str(ROOT / "docs" / "make_methods.py"))
    results = json.loads((ROOT / "docs" / "methods.json").read_text(encoding="utf-8"))
    script["check_words"](results)
    results["methods"][label] |= change
    with pytest.raises(ValueError, match=words):
        script["check_words"](results)


def test_the_example_names_every_method() -> None:
    named = [table["kind"] for table in tomllib.loads((ROOT / "examples" / "methods.toml").read_text())["algorithms"]]
    assert sorted(named) == sorted(ALGORITHMS)


def test_the_tables_of_results_are_those_that_were_measured() -> None:
    for script in ("make_performance.py", "make_reproduction.py"):
        for path, made in runpy.run_path(str(ROOT / "docs" / script))["pages"]().items():
            assert path.read_text(encoding="utf-8") == made, f"run python docs/{script}"


def test_every_figure_that_is_made_is_shown() -> None:
    shown = set(re.findall(r"<!-- figure (\S+) -->", (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")))
    made = {panel.figure for panel in find_panels(ROOT / "reproduce").values() if not panel.large}
    assert shown == made


def test_links_between_pages_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_comparisons_have_the_dates_of_their_tables() -> None:
    page = (ROOT / "docs" / "explanation" / "comparison.md").read_text(encoding="utf-8")
    dated = re.findall(r"\| (\d{4}-\d\d-\d\d) \| \[[^\]]*\]\(\.\./(\w+\.md)#", page)
    assert len(dated) == 4
    assert [row for row in dated if row[0] not in (ROOT / "docs" / row[1]).read_text(encoding="utf-8")] == []
