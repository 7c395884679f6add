"""Moves the line that says which command made a page from the top, where editors need it, to the end."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

NOT_BY_HAND = "; do not edit by hand."


class AtTheEnd(SphinxTransform):
    default_priority = 900

    def apply(self, **_: Any) -> None:
        for line in list(self.document.findall(nodes.paragraph)):
            text = line.astext()
            if text.startswith("Made by ") and text.endswith(NOT_BY_HAND):
                line.parent.remove(line)
                last = line.children[-1]
                line.replace(last, nodes.Text(last.astext().removesuffix(NOT_BY_HAND) + "."))
                self.document.children[-1].append(line)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_transform(AtTheEnd)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
