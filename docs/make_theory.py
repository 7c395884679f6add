"""Fills docs/theory.md: python docs/make_theory.py [measure]; `measure` searches for counterexamples anew (minutes)."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1]))  # for reproduce/, which is not installed

import netfleet as nf
from netfleet.report.looks import MARKERS, OTHERS, OURS
from netfleet.report.plots import DPI, INK, STYLE, TICKS
from netfleet.theory import bounds as theory
from netfleet.theory.theorems import theorem_1
from netfleet.theory.worst_case import Side, climb, constants, worst
from reproduce.speedup import figure as fits
from reproduce.speedup import study as speedup

ROOT = Path(__file__).parents[1]

PAGE, RESULTS, PICTURE = (ROOT / "docs" / name for name in ("theory.md", "theory.json", "theory.png"))
CLIMBS, STARTS, STEPS = 60, 30, 300
GRAPHS, WORKERS, LOCAL_STEPS = ("complete", "ring"), 8, (1, 4, 16)
FACTORS = np.geomspace(1, 1e4, 41)


def measure() -> dict[str, Any]:
    """What the search finds, and how far beyond the admissible step size the inequality goes on to hold."""
    return {
        "cases": CLIMBS * (STARTS + STEPS),
        "start": climbed("start", seed=0),
        "noise": climbed("noise", seed=1),
        "curves": {f"{graph}, K = {K}": curve(graph, K) for graph in GRAPHS for K in LOCAL_STEPS},
    }


def climbed(side: Side, seed: int) -> dict[str, Any]:
    """The worst case for one side that climbing from many starts finds."""
    rng = np.random.default_rng(seed)
    found = [climb(rng, side, STARTS, STEPS) for _ in range(CLIMBS)]
    case = max(found, key=lambda case: getattr(case.ratios(), side))
    return {
        "ratio": getattr(case.ratios(), side),
        "m": len(case.A),
        "K": case.K,
        "eta": case.eta,
        "lam": constants(case.W, case.A).lam,
        "A": case.A.round(4).tolist(),
        "W": case.W.round(4).tolist(),
    }


def curve(graph: str, K: int) -> dict[str, Any]:
    """The worst ratio of some functions with L = 1 over the step size, in units of the largest admissible one."""
    rng = np.random.default_rng(1)
    W = nf.make_topology(graph, workers=WORKERS).W().toarray()
    drawn = [rng.uniform(-1, 1, WORKERS) for _ in range(40)]
    functions = [np.ones(WORKERS)] + [A / np.abs(A).max() for A in drawn if A.mean() > 0.05]
    largest, binds = theory.largest_step(constants(W, functions[0]), K)
    ratios = [max(worst(W, A, K, factor * largest).ratio for A in functions) for factor in FACTORS]
    return {"largest": largest, "binds": binds, "ratios": [float(f"{min(r, 1e6):.4g}") for r in ratios]}


def crossing(ratios: list[float]) -> float:
    """The factor from which on the inequality fails."""
    fails = [factor for factor, ratio in zip(FACTORS, ratios, strict=True) if not ratio <= 1]
    return float(min(fails, default=np.inf))


def search(results: dict[str, Any]) -> str:
    """What the search found, in words and a table."""
    start, noise = results["start"], results["noise"]
    lines = [
        f"In {results['cases']:,} cases for each ratio (climbs from {CLIMBS} starts) the largest is "
        f"**{start['ratio']:.3f}** without noise ({described(start)}) and **{noise['ratio']:.3f}** for the noise alone "
        f"({described(noise)}).",
        "",
        "| graph, 8 workers, L = 1 | largest admissible η | what binds it | the inequality fails from |",
        "| --- | --- | --- | --- |",
    ]
    for label, one in results["curves"].items():
        lines.append(f"| {label} | {one['largest']:.2g} | {one['binds']} | {crossing(one['ratios']):.0f} times that |")
    return "\n".join(lines)


def described(case: dict[str, Any]) -> str:
    """Which case it is."""
    curvatures = ", ".join(f"{a:.4g}" for a in case["A"])
    return f"m = {case['m']}, K = {case['K']}, λ = {case['lam']:.2g}, η = {case['eta']:.3g}, curvatures {curvatures}"


def draw(results: dict[str, Any]) -> Figure:
    """Left over right-hand side by step size."""
    with matplotlib.rc_context(STYLE):
        figure = Figure((7.2, 3.6), dpi=DPI, layout="constrained")
        axes = figure.add_subplot()
        for (label, one), color, marker in zip(
            results["curves"].items(), (OURS, *OTHERS), ("o", *MARKERS), strict=False
        ):
            ratios = np.array(one["ratios"])
            shown = ratios < 20
            axes.plot(
                FACTORS[shown], ratios[shown], color=color, marker=marker, markersize=4, linewidth=1.2, label=label
            )
        axes.axhline(1, color=INK, linewidth=1, linestyle=(0, (3, 1.5)))
        axes.set(xscale="log", yscale="log", xlabel="step size over the largest that Theorem 1 admits")
        axes.set_ylabel("left over right-hand side")
        axes.set_title("Theorem 1 at its worst: 8 workers, quadratics with L = 1")
        axes.tick_params(**TICKS)
        figure.legend(loc="outside right upper", frameon=False)
    return figure


def graphs() -> str:
    """What λ does to the admissible step size and to the bound, for one problem."""
    lines = [
        "| graph, 16 workers | λ | largest admissible η | what binds it | rounds until Theorem 1 promises 1 |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind in ("complete", "hypercube", "erdos-renyi", "torus", "ring"):
        lam = nf.make_topology(kind, workers=16).lam
        c = theory.Constants(16, lam, L=1.0, variance=1.0, gap=1.0, spread=16.0)
        largest, binds = theory.largest_step(c, 4)
        lines.append(f"| {kind} | {lam:.3f} | {largest:.2g} | {binds} | {theorem_1(c, 4).rounds_to(1.0):,} |")
    return "\n".join(lines)


def slopes() -> str:
    """The picture of the studies in reproduce/speedup, their fitted exponents, and how runs compare with Theorem 1."""
    folder = ROOT / "reproduce"
    known = [(s, speedup.Results(folder / speedup.NAME / f"{s.name}.json")) for s in speedup.find_studies(folder)]
    found = fits.measured(known)
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for study, line, rounds, points, m, SK, _ in fits.slopes(found):  # the figure has the exponents of mSK
        cells.setdefault((study, line), {})[rounds] = "–" if m == "–" else f"{m}, {SK} ({points})"
    rows = [(*key, *(some.get(rounds, "–") for rounds in fits.RANGES)) for key, some in cells.items()]
    headings = ("study", "line", *fits.RANGES)
    table = "\n".join(f"| {' | '.join(row)} |" for row in (headings, ("---",) * len(headings), *rows))
    sentences = "\n".join(f"- {sentence}." for sentence in speedup.margins(known))
    picture = f"![The averaged metric, and below what m does to it](../reproduce/figures/{speedup.NAME}.png)"
    return f"{picture}\n\nExponents of m, SK (number of points):\n\n{table}\n\n{sentences}"


def page() -> str:
    """The page with its marked parts made anew."""
    text = PAGE.read_text(encoding="utf-8")
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    for name, made in (("search", search(results)), ("graphs", graphs()), ("slopes", slopes())):
        new = f"<!-- {name} -->\n{made}\n<!-- end -->"
        text = re.sub(rf"<!-- {name} -->.*?<!-- end -->", lambda _, new=new: new, text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    if "measure" in sys.argv[1:]:
        RESULTS.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    draw(json.loads(RESULTS.read_text(encoding="utf-8"))).savefig(PICTURE)
    PAGE.write_text(page(), encoding="utf-8")
