"""The example of four hospitals without the real data, in a folder of its own."""

from __future__ import annotations

import re
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from netfleet.cli import main
from support.site_processes import free_ports

EXAMPLE = Path(__file__).parents[2] / "examples" / "hospitals"
NAMES = ("cleveland", "hungarian", "switzerland", "va")


def copy_example(target: Path) -> Path:
    """The example, with ports that are free."""
    shutil.copytree(EXAMPLE, target, ignore=shutil.ignore_patterns("plan", "heart", "*.json", "__pycache__"))
    nodes = target / "nodes.toml"
    text = nodes.read_text(encoding="utf-8")
    for old, new in zip(sorted(set(re.findall(r"127\.0\.0\.1:\d+", text))), free_ports(len(NAMES)), strict=True):
        text = text.replace(old, f"127.0.0.1:{new}")
    nodes.write_text(text, encoding="utf-8")
    return target


def make_up_patients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and sums of all hospitals, in the current folder."""
    monkeypatch.setattr(sys, "argv", ["get_data.py", "--made-up"])
    runpy.run_path(str(EXAMPLE / "get_data.py"), run_name="__main__")
    for name in NAMES:
        assert main(["statistics", "hospitals.toml", "--site", name, "--out", f"sums-{name}.json"]) == 0
    sums = [f"sums-{name}.json" for name in NAMES]
    assert main(["statistics", "hospitals.toml", "--merge", *sums, "--out", "statistics.json"]) == 0
