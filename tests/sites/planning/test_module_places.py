"""A site's own module is found where its last start has found it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from netfleet.errors import ConfigError
from netfleet.sites.doctor.findings import Report
from netfleet.sites.doctor.local import MACHINE, open_folder
from netfleet.sites.planning.module_places import PLACES_FILE, remember_places
from netfleet.sites.policy.start import open_site
from support.site_peers import Log
from support.site_processes import plan_sites

MODULE = "data_of_this_site"
TABLE = {
    "rounds": 2,
    "topology": {"kind": "ring"},
    "problem": {"kind": "classification", "data": f"{MODULE}:load", "partition": "sites"},
    "algorithms": [{"kind": "net-fleet", "K": 2, "eta": 0.05}],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site whose module is in a folder of its own, which is not on Python's path."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / f"{MODULE}.py").write_text("def load():\n    raise NotImplementedError\n")
    with monkeypatch.context() as patched:
        patched.syspath_prepend(tmp_path / "code")  # as PYTHONPATH would
        plan_sites(tmp_path, TABLE, 3)
        remember_places(tmp_path / "plan" / "s0", [MODULE])
    sys.modules.pop(MODULE)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(tmp_path / "code")])
    monkeypatch.chdir(tmp_path)
    return tmp_path / "plan"


def test_another_command_finds_the_module_again(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no module"):
        open_site(folder / "s1")  # was never started
    assert open_site(folder / "s0").site.name == "s0"
    assert sys.path[-1] == str(folder.parent / "code")  # whatever else is there comes first


def test_the_doctor_finds_the_module_too(folder: Path) -> None:
    report = Report("s0")
    assert open_folder(folder / "s0", None, report, Log(), MACHINE).experiment is not None
    assert report.findings == []


@pytest.mark.parametrize("text", ["", "[1", '{"a": 1}', "[1, null]"])
def test_a_damaged_file_is_as_none(folder: Path, text: str) -> None:
    (folder / "s0" / "run" / PLACES_FILE).write_text(text)
    with pytest.raises(ConfigError, match="no module"):
        open_site(folder / "s0")


def test_installed_packages_are_not_remembered(tmp_path: Path) -> None:
    remember_places(tmp_path, ["numpy", "sys", "no_such_module"])
    assert not (tmp_path / "run").exists()
