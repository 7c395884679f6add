"""Puts the figures, claims and values of `reproduce/` into the pages that show them: python docs/make_reproduction.py

Between `<!-- figure NAME -->` and `<!-- end -->` stand the picture of a figure, its claims (the claims of the paper
are in one table, `<!-- claims -->`) and where its curves end; all come from the stored results. `netfleet reproduce all
--draw` draws the pictures.
"""

from __future__ import annotations

import re
from pathlib import Path

from reproduce import output
from reproduce.panels import find_panels
from reproduce.runs import histories
from reproduce.store import Store

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "reproduce"
STORE = Store(SOURCE / "results")
FIGURES = output.by_figure(find_panels(SOURCE).values())
PAPER = ("fig1", "fig3", "fig4", "fig5", "fig6")
SMALL = "fig2-small"


def figure(name: str) -> str:
    """A figure's picture, claims and values."""
    panels = FIGURES[name]
    if not any(runs for panel in panels for runs in histories(panel, STORE).values()):
        return "Not run yet."
    parts = [f"![{name}](../reproduce/figures/{output.picture_name(panels)})"]
    if (found := output.judged_claims(panels, STORE)) and name not in (*PAPER, SMALL):
        parts.append(output.markdown(found))
    parts += [
        "<details><summary>where each curve ends</summary>",
        output.values(panels, STORE, "../reproduce/results/"),
    ]
    return "\n\n".join([*parts, "</details>"])


def paper_lines() -> list[output.JudgedClaim]:
    """The claims of the paper's figures as we read them."""
    return output.judged_claims([panel for name in PAPER for panel in FIGURES[name]], STORE)


def claims() -> str:
    """The claims table; figure 2 has its own."""
    small = output.judged_claims(FIGURES[SMALL], STORE)
    note = "Figure 2 was run with 10 workers and a narrow ResNet, so its verdicts are not about the paper's setting:"
    return "\n\n".join([score(), output.markdown(paper_lines()), output.LEGEND, note, output.markdown(small)])


def score() -> str:
    """How many of the paper's claims hold, in a sentence."""
    found = paper_lines()
    both = f"{output.score(found)} (by the workers' own models: {output.score(found, 1)})"
    return f"Of {len(found)} checks of the paper's claims on MNIST, {both}."


def filled(text: str) -> str:
    """A page with its marked parts made anew."""
    text = re.sub(
        r"<!-- figure (\S+) -->.*?<!-- end -->",
        lambda mark: f"<!-- figure {mark[1]} -->\n{figure(mark[1])}\n\n<!-- end -->",
        text,
        flags=re.DOTALL,
    )
    for name, make in (("claims", claims), ("score", score)):
        made = f"<!-- {name} -->\n{make()}\n<!-- end -->"
        text = re.sub(rf"<!-- {name} -->.*?<!-- end -->", lambda _, new=made: new, text, flags=re.DOTALL)
    return text


def pages() -> dict[Path, str]:
    """Every page with what it should say."""
    paths = [ROOT / "README.md", ROOT / "docs" / "reproduction.md"]
    return {path: filled(path.read_text(encoding="utf-8")) for path in paths}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
