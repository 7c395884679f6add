"""A site's sign of life, and the check that containers run."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from netfleet.cli import main
from netfleet.errors import ConfigError
from netfleet.sites.network.loop_thread import LoopThread
from netfleet.sites.operations.health import HEALTH_FILE, OLD, check_health, in_touch, signs_of_life


def status(state: str = "training") -> Any:
    return SimpleNamespace(site="hospital-a", state=state, round=3, rounds=9, neighbours=())


def until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_a_site_is_healthy_while_it_runs_also_when_it_waits(tmp_path: Path, capsys: Any) -> None:
    assert main(["health", str(tmp_path)]) == 1
    assert "no site runs here" in capsys.readouterr().out
    with LoopThread() as loop, signs_of_life(tmp_path, loop, lambda: status("waiting")):
        until((tmp_path / HEALTH_FILE).exists)
        assert main(["health", str(tmp_path)]) == 0
        assert capsys.readouterr().out == "hospital-a: waiting, round 3 of 9\n"
    assert main(["health", str(tmp_path)]) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_site_whose_network_thread_hangs_shows_no_sign_of_life(tmp_path: Path) -> None:
    hangs, release = threading.Event(), threading.Event()

    def hang() -> Any:
        hangs.set()
        release.wait(60)
        return status()

    with LoopThread() as loop, signs_of_life(tmp_path, loop, hang, interval=0.01):
        assert hangs.wait(60)
        assert not check_health(tmp_path).good
        release.set()
        until(lambda: check_health(tmp_path).good)


def test_a_site_whose_disk_is_gone_shows_no_sign_of_life_until_it_is_back(tmp_path: Path) -> None:
    folder, tried = tmp_path / "site", threading.Event()

    def answer() -> Any:
        tried.set()
        return status()

    with LoopThread() as loop, signs_of_life(folder, loop, answer, interval=0.01):
        assert tried.wait(60)
        folder.mkdir()
        until(lambda: check_health(folder).good)


def test_a_status_that_fails_once_does_not_end_the_signs_of_life(tmp_path: Path) -> None:
    answers = iter([ConfigError("alarm.json is damaged")])

    def answer() -> Any:
        for error in answers:
            raise error
        return status()

    with LoopThread() as loop, signs_of_life(tmp_path, loop, answer, interval=0.01):
        until(lambda: check_health(tmp_path).good)


@pytest.mark.parametrize(("age", "good"), [(0.0, True), (OLD - 1, True), (OLD + 1, False), (-OLD - 1, False)])
def test_an_old_sign_of_life_does_not_count(tmp_path: Path, age: float, good: bool) -> None:
    text = json.dumps({"time": 1e9, "site": "hospital-a", "state": "waiting", "round": 3, "rounds": 9})
    (tmp_path / HEALTH_FILE).write_text(text)
    found = check_health(tmp_path, now=1e9 + age)
    assert found.good == good
    assert good or found.why == "hospital-a: no sign of life for 61 s; it was waiting, round 3 of 9"


@pytest.mark.parametrize(("age", "names"), [(0.0, {"near"}), (OLD - 1, set()), (OLD + 1, set())])
def test_neighbours_are_in_touch_as_long_as_they_were_heard(tmp_path: Path, age: float, names: set[str]) -> None:
    assert in_touch(tmp_path) == frozenset()
    heard = {"near": 3.0, "far": 100.0, "never": None}
    (tmp_path / HEALTH_FILE).write_text(json.dumps({"time": 1e9, "heard": heard}))
    assert in_touch(tmp_path, now=1e9 + age) == names


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"time": "x"}', "\udcff"])
def test_a_file_of_something_else_is_not_health(tmp_path: Path, text: str) -> None:
    (tmp_path / HEALTH_FILE).write_bytes(text.encode("utf-8", "surrogateescape"))
    found = check_health(tmp_path)
    assert not found.good
    assert HEALTH_FILE in found.why


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        check_health(tmp_path / "site")
