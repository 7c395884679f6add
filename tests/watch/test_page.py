"""The page of `netfleet watch` in a browser: it says what the History says, at any width, with or without a mouse."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from netfleet.runs.history import History
from support.browser import Visit
from support.watched import add_rounds, kill, made_by, site, start_run

pytest.importorskip("bokeh", reason="pip install 'netfleet[watch]'")

from netfleet.watch.beside import listen, url
from netfleet.watch.news import Source
from netfleet.watch.run_source import RunSource
from netfleet.watch.server import Pages, Server
from netfleet.watch.site_source import SiteSource

if TYPE_CHECKING:
    from playwright.sync_api import Browser

READY = "body[data-ready]"


@contextmanager
def served(source: Source) -> Iterator[str]:
    listening = listen("127.0.0.1", 0, 0)
    server = Server(Pages(source), listening)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield url(listening)
    finally:
        server.shutdown()
        server.server_close()


def shown(visit: Visit, label: str) -> dict[str, float]:
    """A run's line of the table of values, as exact numbers by heading."""
    heads = visit.page.eval_on_selector_all("#moment thead th", "all => all.map(each => each.textContent)")
    row = next(row for row in visit.table("moment") if row[0] == label)
    return {head: float(value) for head, value in zip(heads[1:], row[1:], strict=True) if value != "–"}


def drawn(visit: Visit, column: str) -> list[tuple[list[float], list[float]]]:
    """The lines of a figure."""
    script = "name => { const d = models[name]('data ' + name).data; return d.xs.map((x, i) => [x, d.ys[i]]); }"
    return [tuple(each) for each in visit.page.evaluate(script, column)]


def says(visit: Visit, words: str) -> None:
    """Wait until the first line of the page has some words."""
    visit.page.wait_for_function("words => document.getElementById('status').textContent.includes(words)", arg=words)


def test_values_equal_the_history_at_every_round_of_the_slider(browser: Browser, tmp_path: Path) -> None:
    run, other = start_run(tmp_path), start_run(tmp_path, "DSGD", 1)
    add_rounds(other, 0, 40)
    with made_by(tmp_path), served(RunSource(tmp_path)) as address:
        add_rounds(run, 0, 20)
        with Visit(browser, address) as visit:
            visit.page.wait_for_selector(READY)
            says(visit, "NET-FLEET, seed 0 running: round 20 of 40")
            visit.page.wait_for_function("() => models.graph('nodes').data.x.length === 5")
            _check(visit, run, 20)
            lines = {tuple(xs): ys for xs, ys in drawn(visit, "loss")}
            assert lines == {tuple(each["round"]): list(each["loss"]) for each in (run, other)}
            visit.page.select_option("#axis", "bytes")
            assert list(run["bytes"]) in [xs for xs, _ in drawn(visit, "loss")]
            add_rounds(run, 21, 30)  # the page follows
            says(visit, "round 30 of 40")
            _check(visit, run, 30)
            assert sorted(len(xs) for xs, _ in drawn(visit, "loss")) == [31, 41]
            slider = visit.page.locator("#place")
            slider.focus()
            for _ in range(3):
                visit.page.keyboard.press("ArrowLeft")
            visit.page.wait_for_function("() => document.getElementById('round').textContent === 'round 27'")
            assert slider.get_attribute("aria-valuetext") == "round 27"
            _check(visit, run, 27)
            visit.page.keyboard.press("Home")
            visit.page.wait_for_function("() => document.getElementById('round').textContent === 'round 0'")
            _check(visit, run, 0)
            visit.page.click("#newest")
            visit.page.wait_for_function("() => document.getElementById('round').textContent === 'round 30'")
            assert visit.errors == []


