"""Takes the picture of the live page that docs/watch.md shows: python docs/make_pictures.py

It runs the demo with one seed, and needs Chromium and the tests' extra (`netfleet[dev]`).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "tests"))

from support.browser import Visit, chromium  # noqa: E402

NETFLEET = [sys.executable, "-m", "netfleet"]
RUN = ["run", "--record-workers", "--set", "seeds=[0]", "--set", "rounds=120"]


def take(address: str, path: Path) -> None:
    with chromium() as browser, Visit(browser, address, 1200) as visit:
        visit.page.wait_for_selector("body[data-ready]")
        visit.page.set_viewport_size({"width": 1200, "height": 1960})
        visit.page.wait_for_timeout(1500)  # figures are drawn after the values are there
        visit.page.screenshot(path=path)
    print(f"wrote {path}")


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = str(Path(temporary) / "demo")
        subprocess.run([*NETFLEET, *RUN, "--out", folder], check=True, stdout=subprocess.DEVNULL)
        command = [*NETFLEET, "watch", folder, "--port", "0"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as page:
            assert page.stderr is not None
            take(
                next(word for word in page.stderr.readline().split() if word.startswith("http://")), HERE / "watch.png"
            )
            page.terminate()


if __name__ == "__main__":
    main()
