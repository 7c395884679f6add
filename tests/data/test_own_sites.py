"""Data that a function of the user's loads at each site: one site's rows there, those of all in the simulator."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from netfleet.cli import main
from netfleet.data import load_dataset, make_dataset, make_partition, own_tests
from netfleet.data.dataset import Dataset
from netfleet.data.sites import SITE_VARIABLE, as_site
from netfleet.errors import ConfigError, DataError

NAMES = ["hospital-b", "hospital-a"]  # not in alphabetical order
KIND, SITES = f"{__name__}:load", {"kind": "sites", "names": NAMES}
GUIDE = (Path(__file__).parents[2] / "docs" / "sites.md").read_text(encoding="utf-8")


def rows(site: str, width: int = 2) -> tuple[Any, Any]:
    count = {"hospital-a": 10, "hospital-b": 25}[site]
    return np.full((count, width), float(count)), np.arange(count) % 2


def load() -> Dataset:
    site = os.environ["NETFLEET_SITE"]
    return make_dataset(*rows(site), classes=2, site=site)


def load_all() -> Dataset:
    return make_dataset(*rows("hospital-a"), classes=2)


def load_unlike() -> Dataset:
    site = os.environ["NETFLEET_SITE"]
    return make_dataset(*rows(site, 2 + site.endswith("a")), classes=2, site=site)


def test_the_simulator_has_the_rows_of_all_named_sites_in_their_order() -> None:
    data = load_dataset(KIND, SITES)
    parts = make_partition(SITES, data, 2, seed=0)
    assert data.site is None
    assert data.group_names == tuple(NAMES)
    assert SITE_VARIABLE not in os.environ
    tests = own_tests(data, parts)
    assert tests is not None
    for name, part, held in zip(NAMES, parts, tests, strict=True):
        with as_site(name):
            alone = load_dataset(KIND, SITES)
        assert alone.site == name
        assert torch.equal(data.train_x[part], alone.train_x)  # type: ignore[index,arg-type]
        assert torch.equal(data.test_y[held], alone.test_y)  # type: ignore[index,arg-type]


def test_without_names_the_simulator_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r'NETFLEET_SITE.*names = \["hospital-a", "hospital-b"\]'):
        load_dataset(KIND, "sites")


def test_a_function_that_does_not_say_whose_rows_it_returns_is_rejected() -> None:
    with pytest.raises(ConfigError, match="returned rows of no site where NETFLEET_SITE is 'hospital-b'"):
        load_dataset(f"{__name__}:load_all", SITES)


def test_sites_with_other_columns_are_named() -> None:
    with pytest.raises(
        DataError, match=r"inputs of .* at hospital-b are float64 \[2\], of .* at hospital-a float64 \[3"
    ):
        load_dataset(f"{__name__}:load_unlike", SITES)


def test_names_are_for_functions_of_the_user() -> None:
    with pytest.raises(ConfigError, match="names are for a function of yours"):
        load_dataset("digits", SITES)


def test_as_many_workers_as_names() -> None:
    with pytest.raises(DataError, match="set workers = 2"):
        make_partition(SITES, load_dataset(KIND, SITES), 3, seed=0)


@pytest.fixture
def guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The guide's own loader and experiment, with rows where it looks for them, as the current folder."""
    code = (resources.files("netfleet.templates") / "sites" / "own_data.py").read_text(encoding="utf-8")
    assert f"```python\n{code}```" in GUIDE
    (problem,) = re.findall(r"```toml\n(\[problem\]\ndata = \"own_data:load\".*?)```", GUIDE, re.DOTALL)
    names = tomllib.loads(problem)["problem"]["partition"]["names"]
    (tmp_path / "own_data.py").write_text(code)
    (tmp_path / "data").mkdir()
    text = 'rounds = 2\ntopology = { kind = "ring" }\n[[algorithms]]\nkind = "net-fleet"\nK = 2\neta = 0.05\n' + problem
    (tmp_path / "hospitals.toml").write_text(text)
    nodes = "".join(f'[[nodes]]\nname = "{name}"\naddress = "127.0.0.1:{74 + i}00"\n' for i, name in enumerate(names))
    (tmp_path / "nodes.toml").write_text(nodes)
    for i, name in enumerate(names):
        np.savez(
            tmp_path / "data" / f"{name}.npz", x=np.random.default_rng(i).normal(size=(40, 3)), y=np.arange(40) % 2
        )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_data", raising=False)
    return tmp_path


def test_the_guides_own_loader_works_in_the_simulator_and_in_a_plan(guide: Path, capsys: Any) -> None:
    assert main(["run", "hospitals.toml", "--set", "topology.workers=4"]) == 0
    planned = ["plan", "hospitals.toml", "--nodes", "nodes.toml", "--out", "plan"]
    assert main(planned) == 0
    (guide / "nodes.toml").write_text((guide / "nodes.toml").read_text().replace("switzerland", "clinic"))
    capsys.readouterr()
    assert main([*planned[:-1], "other"]) == 2
    assert "problem.partition has the names cleveland, hungarian, va, switzerland" in capsys.readouterr().err
