"""The documentation site: it builds without a warning and loads nothing from outside."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "docs" / "make_site.py"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` makes it, without what earlier builds kept."""
    folder = tmp_path_factory.mktemp("site") / "docs"
    done = subprocess.run([sys.executable, str(SCRIPT), str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_site_has_every_page_and_the_code_that_pages_link_to(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs").with_suffix("") for page in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page.with_suffix(".html")).exists()} == set()
    assert "class HeavyBall" in text(site / "repository/examples/my_algorithm.py.html")
    assert "hospitals.toml" in text(site / "repository/examples/hospitals.html")


def text(page: Path) -> str:
    """A page without its tags."""
    return re.sub(r"<[^>]*>", "", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("html", "address"),
    [
        ('<script async src="https://cdn.example/x.js"></script>', "https://cdn.example/x.js"),
        ("<link rel=stylesheet href=//fonts.example/a.css>", "//fonts.example/a.css"),
        ("<style>@import 'http://a.example/b.css';</style>", "http://a.example/b.css"),
        ("<p style=\"background: url('https://a.example/b.png')\">", "https://a.example/b.png"),
        ('<a href="https://doi.org/10.1145/3492866.3549723">a link</a><img src="here.png">', None),
    ],
)
def test_what_a_page_loads_from_outside_is_found(tmp_path: Path, html: str, address: str | None) -> None:
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    found = list(runpy.run_path(str(SCRIPT))["loaded_from_outside"](tmp_path))
    assert found == ([("page.html", address)] if address else [])
