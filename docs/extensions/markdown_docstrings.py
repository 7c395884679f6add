"""What autodoc shows of docstrings and signatures.

Docstrings are Markdown: autodoc gets them as the content of a directive that MyST parses.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from docutils import nodes
from docutils.utils import new_document
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

#: A doctest at the left margin, which Markdown would take for a quotation.
DOCTEST = re.compile(r"^(>>> .*(?:\n.+)*)", re.MULTILINE)

#: A check of a parameter, which has no name that a reader could use.
CHECKED = re.compile(r"~?(?:typing\.)?Annotated\[(.+?), <function \w+ at 0x\w+>\]")


class Markdown(SphinxDirective):
    has_content = True

    def run(self) -> list[nodes.Node]:
        document = new_document(self.get_source_info()[0], self.state.document.settings)
        MystParser().parse(DOCTEST.sub(r"```pycon\n\1\n```", "\n".join(self.content)), document)
        for block in document.findall(nodes.literal_block):
            if block.get("language", "none") == "none":
                block["language"] = _language(block.astext())
        return document.children


def _language(code: str) -> str:
    if code.startswith(">>>"):
        return "pycon"
    try:
        ast.parse(code)
    except SyntaxError:  # equations, shell commands
        return "none"
    return "python"


def _as_markdown(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    if any(lines):
        lines[:] = [".. markdown::", "", *(f"   {line}" if line else "" for line in lines), ""]


def _plain_signature(
    app: Sphinx, what: str, name: str, obj: object, options: Any, signature: str | None, returns: str | None
) -> tuple[str, str | None] | None:
    if signature is None:
        return None
    protocol = signature == "(*args, **kwargs)" and getattr(obj, "_is_protocol", False)
    return "" if protocol else CHECKED.sub(r"\1", signature), returns


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("markdown", Markdown)
    app.connect("autodoc-process-docstring", _as_markdown)
    app.connect("autodoc-process-signature", _plain_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
