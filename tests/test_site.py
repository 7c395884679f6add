"""The documentation site: it builds without a warning and loads nothing from outside."""

from __future__ import annotations

import argparse
import inspect
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import netfleet
import netfleet.optim
from netfleet.cli import make_parser

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
    weights = text(site / "weights.html")
    assert weights.index("Made by python docs/make_weights.py") > weights.index("Measured")  # it is at the end


@pytest.mark.slow
def test_the_reference_has_every_public_name_every_method_and_every_option(site: Path) -> None:
    listed = re.findall(
        r'id="(netfleet\.[\w.]+)"', "".join(p.read_text("utf-8") for p in (site / "reference").glob("*.html"))
    )
    for module, places in (
        (netfleet, ("netfleet", "netfleet.algorithms")),
        (netfleet.algorithms, ("netfleet.algorithms", "netfleet")),
        (netfleet.optim, ("netfleet.optim",)),
    ):
        names = [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]
        assert not [name for name in names if not any(f"{place}.{name}" in listed for place in places)]
    commands = text(site / "reference" / "commands.html")
    assert "netfleet receipts verify" in commands
    actions = [action for parser in parsers(make_parser()) for action in parser._actions]
    options = {option for each in actions if each.help != argparse.SUPPRESS for option in each.option_strings}
    assert {option for option in options if option not in commands} == set()


@pytest.mark.slow
def test_the_notebooks_show_their_outputs(site: Path) -> None:
    def shown(name: str) -> str:
        return (site / "tutorials" / f"{name}.html").read_text(encoding="utf-8")

    for name in ("first_run", "own_data"):
        (picture,) = re.findall(r'src="(\.\./_images/\w+\.png)"', shown(name))
        assert (site / "tutorials" / picture).resolve().stat().st_size > 10_000
    assert "95 % interval" in shown("own_data")
    assert "heavy ball" in text(site / "tutorials" / "own_method.html").rpartition("tail(2)")[2]
    assert "AUROC of the model alone" in text(site / "tutorials" / "hospitals.html").rpartition("DataFrame(rows).T")[2]
    ratios = re.findall(r"<th>(NET-FLEET|K-GT|LED)</th>" + r"\s*<td>([\d.]+)</td>" * 3, shown("graph_weights_k"))
    assert {name: float(ratio) < 0.8 for name, _, _, ratio in ratios} == {"NET-FLEET": True, "K-GT": True, "LED": True}


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


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
