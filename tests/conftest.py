"""Shared pieces of the tests: small problems, a host-free rollout, a recorder that only remembers."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from netfleet import NetFleet, Topology, make_topology
from netfleet.problems.synthetic import Logistic, Quadratics
from netfleet.runs import run
from support.browser import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser

gc.disable()  # while modules are loaded: it would look through all of them again and again
torch.set_num_threads(1)
sys.dont_write_bytecode = False  # compiling the sources is a tenth of what a process takes to start
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
if os.path.isdir(memory := "/dev/shm") and shutil.disk_usage(memory).free > 8 << 30:
    os.environ.setdefault("TMPDIR", memory)  # sites write through to the disk several times in a round
    tempfile.tempdir = None  # pytest has asked before this file was loaded: it asks again
settings.register_profile("netfleet", deadline=None)  # several tests share the cores
settings.load_profile("netfleet")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """While it is there an event loop runs in this thread, which tests of other modules do not expect."""
    with chromium() as found:
        yield found


@pytest.fixture
def ring() -> Topology:
    return make_topology("ring", workers=5, weights="metropolis")


@pytest.fixture
def graph() -> Topology:
    return make_topology({"kind": "erdos-renyi", "p": 0.6}, workers=6, seed=3)


@pytest.fixture
def quadratics() -> Quadratics:
    return Quadratics(6, d=4, seed=2, dtype=torch.float64)


@pytest.fixture
def noisy() -> Quadratics:
    return Quadratics(6, d=4, sigma=0.5, seed=2, dtype=torch.float64)


@pytest.fixture
def logistic() -> Logistic:
    return Logistic(6, d=4, samples=20, batch=3, seed=2, dtype=torch.float64)


@pytest.fixture
def net_fleet() -> NetFleet:
    return NetFleet(K=4, eta=0.05)


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """An environment without data folders."""
    monkeypatch.delenv("NETFLEET_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """`netfleet run` draws no curves and writes no page, which takes it longer than a small run."""
    monkeypatch.setattr(run, "write_report_files", lambda *_: [])


SHARING = (
    "test_distributed.py",
    "test_report.py",
    "test_reproduce.py",
    "test_refusals.py",
    "optim/test_ranks.py",
    "test_wheel.py",
)


#: Files whose tests look at a page stay in one process.
IN_BROWSER = ("watch/test_page.py", "report/test_live_report.py")


class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
    """Tests of a file that shares costly fixtures stay in one process; all others go wherever there is room."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        if file.endswith(IN_BROWSER):
            return "browser"
        return file if file.endswith(SHARING) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduler:
    return Scheduler(config, log)


def pytest_collection_finish() -> None:
    """From here on there is garbage; the thousands of modules and tests, which stay until the end, are none."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the long tests first."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
