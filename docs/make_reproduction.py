"""Puts the figures, claims and values of `reproduce/` into the pages that show them: python docs/make_reproduction.py

Between `<!-- figure NAME -->` and `<!-- end -->` stand the picture of a figure, its claims (the claims of the paper
are in one table, `<!-- claims -->`) and where its curves end; all come from the stored results. `netfleet reproduce all
--draw` draws the pictures.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # for reproduce/, which is not installed

from netfleet.runs.history import History
from reproduce import output
from reproduce.claims import last, smoothed
from reproduce.panels import Panel, find_panels
from reproduce.runs import histories
from reproduce.store import Store, file_name

ROOT = Path(__file__).parents[1]

SOURCE = ROOT / "reproduce"
STORE = Store(SOURCE / "results")
FIGURES = output.by_figure(find_panels(SOURCE).values())
PAPER = ("fig1", "fig3", "fig4", "fig5", "fig6")
SMALL = "fig2-small"
HEADINGS = ("panel", "#", "claim", "paper", "holds if", "ours, x̄", "verdict", "ours, workers", "verdict")
VALUES = ("panel", "curve", "x̄", "workers", "worst worker", "x̄ at 95 % after", "sent", "samples", "results")


def markdown(found: Sequence[output.JudgedClaim]) -> str:
    """The claims as a Markdown table, verdicts in bold."""
    rows = [judged.cells() for judged in found]
    bold = ("holds", "does not hold", "undecided")
    return _pipes(HEADINGS, [[f"**{cell}**" if cell.startswith(bold) else cell for cell in row] for row in rows])


def _pipes(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (headings, ["---"] * len(headings), *rows))


def values(panels: Sequence[Panel], store: Store, link: str = "") -> str:
    """Where every curve ends, as a Markdown table; a result is named by its hash and linked to below `link`."""
    found = [(panel.name, label, runs) for panel in panels for label, runs in histories(panel, store).items() if runs]
    return _pipes(VALUES, [(name, label, *_ends(runs, link)) for name, label, runs in found])


def _ends(runs: Sequence[History], link: str) -> tuple[str, ...]:
    names = ", ".join(f"[{h.hash[:8]}]({link}{file_name(h.hash)})" if link else h.hash[:8] for h in runs)
    if lost := [h for h in runs if h.diverged]:
        return (f"diverged after round {lost[0].rounds}", *("–",) * 5, names)
    columns = ("accuracy", "worker_accuracy_mean", "worker_accuracy_min")
    accuracies = [_over_seeds([float(last(h, column)[1].mean()) for h in runs]) for column in columns]
    sent, samples = runs[0].last["bytes"] / 1e9, runs[0].last["samples"] / 1e6
    costs = f"{sent:,.0f} GB", f"{samples:,.1f} M" if samples >= 0.1 else f"{samples:.3f} M"
    return (*accuracies, _reached(runs, 0.95), *costs, names)


def _over_seeds(numbers: Sequence[float]) -> str:
    mean = f"{100 * np.mean(numbers):.1f}"
    return f"{mean} ± {100 * np.std(numbers, ddof=1):.1f} %" if len(numbers) > 1 else f"{mean} %"


def _reached(runs: Sequence[History], level: float) -> str:
    """The first rounds at which the smoothed curves are at a level."""
    curves = [smoothed(h, "accuracy") for h in runs]
    firsts = [next((r["round"] for r in h if (r["accuracy"] or 0) >= level), None) for h in curves]
    known = [first for first in firsts if first is not None]
    if len(known) < len(firsts):
        return "–" if not known else f"– ({len(known)} of {len(firsts)} seeds)"
    return f"{min(known)}" if min(known) == max(known) else f"{min(known)} to {max(known)}"


def counts_of(found: Sequence[output.JudgedClaim], column: int = 0) -> str:
    known = [v for judged in found if (v := judged.verdicts[column]) is not None]
    verdicts = [v.holds for v in known]
    counts = {"undecided": verdicts.count(None), "not run": len(found) - len(verdicts)}
    rest = "".join(f", {count} {word}" for word, count in counts.items() if count)
    narrow = sum(v.provisional for v in known)
    aside = f"; {narrow} of these are provisional" if narrow else ""
    return f"{verdicts.count(True)} hold, {verdicts.count(False)} do not{rest}{aside}"


def figure(name: str) -> str:
    """A figure's picture, claims and values."""
    panels = FIGURES[name]
    if not any(runs for panel in panels for runs in histories(panel, STORE).values()):
        return "Not run yet."
    parts = [f"![{name}](../reproduce/figures/{output.picture_name(panels)})"]
    if (found := output.judged_claims(panels, STORE)) and name not in (*PAPER, SMALL):
        parts.append(markdown(found))
    parts += [
        "<details><summary>where each curve ends</summary>",
        values(panels, STORE, "../reproduce/results/"),
    ]
    return "\n\n".join([*parts, "</details>"])


def paper_lines() -> list[output.JudgedClaim]:
    """The claims of the paper's figures as we read them."""
    return output.judged_claims([panel for name in PAPER for panel in FIGURES[name]], STORE)


def claims() -> str:
    """The claims table; figure 2 has its own."""
    small = output.judged_claims(FIGURES[SMALL], STORE)
    note = "Figure 2 was run with 10 workers and a narrow ResNet, so its verdicts are not about the paper's setting:"
    return "\n\n".join([score(), markdown(paper_lines()), output.LEGEND, note, markdown(small)])


def score() -> str:
    """How many of the paper's claims hold, in a sentence."""
    found = paper_lines()
    both = f"{counts_of(found)} (by the workers' own models: {counts_of(found, 1)})"
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
