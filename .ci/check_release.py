"""Whether this checkout can be released: .venv/bin/python .ci/check_release.py; the exit code is 1 if it cannot yet.

`NETFLEET_REPOSITORY` is the repository's address, to which the links of the package's description lead.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import yaml

import netfleet
from netfleet.gradients.native import build
from netfleet.gradients.native.compiler import NAMES, SCALARS, file_name

ROOT, VERSION = Path(__file__).parents[1], netfleet.__version__


class NotYet(Exception):
    """What is wrong, and what to do."""


def said(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise NotYet(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-1000:]}")
    return done.stdout.strip()


def changelog(root: Path = ROOT) -> None:
    heading = re.search(r"^## (\S+) \((.+)\)$", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    if heading is None or heading[1] != VERSION or not re.fullmatch(r"\d{4}-\d\d-\d\d", heading[2]):
        found = heading[0] if heading else "no heading"
        raise NotYet(f"CHANGELOG.md begins with {found!r}, expected '## {VERSION} (YYYY-MM-DD)'; write the date there")


def citation(root: Path = ROOT) -> None:
    known = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))["version"]
    if known != VERSION:
        raise NotYet(f"CITATION.cff has version {known}, netfleet is {VERSION}; change it there")


def committed() -> None:
    if changed := said("git", "status", "--porcelain"):
        raise NotYet(f"not everything is committed; commit or remove:\n{changed}")


def tag() -> None:
    if said("git", "tag", "--list", f"v{VERSION}"):
        raise NotYet(f"there is a tag v{VERSION} already; raise __version__ in src/netfleet/__init__.py")


def wheel() -> None:
    if not os.environ.get("NETFLEET_REPOSITORY"):
        raise NotYet("set NETFLEET_REPOSITORY to the repository's address, to which the description's links lead")
    with tempfile.TemporaryDirectory() as folder:
        said(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ".")
        (path,) = Path(folder).glob("*.whl")
        check_wheel(path)


def check_wheel(path: Path) -> None:
    """Raise unless a wheel has the version, the native libraries of each level, and no link to a file beside it."""
    with zipfile.ZipFile(path) as file:
        names = {Path(name).name for name in file.namelist()}
        (metadata,) = (file.read(name).decode() for name in file.namelist() if name.endswith(".dist-info/METADATA"))
    wanted = {file_name(name, scalar, level) for name in NAMES for scalar in SCALARS for level in build.levels()}
    if not path.name.startswith(f"netfleet-{VERSION}-"):
        raise NotYet(f"the wheel is {path.name}, expected version {VERSION}")
    if not wanted or wanted - names:
        raise NotYet(f"{path.name} lacks native libraries; install a C++ compiler, on x86-64 or ARM")
    if links := re.findall(r"\]\((?!https?://)([^)]+)\)", metadata):
        raise NotYet(f"the description links to {', '.join(links)}; such links lead nowhere on another page")


def docs() -> None:
    said(sys.executable, "docs/make_site.py")


CHECKS: tuple[Callable[[], None], ...] = (committed, tag, changelog, citation, wheel, docs)


def main() -> int:
    failed = 0
    for check in CHECKS:
        try:
            check()
            print(f"ok       {check.__name__}")
        except NotYet as why:
            failed = 1
            print(f"not yet  {check.__name__}: {why}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
