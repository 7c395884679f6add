"""Environments of other libraries, made once and kept in the cache folder.

A script says in its head what it needs (PEP 723); what it says is part of the name of its environment.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from netfleet.data.files import cache_folder


class Unavailable(Exception):
    """A library that cannot be installed or run, with the reason."""


def environment(script: Path, make: bool = True) -> str:
    """The Python of a script's environment, made if it is not there yet."""
    needs = _metadata(script.read_text(encoding="utf-8"))
    version = re.sub(r"[^\d.]|\.\*", "", needs["requires-python"])
    mark = hashlib.sha256(json.dumps(needs, sort_keys=True).encode()).hexdigest()[:12]
    folder = cache_folder() / "bench" / f"{script.stem}-{mark}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        if not make:
            raise Unavailable(f"it is not installed in {folder}")
        shutil.rmtree(folder, ignore_errors=True)
        _install([_find_python(version), "-m", "venv", str(folder)])
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for packages, more in _steps(needs):
            _install([*pip, *more, *packages])
        (folder / "complete").touch()
    return str(python)


def _steps(needs: dict[str, Any]) -> list[tuple[list[str], list[str]]]:
    """torch first and alone: what else asks for it then finds the build for CPUs."""
    torch = [package for package in needs["dependencies"] if package.startswith("torch==")]
    without = needs.get("tool", {}).get("netfleet", {}).get("no-deps", [])
    steps = [(torch, []), (list(needs["dependencies"]), []), (list(without), ["--no-deps"])]
    return [(packages, more) for packages, more in steps if packages]


def _install(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()] or done.stderr.splitlines()
        raise Unavailable((lines or ["failed"])[-1])


def _find_python(version: str) -> str:
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version:
        return sys.executable
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in (*installed, shutil.which(f"python{version}")):
        if candidate and subprocess.run([candidate, "--version"], capture_output=True).returncode == 0:
            return str(candidate)
    raise Unavailable(f"needs Python {version}, which is not here")


def _metadata(text: str) -> dict[str, Any]:
    """The inline metadata of a script (PEP 723)."""
    block = re.search(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$", text)
    if block is None:
        return {"requires-python": f"=={sys.version_info.major}.{sys.version_info.minor}.*", "dependencies": []}
    return tomllib.loads(
        "".join(line[2:] if line.startswith("# ") else line[1:] for line in block["content"].splitlines(True))
    )
