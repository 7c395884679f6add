"""Environments of other libraries, made once and kept in the cache folder.

A script says in its head what it needs (PEP 723); what it says is part of the name of its environment.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

from benchmarks.processes import Unavailable, output
from netfleet.data.files import cache_folder


def environment(script: Path, make: bool = True) -> str:
    """The Python of a script's environment; makes the environment first if it is missing."""
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
