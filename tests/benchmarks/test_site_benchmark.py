"""`netfleet bench sites` measures what it says, in small: no claim about speed is made here."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from benchmarks import site_processes, sites
from benchmarks.measure import ResultTable
from benchmarks.site_processes import System
from netfleet.sites.planning.folders import load_site


def test_all_systems_are_given_the_same_work(tmp_path: Path) -> None:
    site_processes.write_work(tmp_path)
    site, experiment = load_site(tmp_path / "plan" / "s1")
    with np.load(tmp_path / "work.npz") as work:
        assert site.listen == f"127.0.0.1:{work['ports'][1]}"
        assert len(site.neighbours) == site_processes.M - 1 == len(work["parts"]) - 1
        (algorithm,) = experiment.algorithms
        assert (algorithm["K"], algorithm["eta"]) == (work["K"], work["eta"])
        assert sorted(work["parts"].ravel()) == list(range(len(work["y"]) // site_processes.M * site_processes.M))


class Told:
    """A system that only counts: whenever one looks at a node that is at work, it has done three more rounds."""

    def __init__(self, away: bool, back: bool) -> None:
        self.system = System("told", away=0.1)
        self.away, self.back = away, back
        self.rounds, self.state = [10, 10, 10], "all"

    def kill(self, name: str) -> None:
        assert name == "node-1"
        self.state = "away"

    def start(self, verb: str, *more: str) -> None:
        assert (verb, *more) == ("node", "1")
        self.state = "back"

    def lives(self, i: int) -> bool:
        return True

    def reached(self, i: int) -> int:
        works = {"away": self.away and i != 1, "back": self.back or (self.away and i != 1)}
        self.rounds[i] += 3 if works[self.state] else 0
        return self.rounds[i]


@pytest.mark.parametrize(
    ("away", "back", "first", "second"),
    [
        (False, True, "the others wait", "all go on"),
        (True, True, "the others go on", "all go on"),
        (True, False, "the others go on", "the others go on, without it"),
        (False, False, "the others wait", "nobody does 3 rounds"),
    ],
)
def test_what_became_of_a_killed_node_is_said_in_words(away: bool, back: bool, first: str, second: str) -> None:
    words = sites.kill_one(Told(away, back), 0.1)  # type: ignore[arg-type]
    assert words[0].startswith(first)
    assert words[1].startswith(second)


def test_a_system_that_is_not_installed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    table = ResultTable("a trial", "what | who | seconds, or what happened | ours ÷ it")
    assert sites.find_others(table, make=False) == []
    assert [row[1] for row in table.rows] == list(sites.OTHERS)
    assert all(row[2].startswith("not run: it is not installed in") for row in table.rows)


def test_adapters_know_the_verbs_that_they_are_asked_for() -> None:
    for script, verbs, _ in sites.OTHERS.values():
        tree = ast.parse((sites.ADAPTERS / script).read_text(encoding="utf-8"))
        functions = {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}
        assert set(verbs) <= functions
