"""Writes docs/weights.md from docs/weights.json: python docs/make_weights.py [RUNS]

With RUNS, a folder for the runs, the measurement is made first (half an hour on two cores; it resumes).
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

import netfleet as nf
from netfleet.errors import ConfigError
from netfleet.report.looks import looks
from netfleet.report.plots import DPI, STYLE, TICKS
from netfleet.runs.config import Experiment, experiment, read_toml
from netfleet.runs.run import run_experiment
from netfleet.runs.tuning import best, rounds_to, tune

HERE = Path(__file__).parent
RESULTS, PICTURE = HERE / "weights.json", HERE / "weights.png"
TARGET, ROUNDS, GRID = 0.9, 200, {"eta": [0.02, 0.05, 0.1, 0.2, 0.5, 1.0]}
TUNED_ON, SEEDS = [0, 10], [1, 2, 3, 4, 5]
METHODS = ("net-fleet", "k-gt", "led", "ld-sgd", "gt-sgd", "dsgd")
GRAPHS: dict[str, dict[str, Any]] = {
    "random": {"kind": "erdos-renyi", "p": 0.3},
    "grid": {"kind": "grid"},
    "ring": {"kind": "ring"},
    "star": {"kind": "star"},
    "exponential": {"kind": "exponential"},
}
WEIGHTS: dict[str, dict[str, Any]] = {
    "laplacian": {"kind": "laplacian"},
    "metropolis": {"kind": "metropolis"},
    "fastest": {"kind": "fastest"},
    "fastest, ≥ −1/3": {"kind": "fastest", "least": -1 / 3},
}
HEAD = """# Weights

Made by `python docs/make_weights.py` from runs; do not edit by hand.

The matrix W says how much of each neighbour's model a worker takes. The graph decides who talks; `weights` in
`[topology]` decides how well that talk mixes: λ, the factor by which an exchange shrinks the disagreement.

| weights | what | needs to know |
|---|---|---|
| `laplacian` | I − (2/3) L/λmax(L), the paper's and the default; eigenvalues from 1/3 on | the whole graph |
| `metropolis` | 1 / (1 + the larger degree) on a link | the neighbours' degrees |
| `max-degree`, `uniform` | one weight for all links; `uniform` on regular graphs | the largest degree |
| `fastest` | the least λ of all non-negative W whose eigenvalues are at least `least` (default 0) | the whole graph |

`fastest` (Boyd, Diaconis, Xiao 2004) is a convex problem, which netfleet solves for up to 2,000 links. `netfleet
topology` shows λ of any choice.
"""
WORDS = """
## Which to take

- **Methods with local steps (NET-FLEET, K-GT, LED, LD-SGD): `metropolis`.** On the graphs below they take about half
  of the default's rounds, and a worker needs to know its neighbours only.
- **Where `metropolis` is refused**, because LED, D² or ProxSkip diverge with its least eigenvalue (LED on the grid):
  `fastest`, whose eigenvalues are at least 0.
- **GT-SGD: `fastest` or `laplacian`.** With one gradient per round, negative eigenvalues ask for a smaller step size.
- **`laplacian` to compare with the paper**, whose configs keep it.
- On a star no weights help: every exchange goes through one worker.
"""
HOW = """
## Measured

Rounds until the average model x̄ has {percent} accuracy on the digits of
[examples/methods.toml](../examples/methods.toml) (20 workers with two labels each, K = 10). Every method has the step
size of one grid that gets it there first on held-out training rows, for each graph and weights. Means over seeds
{seeds}, which tuning did not use; "–": not all seeds get there in {rounds} rounds.

    python docs/make_weights.py runs/weights

![Rounds to {percent} by weights]({picture})

"""


def measure(runs: Path) -> dict[str, Any]:
    """Every method on every graph with every choice of weights, at its own step size."""
    examples = read_toml(HERE.parent / "examples" / "methods.toml")
    found: dict[str, Any] = {}
    for graph, spec in GRAPHS.items():
        for weights, choice in WEIGHTS.items():
            topology = nf.make_topology(spec, workers=20, weights=choice, seed=SEEDS[0])
            least = float(np.linalg.eigvalsh(topology.W().toarray())[0])
            rows = {}
            for method in (m for m in examples["algorithms"] if m["kind"] in METHODS):
                table = examples | {"topology": {**spec, "workers": 20, "weights": choice}, "rounds": ROUNDS}
                table |= {"algorithms": [method], "evaluation": {"every": 1, "full_every": ROUNDS}, "seeds": TUNED_ON}
                folder = runs / f"{graph}-{list(WEIGHTS).index(weights)}-{method['kind']}"
                label, row = one(experiment(table), folder)
                rows[label] = row
            found.setdefault(graph, {})[weights] = {"lambda": topology.lam, "least": least, "methods": rows}
            RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(graph, weights, {label: row["rounds"] for label, row in rows.items()}, flush=True)
    return found


def one(given: Experiment, folder: Path) -> tuple[str, dict[str, Any]]:
    """A method's label, its best step size and the rounds that it takes with each seed."""
    label = given.runs()[0].label
    try:
        tuned = best(given, tune(given, GRID, folder / "tune", target=TARGET))
    except ConfigError:
        return label, {"refused": True, "rounds": [None]}
    made = run_experiment(replace(tuned, seeds=tuple(SEEDS)), folder / "best", resume=True)
    hits = [None if history.diverged else rounds_to(history, TARGET) for history in made]
    return label, {"eta": tuned.algorithms[0]["eta"], "rounds": hits}


