"""What each process of tests/engines/test_distributed.py runs to try commands: `[[port, arguments], …]` as JSON."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path

from netfleet.cli import main


def run(port: int, arguments: list[str]) -> tuple[int, str, list[str]]:
    """A command's exit code, what it wrote to the standard error, and the threads of Gloo that are left."""
    os.environ["MASTER_PORT"] = str(port)
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = main(arguments)
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]  # none on other systems
    return code, said.getvalue(), [name for name in names if "gloo" in name]


if __name__ == "__main__":
    print(json.dumps([run(*command) for command in json.loads(sys.argv[1])]))
