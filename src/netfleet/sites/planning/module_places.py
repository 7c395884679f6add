"""Where a site found the modules that its plan names, so that commands in other folders find them too.

A site is started where its data module is, or with PYTHONPATH. `netfleet leave` may be called elsewhere.
"""

import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from netfleet.errors import StorageError
from netfleet.files import make_folder, write_atomically
from netfleet.registry import make_importable
from netfleet.sites.planning.folders import EXPERIMENT_FILE, RUN_FOLDER

PLACES_FILE = "modules.json"


def make_site_importable(folder: Path) -> None:
    """Let a plan name modules in the site's folder and the current one, then where the last start found them."""
    make_importable(str(folder / EXPERIMENT_FILE), *_places(folder))


def remember_places(folder: Path, modules: Iterable[str]) -> None:
    """Write down where these modules, which are imported, come from; installed packages are found anyway."""
    files = [getattr(sys.modules.get(name.partition(".")[0]), "__file__", None) for name in modules]
    found = [Path(file).absolute() for file in files if file is not None and "site-packages" not in file]
    places = sorted({str(file.parent.parent if file.stem == "__init__" else file.parent) for file in found})
    if places and places != list(map(str, _places(folder))):
        text = json.dumps(places).encode()
        with suppress(StorageError):  # on a full disk the site says so itself, as soon as it needs to write
            make_folder(folder / RUN_FOLDER)
            write_atomically(folder / RUN_FOLDER / PLACES_FILE, lambda file: file.write(text))


def _places(folder: Path) -> list[Path]:
    with suppress(OSError, ValueError):  # without the file, or with a damaged one, the module is looked for as usual
        found = json.loads((folder / RUN_FOLDER / PLACES_FILE).read_text(encoding="utf-8"))
        return [Path(place) for place in found if isinstance(place, str)] if isinstance(found, list) else []
    return []
