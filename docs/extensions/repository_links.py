"""Links from pages to code and folders of the repository, as they work on GitHub, lead to pages of the site.

A text file gets a page with its text, a folder one with its files. Results (JSON) stay downloads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).parents[2]
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "bash", ".yaml": "yaml", ".slurm": "bash", ".service": "ini"}
LANGUAGES |= {".cpp": "cpp", ".h": "cpp", ".md": "markdown", ".cff": "yaml"}
HIDDEN = {"__pycache__", "results", "figures"}


class Shown(SphinxTransform):
    """Finds the links and notes what they lead to."""

    default_priority = 5

    def apply(self, **_: Any) -> None:
        for link in [
            *self.document.findall(addnodes.download_reference),
            *self.document.findall(addnodes.pending_xref),
        ]:
            if link.get("reftype") == "myst" and (path := self._shown(link["reftarget"])):
                link.replace_self(_as_reference(link, path))
                _wanted(self.env).setdefault(self.env.docname, set()).add(path)

    def _shown(self, target: str) -> str | None:
        """The path in the repository of a file or folder outside docs/, or None."""
        path = Path(os.path.normpath(Path(self.env.srcdir, self.env.docname).parent / target.partition("#")[0]))
        inside = path.is_relative_to(ROOT) and path != ROOT and not path.is_relative_to(self.env.srcdir)
        return path.relative_to(ROOT).as_posix() if inside and _has_page(path) else None


def _as_reference(link: nodes.Element, path: str) -> nodes.Element:
    new = addnodes.pending_xref("", *link.children, refdomain="", reftype="repository", reftarget=path)
    new["refexplicit"], new["refdoc"] = True, link.get("refdoc")
    return new


def _has_page(path: Path) -> bool:
    return path.is_dir() or (path.is_file() and (path.suffix in LANGUAGES or path.name == "Dockerfile"))


def _wanted(env: BuildEnvironment) -> dict[str, set[str]]:
    """For each page, what it leads to."""
    if not hasattr(env, "repository_paths"):
        env.repository_paths = {}  # type: ignore[attr-defined]
    return env.repository_paths  # type: ignore[attr-defined, no-any-return]


def _forget(app: Sphinx, env: BuildEnvironment, page: str) -> None:
    _wanted(env).pop(page, None)


def _resolve(app: Sphinx, env: BuildEnvironment, link: addnodes.pending_xref, text: nodes.Element) -> Any:
    if link["reftype"] != "repository":
        return None
    uri = app.builder.get_relative_uri(link["refdoc"], f"repository/{link['reftarget']}")
    return nodes.reference("", "", *link.children, internal=True, refuri=uri)


def _pages(app: Sphinx) -> Iterator[tuple[str, dict[str, str], str]]:
    """A page for each path that a page leads to, and for the files of its folders."""
    todo, done = sorted(set().union(*_wanted(app.env).values())), set[str]()
    while todo:
        path = todo.pop()
        if path in done:
            continue
        done.add(path)
        if (ROOT / path).is_dir():
            todo += [below.relative_to(ROOT).as_posix() for below in _files(ROOT / path) if _has_page(below)]
        body = _folder(app, path) if (ROOT / path).is_dir() else _text(app, path)
        title = f"<h1>{escape(path)}</h1>\n"
        yield f"repository/{path}", {"title": path, "body": title + body}, "page.html"


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.name not in HIDDEN and not p.name.startswith("."))


def _folder(app: Sphinx, path: str) -> str:
    here = f"repository/{path}"
    lines = []
    for below in _files(ROOT / path):
        name = escape(below.name + ("/" if below.is_dir() else ""))
        uri = app.builder.get_relative_uri(here, f"repository/{path}/{below.name}")
        lines.append(f'<li><a href="{uri}">{name}</a></li>' if _has_page(below) else f"<li>{name}</li>")
    readme = ROOT / path / "README.md"
    text = _text(app, f"{path}/README.md") if readme.exists() else ""
    return f"<ul>{''.join(lines)}</ul>\n{text}"


def _text(app: Sphinx, path: str) -> str:
    file = ROOT / path
    language = "docker" if file.name == "Dockerfile" else LANGUAGES[file.suffix]
    html = app.builder.highlighter.highlight_block(file.read_text(encoding="utf-8"), language)  # type: ignore[attr-defined]
    return str(html)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(Shown)
    app.connect("env-purge-doc", _forget)
    app.connect("missing-reference", _resolve)
    app.connect("html-collect-pages", _pages)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
