"""Processes that a part starts, and the Python environments of other libraries; a failure says why."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import netfleet
from netfleet.data.files import cache_folder
from netfleet.errors import EngineError


class Unavailable(EngineError):
    """A library or process that cannot be installed or run, with the reason."""


def variables() -> dict[str, str]:
    """This process's variables, with netfleet and the checkout importable."""
    checkout, package = Path(__file__).resolve().parents[1], Path(netfleet.__file__).resolve().parents[1]
    found = [str(package), str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(found)}


def output(
    command: Sequence[str], timeout: float = 900.0, folder: Path | None = None, shown: int = 1, **more: str
) -> str:
    """What a command prints; raises with the last lines of its errors if it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, cwd=folder, env=variables() | more
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"took more than {timeout:.0f} s") from None
    if done.returncode:
        raise Unavailable("\n".join(done.stderr.strip().splitlines()[-shown:]) or "failed without a message")
    return done.stdout


def result(command: Sequence[str]) -> dict[str, Any]:
    """What a command prints in its last line, as JSON."""
    found: dict[str, Any] = json.loads(output(command).splitlines()[-1])
    return found


def python_of(script: Path, make: bool = True) -> str:
    """The Python of a script's environment, which is made once and kept in the cache folder.

    The script says in its head what it needs (PEP 723); what it says is part of the environment's name.
    """
    needs = metadata(script.read_text(encoding="utf-8"))
    mark = hashlib.sha256(json.dumps(needs, sort_keys=True).encode()).hexdigest()[:12]
    folder = cache_folder() / "bench" / f"{script.stem}-{mark}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        if not make:
            raise Unavailable(f"it is not installed in {folder}")
        shutil.rmtree(folder, ignore_errors=True)
        version = re.sub(r"[^\d.]|\.\*", "", needs["requires-python"])
        output([_find_python(version), "-m", "venv", str(folder)])
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for packages in install_steps(needs):
            output([*pip, *packages], timeout=1800)
        (folder / "complete").touch()
    return str(python)


def install_steps(needs: dict[str, Any]) -> list[list[str]]:
    """torch first and alone, so that the packages that ask for it find the build for CPUs."""
    torch = [package for package in needs["dependencies"] if package.startswith("torch==")]
    return [step for step in (torch, needs["dependencies"]) if step]


def _find_python(version: str) -> str:
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version:
        return sys.executable
    installed = sorted(map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")))
    for candidate in (*installed, *filter(None, [shutil.which(f"python{version}")])):
        try:
            output([candidate, "--version"])
        except Unavailable:
            continue
        return candidate
    raise Unavailable(f"needs Python {version}, which is not here")


def metadata(text: str) -> dict[str, Any]:
    """The inline metadata of a script (PEP 723)."""
    block = re.search(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$", text)
    if block is None:
        return {"requires-python": f"=={sys.version_info.major}.{sys.version_info.minor}.*", "dependencies": []}
    return tomllib.loads(
        "".join(line[2:] if line.startswith("# ") else line[1:] for line in block["content"].splitlines(True))
    )
