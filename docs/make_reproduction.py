"""Puts the figures, claims and values of `reproduce/` into the pages that show them: python docs/make_reproduction.py

Between `<!-- figure NAME -->` and `<!-- end -->` stand the picture of a figure, its claims table and where its curves
end; all come from the committed results. `netfleet reproduce all --draw` draws the pictures.
"""

from __future__ import annotations

import re
from pathlib import Path

from netfleet.reproduce import tables
from netfleet.reproduce.figures import by_figure
from netfleet.reproduce.panels import find_panels
from netfleet.reproduce.store import Store

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "reproduce"
STORE = Store(SOURCE / "results")
PAPER = ("fig1", "fig2-small", "fig3", "fig4", "fig5", "fig6")


def figure(name: str) -> str:
    """A figure's picture, claims and values."""
    panels = by_figure(list(find_panels(SOURCE).values()))[name]
    found = tables.lines(panels, STORE)
    path = SOURCE / "figures" / (f"{name}.png" if len(panels) > 1 else f"{panels[0].name}.png")
    parts = [f"![{name}](../{path.relative_to(ROOT)})"] if path.exists() else []
    parts += [tables.markdown(found)] if found else []
    parts += [
        "<details><summary>where each curve ends</summary>",
        tables.values(panels, STORE, "../reproduce/results/"),
    ]
    return "\n\n".join([*parts, "</details>"])


def claims() -> str:
    """The claims of the paper's figures as we read them, and how many hold."""
    figures = by_figure(list(find_panels(SOURCE).values()))
    found = tables.lines([panel for name in PAPER for panel in figures[name]], STORE)
    both = f"{tables.score(found)} checks hold for x̄, {tables.score(found, 1)} for the mean of the workers' own models."
    return f"{both}\n\n{tables.markdown(found)}\n\n{tables.LEGEND}"


def filled(text: str) -> str:
    """A page with its marked parts made anew."""
    text = re.sub(
        r"<!-- figure (\S+) -->.*?<!-- end -->",
        lambda mark: f"<!-- figure {mark[1]} -->\n{figure(mark[1])}\n\n<!-- end -->",
        text,
        flags=re.DOTALL,
    )
    made = f"<!-- claims -->\n{claims()}\n<!-- end -->"
    return re.sub(r"<!-- claims -->.*?<!-- end -->", lambda _: made, text, flags=re.DOTALL)


def pages() -> dict[Path, str]:
    """Every page with what it should say."""
    paths = [ROOT / "docs" / "reproduction.md", ROOT / "docs" / "differences-from-the-paper.md"]
    return {path: filled(path.read_text(encoding="utf-8")) for path in paths}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
