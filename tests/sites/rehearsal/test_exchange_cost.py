"""The trial of two sites, by which an exchange is measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from netfleet.errors import ConfigError
from netfleet.sites.rehearsal.exchange_cost import _run_all
from support.site_processes import plan_sites

TABLE = {
    "rounds": 2,
    "topology": {"kind": "path"},
    "problem": {"kind": "quadratics", "d": 2},
    "algorithms": [{"kind": "net-fleet", "K": 1, "eta": 0.01}],
}


def test_a_site_that_fails_ends_the_trial(tmp_path: Path) -> None:
    """Its neighbour would wait for it."""
    plan_sites(tmp_path, TABLE, 2)
    (tmp_path / "plan" / "s1" / "site.toml").unlink()
    with pytest.raises(ConfigError, match=r"no site\.toml|is not"):
        _run_all([tmp_path / "plan" / name for name in ("s0", "s1")])
