"""The wheel: libraries for every level of a processor, which need no compiler and give the results of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from netfleet.gradients.native import build
from netfleet.gradients.native.compiler import NAMES, SCALARS, file_name
from support.compiler_cache import caching_compiler

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not build.levels() or build.find_compiler() is None, reason="no C++ compiler here"),
]
#: Gradients of chains and residual networks; test_noise.py compares the levels itself.
TESTS = ["gradients/test_native.py", "gradients/test_residual.py"]


def pip(*arguments: str | Path, **more: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | more, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    compiler = caching_compiler(folder, build.find_compiler() or "")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ".", CXX=str(compiler))
    (wheel,) = folder.glob("*.whl")
    assert "-py3-none-" in wheel.name
    pip("install", "--no-deps", "--target", folder / "installed", wheel)
    with zipfile.ZipFile(wheel) as file:
        made = {Path(name).name for name in file.namelist() if name.endswith(".so")}
    best = build.levels()
    assert made >= {file_name(name, dtype, level) for name in NAMES for dtype in SCALARS for level in best}
    return folder / "installed"


def python(installed: Path, folder: Path, *arguments: str, **environment: str) -> str:
    """What a Python says that has the wheel's netfleet; it compiles nothing."""
    own = {"PYTHONPATH": str(installed), "XDG_CACHE_HOME": str(folder / "cache"), **environment}
    command = [sys.executable, "-P", *arguments]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **own}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (folder / "cache" / "netfleet" / "native").exists()
    return done.stdout + done.stderr


def test_the_demo_runs_natively_without_a_compiler(installed: Path, tmp_path: Path) -> None:
    loads = "from netfleet.gradients.native.build import library; print(library('chain')._name)"
    none = {"PATH": str(tmp_path), "CXX": ""}
    assert str(installed) in python(installed, tmp_path, "-W", "error", "-c", loads, **none)
    demo = ["-W", "error", "-m", "netfleet", "run", "--set", "rounds=3", "--out", "demo"]
    assert "NET-FLEET" in python(installed, tmp_path, *demo, **none)
    assert (tmp_path / "demo" / "report.html").is_file()


@pytest.mark.parametrize("capability", [level.capability for level in build.levels()[1:]])
def test_lesser_processors_pass_the_same_tests(capability: str, installed: Path, tmp_path: Path) -> None:
    tests = [str(ROOT / "tests" / name) for name in TESTS]
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow", "-k", "not compile"]
    said = python(installed, tmp_path, "-m", "pytest", *options, *tests, ATEN_CPU_CAPABILITY=capability.lower())
    assert "[100%]" in said
