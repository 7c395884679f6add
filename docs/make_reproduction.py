"""Puts the figures, claims and values of `reproduce/` into the pages that show them: python docs/make_reproduction.py

Between `<!-- figure NAME -->` and `<!-- end -->` the script writes a figure's picture, its claims and where its curves
end, from the stored results. `<!-- claims -->` has the claims of the paper. `netfleet reproduce all --draw` draws the
pictures.
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
from reproduce.claims import Verdict, last, smoothed
from reproduce.panels import Panel, find_panels
from reproduce.runs import histories, planned
from reproduce.store import Store, file_name

ROOT = Path(__file__).parents[1]

SOURCE = ROOT / "reproduce"
STORE = Store(SOURCE / "results")
FIGURES = output.by_figure(find_panels(SOURCE).values())
PAPER = ("fig1", "fig3", "fig4", "fig5", "fig6")
SMALL = "fig2-small"
HEADINGS = ("panel", "claim", "paper (holds if)", "x̄", "workers")
VALUES = ("panel", "curve", "x̄, %", "workers, %", "worst worker, %", "rounds to x̄ = 95 %", "sent, GB")


def markdown(found: Sequence[output.JudgedClaim]) -> str:
    """The claims as a Markdown table; a claim that does not hold is in bold."""
    rows = [(panel.name, c.text, f"{c.paper} ({c.rule()})", *map(_verdict, verdicts)) for panel, c, verdicts in found]
    return _pipes(HEADINGS, rows)


def _verdict(verdict: Verdict | None) -> str:
    if verdict is None:
        return "not run"
    return f"{verdict.ours()} " + (verdict.words if verdict.holds else f"**{verdict.words}**")


def _pipes(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (headings, ["---"] * len(headings), *rows))


def values(panels: Sequence[Panel], store: Store, link: str) -> str:
    """Where every curve ends, as a Markdown table without columns of equal values; `link` is the results' folder."""
    found = [(panel.name, label, runs) for panel in panels for label, runs in histories(panel, store).items() if runs]
    columns = zip(VALUES, *((name, label, *_ends(runs, link)) for name, label, runs in found), strict=True)
    headings, *rows = zip(*(c for c in columns if len(found) == 1 or len(set(c[1:])) > 1), strict=True)
    return _pipes(headings, rows)


def step_sizes(panels: Sequence[Panel], store: Store, link: str) -> str:
    """x̄ and workers at the end of curves over the same step sizes: a row per panel, a column per step size."""
    ends = [[_ends(runs, link)[:2] if runs else "–" for runs in histories(panel, store).values()] for panel in panels]
    rows = [(panel.title, *(" / ".join(pair) for pair in row)) for panel, row in zip(panels, ends, strict=True)]
    return _pipes(("x̄ / workers, %", *(curve.label for curve in panels[0].curves)), rows)


def _ends(runs: Sequence[History], link: str) -> tuple[str, ...]:
    """The accuracies at the end, of which x̄ has links to the results, the rounds to 95 % and the bytes sent."""
    urls = [f"{link}{file_name(h.hash)}" for h in runs]
    if lost := [h for h in runs if h.diverged]:
        return (f"[diverged after round {lost[0].rounds}]({urls[runs.index(lost[0])]})", *("–",) * 4)
    columns = ("accuracy", "worker_accuracy_mean", "worker_accuracy_min")
    mean, *workers = (_over_seeds([float(last(h, column)[1].mean()) for h in runs]) for column in columns)
    seeds = ", ".join(f"[{h.seed}]({url})" for h, url in zip(runs, urls, strict=True))
    linked = f"[{mean}]({urls[0]})" if len(runs) == 1 else f"{mean} (seeds {seeds})"
    return (linked, *workers, _reached(runs, 0.95), f"{runs[0].last['bytes'] / 1e9:,.0f}")


def _over_seeds(numbers: Sequence[float]) -> str:
    mean = f"{100 * np.mean(numbers):.1f}"
    return f"{mean} ± {100 * np.std(numbers, ddof=1):.1f}" if len(numbers) > 1 else mean


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
    verdicts, lost = [v.holds for v in known], sum(bool(v.diverged) for v in known)
    close = verdicts.count(None) - lost
    counts = {"too close to call": close, "undecided": lost, "not run": len(found) - len(known)}
    rest = "".join(f", {count} {word}" for word, count in counts.items() if count)
    narrow = sum(v.provisional for v in known)
    aside = f" ({narrow} of the verdicts are provisional)" if narrow else ""
    return f"{verdicts.count(True)} hold, {verdicts.count(False)} do not{rest}{aside}"


def figure(name: str) -> str:
    """A figure's picture, claims and values."""
    panels = FIGURES[name]
    if not any(runs for panel in panels for runs in histories(panel, STORE).values()):
        return "Not run yet."
    parts = [f"![{name}](../reproduce/figures/{output.picture_name(panels)})"]
    if (found := output.judged_claims(panels, STORE)) and name not in (*PAPER, SMALL):
        parts.append(markdown(found))
    table = step_sizes if panels[0].name.startswith("tune-") else values
    ends = table(panels, STORE, "../reproduce/results/")
    return "\n\n".join([*parts, "<details><summary>where each curve ends</summary>", ends, "</details>"])


def paper_lines() -> list[output.JudgedClaim]:
    """The claims of the paper's figures as we read them."""
    return output.judged_claims([panel for name in PAPER for panel in FIGURES[name]], STORE)


def claims() -> str:
    """The claims tables: first the claims that do not hold by x̄, last those that do; figure 2 has its own."""
    found, small = paper_lines(), output.judged_claims(FIGURES[SMALL], STORE)
    parts = [score(), output.LEGEND]
    for title, wanted in (("do not hold", False), ("are too close to call or not run", None), ("hold", True)):
        some = [judged for judged in found if ((v := judged.verdicts[0]) and v.holds) is wanted]
        parts += [f"### Claims that {title} by x̄", markdown(some)] if some else []
    note = "These runs have 10 workers and a narrow ResNet, so the verdicts are not about the paper's setting:"
    return "\n\n".join([*parts, "### Figure 2, cut down", note, markdown(small)])


def score() -> str:
    """How many of the paper's claims hold, in a sentence."""
    found = paper_lines()
    both = f"by the average model x̄ {counts_of(found)}; by the workers' own models {counts_of(found, 1)}"
    panels = [panel for name in PAPER for panel in FIGURES[name]]
    every, absent = len(planned(panels)), len(planned(panels, STORE))
    part = f" So far {every - absent} of their {every} runs are stored." if absent else ""
    return f"Of {len(found)} checks of the paper's claims on MNIST, {both}.{part}"


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
