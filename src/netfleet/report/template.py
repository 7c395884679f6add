"""Pages from their templates: each is one HTML file that contains everything, in one look."""

from importlib import resources
from typing import Any

import jinja2


def render_page(package: str, name: str, **values: Any) -> str:
    """The page of a package's template, with the style that all pages share as `style`."""
    template = (resources.files(package) / name).read_text(encoding="utf-8")
    style = (resources.files("netfleet.report") / "page.css").read_text(encoding="utf-8")
    rules = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return rules.from_string(template).render(style=style, **values)
