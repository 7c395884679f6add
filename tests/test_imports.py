"""Every module can be imported first: there is no cycle of imports that works in one order only."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import import_alone
from support.fork_server import ForkedPython

SOURCE = Path(__file__).parents[1] / "src"


@pytest.mark.slow
def test_every_module_can_be_imported_first(tmp_path: Path) -> None:
    files = [path.relative_to(SOURCE).with_suffix("") for path in SOURCE.rglob("*.py")]
    modules = sorted(".".join(path.parts).removesuffix(".__init__") for path in files if path.name != "__main__")
    code, found, said = ForkedPython([import_alone.__file__, str(tmp_path), *modules]).wait()
    assert (code, found.split()) == (0, []), said