def _check(visit: Visit, run: History, t: int) -> None:
    found, record = shown(visit, f"{run.label}, seed {run.seed}"), run.records[t]
    named = {"round": "round", "Accuracy of x̄": "accuracy", "Loss of x̄": "loss", "‖Σ(y − g)‖": "tracking_error"}
    named |= {"Consensus error": "consensus_error", "bytes": "bytes", "seconds": "seconds"}
    assert {head: found[head] for head in named} == {head: record[name] for head, name in named.items()}
    workers = visit.table("nodes")
    assert [row[0] for row in workers] == ["0", "1", "2", "3", "4"]
    assert [float(row[1]) for row in workers] == pytest.approx([0.5 + 0.01 * i + t / 1000 for i in range(5)])
    values = visit.page.evaluate("Array.from(models.graph('nodes').data.value)")
    assert values == [float(row[1]) for row in workers]


def test_a_run_that_waits_runs_dies_and_ends_is_shown_so(browser: Browser, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(served(RunSource(tmp_path)))
        visit = Visit(browser, address)
        says(visit, "has no run yet; this page waits for one")
        run = start_run(tmp_path)
        with made_by(tmp_path):
            add_rounds(run, 0, 5)
            says(visit, "running: round 5 of 40")
            visit.page.wait_for_function("() => models.graph && models.graph('nodes').data.x.length === 5")
            equal = "news.colours.nodes[at('colour').value] = Array(5).fill(0.9); drawGraph();"
            scale = visit.page.evaluate(
                "() => {" + equal + " const m = models.graph('mapper'); return [m.low, m.high]; }"
            )
            assert scale == pytest.approx([0.891, 0.909])  # equal values are in the middle of theirs
        kill(tmp_path)
        says(visit, "died: round 5 of 40; its process is gone")
        assert visit.page.title().endswith(": died")
        add_rounds(run, 6, 40)
        says(visit, "done: round 40 of 40")
    with visit:  # its server has ended
        says(visit, "no longer served; this is the last")
        assert shown(visit, "NET-FLEET, seed 0")["round"] == 40
        assert visit.errors == []


@pytest.mark.parametrize(("width", "scheme"), [(420, "dark"), (1600, "light")])
def test_it_fits_its_window_has_labels_and_loads_nothing_from_elsewhere(
    browser: Browser, tmp_path: Path, width: int, scheme: str
) -> None:
    add_rounds(start_run(tmp_path, "NET-FLEET with a long name"), 0, 9)
    with served(RunSource(tmp_path)) as address, Visit(browser, address, width, scheme) as visit:
        visit.page.wait_for_selector(READY)
        visit.page.wait_for_selector("[data-column=loss]:not([hidden])")
        assert visit.overflow() <= 0
        assert visit.elsewhere(address) == []
        assert any(each.endswith("bokeh.js") for each in visit.asked)
        page = visit.page
        assert page.get_by_label("Round", exact=True).get_attribute("type") == "range"
        for label in ("against", "slider and graph follow", "Colour of the nodes"):
            assert page.get_by_label(label).is_visible()
        plots = page.locator(".plot:visible")
        assert all(plots.nth(i).get_attribute("aria-label") for i in range(plots.count()))
        assert plots.count() > 5
        assert page.get_by_role("status").inner_text() == page.inner_text("#status")
        shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (shade == "rgb(20, 23, 27)") == (scheme == "dark")
        assert visit.errors == []


def test_sites_with_a_wait_and_an_alarm(browser: Browser, tmp_path: Path) -> None:
    answers = [site(0, 9, "waiting", waits=2), site(1, 9, alarm=True), site(2, 7)]
    with served(SiteSource(tmp_path, lambda: answers)) as address, Visit(browser, address, 420) as visit:
        says(visit, "rounds 7 to 9 of 40; 1 waiting, 2 training")
        assert visit.page.locator("#words").inner_text().startswith("north waits for south, which has been silent")
        visit.page.wait_for_function("() => models.graph('nodes').data.x.length === 3")
        labels = visit.page.evaluate("models.graph('nodes').data.label")
        assert labels == ["north", "east: alarm: loss, since round 3", "south"]
        assert any("waits for south" in each for each in visit.page.evaluate("models.graph('links').data.label"))
        assert visit.table("nodes")[0][:4] == ["north", "waiting", "9", "0"]
        assert visit.overflow() <= 0
        assert visit.errors == []
