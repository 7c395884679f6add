"""A plan of three sites in a row, copied for each test that changes its certificates."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from netfleet.sites.planning import certificates as tls
from support.site_peers import PATH, World
from support.site_processes import plan_sites


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peers")
    plan_sites(folder, PATH, 3)
    return folder / "plan"


@pytest.fixture
def world(planned: Path, tmp_path: Path) -> World:
    shutil.copytree(planned, tmp_path / "plan")
    return World(tmp_path / "plan", tls.load_authority(planned / "ca" / "ca.pem", planned / "ca" / "ca.key"))
