"""The report's live curves in a browser: from disk, with values, hidden curves, zoom and paired differences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from netfleet.report import write_report
from netfleet.runs.history import History, band
from netfleet.topology.topology import make_topology
from support.browser import Visit
from support.watched import record

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def runs() -> list[History]:
    return [
        History(
            {"algorithm": {"kind": label}}, "", label, seed, [record(t, shift + seed / 100) for t in range(0, 41, 4)]
        )
        for label, shift in (("NET-FLEET", 0.0), ("DSGD", 0.2))
        for seed in (0, 1)
    ]


@pytest.fixture(scope="module")
def address(runs: list[History], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    given: dict[str, Any] = {"config": {}, "config_text": "", "title": "A ring", "label_counts": None}
    write_report(path, histories=runs, topology=make_topology("ring", workers=4), **given)
    return path.as_uri()


@pytest.mark.parametrize(("width", "scheme"), [(420, "dark"), (1600, "light")])
def test_a_report_from_disk_can_be_read_curve_by_curve(
    browser: Browser, runs: list[History], address: str, width: int, scheme: str
) -> None:
    with Visit(browser, address, width, scheme) as visit:
        page, lines = visit.page, "#live-cards figure:first-child polyline"
        assert visit.elsewhere(address) == []
        assert visit.overflow() <= 0
        beyond = "all => Math.max(...all.map(e => e.getBBox().x + e.getBBox().width - e.ownerSVGElement.clientWidth))"
        assert page.eval_on_selector_all("#live-cards text", beyond) <= 0  # no number is cut off
        assert page.locator(".switch").is_hidden()  # the pictures, which are for print
        assert page.locator(lines).count() == 2
        loss = page.locator("#live-cards figure > svg").nth(1)
        assert "Loss (loss of the average model x̄) against communication rounds" in str(
            loss.get_attribute("aria-label")
        )
        loss.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        found = band(runs[:2], "loss")
        told = page.inner_text("#live-at")
        assert told.startswith(f"Loss at 4 communication rounds: NET-FLEET {found.mean[1]:.5g} [{found.low[1]:.5g} to")
        page.get_by_label("DSGD", exact=True).uncheck()
        assert page.locator(lines).count() == 1
        assert page.inner_text("#live-at").startswith("Loss at 4 ")
        assert "DSGD" not in page.inner_text("#live-at")  # hidden curves are told no more
        page.get_by_label("DSGD", exact=True).check()
        page.get_by_label("show", exact=True).select_option(label="paired differences to NET-FLEET")
        assert page.locator("#live-cards figcaption").first.inner_text() == "Accuracy: difference to NET-FLEET"
        loss.focus()
        page.keyboard.press("ArrowRight")
        assert "DSGD 0.2 " in page.inner_text("#live-at").replace("0.2;", "0.2 ") + " "
        before = page.locator(lines).get_attribute("points")
        page.get_by_role("button", name="zoom in").click()
        assert page.locator(lines).get_attribute("points") != before
        page.get_by_role("button", name="zoom out").click()
        assert page.locator(lines).get_attribute("points") == before
        page.emulate_media(media="print")
        assert page.locator(".switch").is_visible()
        assert visit.errors == []


def test_a_report_does_not_promise_to_repeat_what_only_a_script_has(runs: list[History], tmp_path: Path) -> None:
    given: dict[str, Any] = {"config": {}, "title": "A ring", "label_counts": None}
    topology = make_topology("ring", workers=4)
    for text, words in (('kind = "__main__:make"', "run that script again"), ('kind = "digits"', "netfleet run exp")):
        write_report(tmp_path / "report.html", histories=runs, topology=topology, config_text=text, **given)
        assert words in (tmp_path / "report.html").read_text()
