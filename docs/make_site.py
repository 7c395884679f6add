"""Makes the documentation site: python docs/make_site.py [FOLDER]

It is in build/docs unless FOLDER is given; open index.html there, no server needed. Warnings are errors, a link to a
page or heading that does not exist among them. Notebooks are executed; beside FOLDER, in FOLDER-cache, is a cache of
their outputs. A notebook whose text is the same is not executed again: delete the cache after a change of netfleet.

Links to other servers need the network: python -m sphinx -b linkcheck -D nb_execution_mode=off docs build/links
follows each of them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from sphinx.cmd.build import main as sphinx

HERE = Path(__file__).parent
#: What a browser loads by itself. Links (<a href=…>) may lead outside, these may not.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc\s*=\s*["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b[^>]*?\bhref\s*=\s*["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""",
    re.IGNORECASE,
)


def make(folder: Path) -> int:
    """Sphinx's exit code, or 1 if a page loads something from outside."""
    cache = folder.with_name(f"{folder.name}-cache").resolve()
    options = ["-W", "--keep-going", "-q", "-d", f"{cache}/pages", "-D", f"nb_execution_cache_path={cache}"]
    if code := sphinx(["-b", "html", *options, str(HERE), str(folder)]):
        return code
    outside = list(loaded_from_outside(folder))
    for page, address in outside:
        print(f"{page} loads {address}; the site must work offline", file=sys.stderr)
    return 1 if outside else 0


def loaded_from_outside(folder: Path) -> Iterator[tuple[str, str]]:
    for page in sorted(p for p in folder.rglob("*") if p.suffix in (".html", ".css")):
        for groups in LOADED.findall(page.read_text(encoding="utf-8")):
            yield page.relative_to(folder).as_posix(), "".join(groups)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if sys.argv[1:] else HERE.parent / "build" / "docs"
    if code := make(target):
        sys.exit(code)
    print(f"The site is in {target / 'index.html'}")
