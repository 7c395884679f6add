"""One headless Chromium for the tests of a page, which notes every address that a page asks for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
ARGUMENTS += ["--disable-background-networking", "--disable-component-update"]


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser; skips the test where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="pip install playwright, which is in netfleet[dev]")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name)) is not None), None)
    if path is None:
        pytest.skip(f"there is no {' or '.join(names)}; on Debian: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


class Visit:
    """A page in a window of some width, with what it asked for and what went wrong in it."""

    def __init__(self, browser: Browser, url: str, width: int = 1600, scheme: str = "light") -> None:
        dark = scheme == "dark"
        self._context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        self.page: Page = self._context.new_page()
        self.asked, self.errors = list[str](), list[str]()
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(url)

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))

    def elsewhere(self, own: str) -> list[str]:
        """What the page asked for that is not from its own address."""
        return [each for each in self.asked if not each.startswith((own, "data:", "blob:"))]

    def table(self, name: str) -> list[list[str]]:
        """The cells of a table's body: exact numbers, or texts."""
        script = "rows => rows.map(r => [...r.cells].map(c => c.dataset.value ?? c.textContent))"
        found: list[list[str]] = self.page.eval_on_selector_all(f"#{name} tbody tr", script)
        return found
