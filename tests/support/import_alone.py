"""What the process of tests/test_imports.py runs: `CACHE MODULE …` prints the modules that cannot be imported first."""

from __future__ import annotations

import gc
import importlib
import sys
import traceback


def forget() -> None:
    """Let the next import find nothing of netfleet; other packages stay."""
    for name in [name for name in sys.modules if name.split(".")[0] == "netfleet"]:
        del sys.modules[name]


if __name__ == "__main__":
    sys.pycache_prefix, sys.dont_write_bytecode = sys.argv[1], False
    gc.disable()
    for module in sys.argv[2:]:
        forget()
        try:
            importlib.import_module(module)
        except BaseException:
            traceback.print_exc()
            print(module)