def needed(row: dict[str, Any] | None) -> float:
    """The mean over seeds of the rounds to the target; infinite if a seed does not get there."""
    hits = row["rounds"] if row else [None]
    return math.inf if None in hits else float(np.mean(hits))


def check_words(results: dict[str, Any]) -> None:
    """Raise if the results contradict WORDS."""
    fair = {graph: by for graph, by in results.items() if graph != "star"}
    local = ("NET-FLEET", "K-GT", "LD-SGD")

    def rounds(graph: str, weights: str, label: str) -> float:
        return needed(fair[graph][weights]["methods"].get(label))

    words = {
        "metropolis takes fewer rounds than laplacian with local steps": all(
            rounds(graph, "metropolis", label) < 0.8 * rounds(graph, "laplacian", label)
            for graph in fair
            for label in local
        ),
        "fastest takes fewer rounds than metropolis for GT-SGD": all(
            rounds(graph, "fastest", "GT-SGD") < rounds(graph, "metropolis", "GT-SGD") for graph in fair
        ),
        "fastest is better than laplacian for LED": all(
            rounds(graph, "fastest", "LED") < rounds(graph, "laplacian", "LED") for graph in fair
        ),
        "LED is refused on the grid with metropolis": results["grid"]["metropolis"]["methods"]["LED"].get("refused"),
    }
    if wrong := [claim for claim, holds in words.items() if not holds]:
        raise ValueError(f"{RESULTS.name} does not say that {'; '.join(wrong)}; rewrite WORDS in {Path(__file__).name}")


def labels(results: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(label for by in results.values() for one in by.values() for label in one["methods"]))


def table(results: dict[str, Any]) -> str:
    names = labels(results)
    lines = [f"| graph | weights | λ | least eigenvalue | {' | '.join(names)} |", "|---" * (4 + len(names)) + "|"]
    for graph, by in results.items():
        least = {label: min(needed(one["methods"].get(label)) for one in by.values()) for label in names}
        for weights, one in by.items():
            counts = [needed(one["methods"].get(label)) for label in names]
            shown = ["–" if math.isinf(c) else f"{c:.0f}" for c in counts]
            bold = [
                f"**{s}**" if math.isfinite(c) and c == least[label] else s
                for s, c, label in zip(shown, counts, names, strict=True)
            ]
            cells = [graph, f"`{weights}`", f"{one['lambda']:.3f}", f"{one['least']:+.3f}".replace("-", "−"), *bold]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(results: dict[str, Any]) -> Figure:
    """Rounds to the target by weights, a panel per graph and a line per method; what does not get there is left out."""
    styles = looks(labels(results))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.5, 3.4), dpi=DPI, layout="constrained")
        for axes, (graph, by) in zip(figure.subplots(1, len(results), sharey=True), results.items(), strict=True):
            for label, look in styles.items():
                counts = [needed(one["methods"].get(label)) for one in by.values()]
                shown = [math.nan if math.isinf(count) else count for count in counts]
                axes.plot(range(len(by)), shown, label=label, marker=look.marker, **look.line())
            axes.set_xticks(range(len(by)), list(by), rotation=35, ha="right", fontsize=7)
            axes.set_title(graph)
            axes.set_yscale("log")
            axes.tick_params(**TICKS)
        figure.axes[0].set_ylabel(f"rounds to {TARGET:.0%} of x̄")
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    return figure


def page() -> str:
    """The whole page."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    check_words(results)
    how = HOW.format(percent=f"{TARGET:.0%}", seeds=SEEDS, rounds=ROUNDS, picture=PICTURE.name)
    return HEAD + WORDS + how + table(results)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(Path(sys.argv[1]))
    draw(json.loads(RESULTS.read_text(encoding="utf-8"))).savefig(PICTURE)
    (HERE / "weights.md").write_text(page(), encoding="utf-8")
