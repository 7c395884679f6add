"""Pages of HTML from the templates in this folder, each with its style in itself."""

from typing import Any

import jinja2


def render(template: str, **values: Any) -> str:
    """A whole page; text is escaped, and a value that the template needs must be given."""
    loader = jinja2.PackageLoader("netfleet", "report")
    rules = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return rules.get_template(template).render(**values)
