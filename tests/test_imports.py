"""Every module can be imported first: there is no cycle of imports that works in one order only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
#: A process for each module, forked from one that has loaded all other packages and compiled all modules.
PROGRAM = """
import gc, importlib, os, sys, traceback
import grpc.aio, matplotlib.pyplot, networkx, scipy.sparse.linalg, torch
sys.pycache_prefix, sys.dont_write_bytecode = sys.argv[1], False
modules = sys.argv[2:]
for module in modules:
    importlib.import_module(module)
for name in [name for name in sys.modules if name.split(".")[0] == "netfleet"]:
    del sys.modules[name]
gc.disable()
for module in modules:
    if os.fork() == 0:
        try:
            importlib.import_module(module)
        except BaseException:
            traceback.print_exc()
            print(module, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.slow
def test_every_module_can_be_imported_first(tmp_path: Path) -> None:
    files = [path.relative_to(SOURCE).with_suffix("") for path in SOURCE.rglob("*.py")]
    modules = sorted(".".join(path.parts).removesuffix(".__init__") for path in files if path.name != "__main__")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), *modules]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.split() == [], found.stderr
