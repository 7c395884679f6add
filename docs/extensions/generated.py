"""Puts what is made from the code in the place of its mark, `<!-- made: NAME -->`, when a page is read."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from extensions.algorithm_lines import algorithm_lines
from extensions.commands import commands
from extensions.method_classes import methods, optimizers

MAKERS: dict[str, Callable[[], str]] = {
    "algorithm_lines": algorithm_lines,
    "commands": commands,
    "methods": methods,
    "optimizers": optimizers,
}
MARK = re.compile(r"<!-- made: (\w+) -->")


def _fill(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = MARK.sub(lambda mark: MAKERS[mark[1]](), source[0])


def _always(app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Pages with a mark are read in every build, since the code may have changed."""
    return [page for page in env.all_docs if page not in removed and MARK.search(_text(env, page))]


def _text(env: BuildEnvironment, page: str) -> str:
    path = Path(env.doc2path(page))
    return path.read_text(encoding="utf-8") if path.exists() else ""


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _fill)
    app.connect("env-get-outdated", _always)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
