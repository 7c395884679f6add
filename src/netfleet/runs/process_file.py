"""Which process makes the runs of a folder, so that `netfleet watch` can tell a run that goes on from one that died."""

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

PROCESS_FILE = "process.json"
#: "elsewhere": on another machine, of which this one cannot know whether it lives.
Life = Literal["alive", "dead", "elsewhere", "ended"]


@contextmanager
def process_file(folder: Path | None) -> Iterator[None]:
    """Within the context the folder names this process. The file stays only where the process dies or fails."""
    if folder is None:
        yield
        return
    path = folder / PROCESS_FILE
    about = {"host": platform.node(), "pid": os.getpid(), "started": _started(os.getpid())}
    _write(path, about)
    try:
        yield
    except Exception as error:
        _write(path, {**about, "error": f"{type(error).__name__}: {error}"})
        raise
    except BaseException:  # Ctrl-C
        path.unlink(missing_ok=True)
        raise
    path.unlink(missing_ok=True)


def life(folder: Path) -> tuple[Life, str]:
    """Whether the process that makes the folder's runs is alive, and the error that has ended it, if one has."""
    try:
        about = json.loads((folder / PROCESS_FILE).read_text(encoding="utf-8"))
        host, pid, started = str(about["host"]), int(about["pid"]), about["started"]
    except (OSError, ValueError, KeyError, TypeError):
        return "ended", ""
    if error := about.get("error"):
        return "dead", str(error)
    if host != platform.node():
        return "elsewhere", ""
    return ("alive" if _lives(pid, started) else "dead"), ""


def _lives(pid: int, started: object) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return _started(pid) == started


def _started(pid: int) -> str:
    """When a process began, in clock ticks since the machine did; empty where the system does not say."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if words[0] == "Z" else words[19]  # a zombie has ended


def _write(path: Path, about: object) -> None:
    """Write what a full disk may forbid: the runs go on without it."""
    with suppress(OSError):
        path.write_text(json.dumps(about), encoding="utf-8")
