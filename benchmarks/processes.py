"""Processes that a part starts: they find the checkout from any folder, and a failure says why."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import netfleet
from netfleet.errors import EngineError


class Unavailable(EngineError):
    """A library or process that cannot be installed or run, with the reason."""


def environment() -> dict[str, str]:
    """This process's variables, with netfleet and the checkout importable."""
    checkout, package = Path(__file__).resolve().parents[1], Path(netfleet.__file__).resolve().parents[1]
    found = [str(package), str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(found)}


def output(
    command: Sequence[str], timeout: float = 900.0, folder: Path | None = None, shown: int = 1, **variables: str
) -> str:
    """What a command prints; raises with the last lines of its errors if it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, cwd=folder, env=environment() | variables
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"took more than {timeout:.0f} s") from None
    if done.returncode:
        raise Unavailable("\n".join(done.stderr.strip().splitlines()[-shown:]) or "failed without a message")
    return done.stdout


def result(command: Sequence[str]) -> Any:
    """What a command prints in its last line, as JSON."""
    return json.loads(output(command).splitlines()[-1])
