"""What this machine has left: disk, memory, and the right to write."""

import os
import shutil
from pathlib import Path

_MEMORY, _CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def free_disk(folder: Path) -> int:
    """Bytes that this user may still write there."""
    return shutil.disk_usage(folder).free


def free_memory() -> int | None:
    """Bytes that this process can still get from the machine or its container; None: nobody says."""
    found = [each for each in (_available(), _left_in_container()) if each is not None]
    return min(found, default=None)


def _available() -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
        return 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return None


def _left_in_container() -> int | None:
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return None if limit == "max" else max(int(limit) - int(used), 0)
    except (OSError, ValueError):
        return None


def is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)
