"""Fills the tables of docs/privacy.md from docs/privacy.json: python docs/make_privacy.py [RUNS]

With RUNS, a folder for the runs, the measurement is made first (about half an hour on two cores; it resumes).
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from netfleet.report.looks import looks
from netfleet.report.plots import DPI, STYLE, TICKS
from netfleet.runs.config import Experiment, experiment, read_toml
from netfleet.runs.run import run_experiment
from netfleet.runs.tuning import best, tune

HERE = Path(__file__).parent
RESULTS, PICTURE, PAGE = HERE / "privacy.json", HERE / "privacy.png", HERE / "privacy.md"
GRID = {"eta": [0.02, 0.05, 0.1, 0.2, 0.5, 1.0]}
TUNED_ON, SEEDS = [10], [0, 1, 2]
EPSILONS: tuple[float | None, ...] = (1.0, 2.0, 4.0, 8.0, None)  # None: no privacy
METHODS = ("net-fleet", "k-gt", "led", "ld-sgd")
TASKS = {"digits": ("private.toml", "accuracy"), "heart": ("hospitals/hospitals.toml", "auroc")}
CLIP, K, DELTA = 1.0, 5, 1e-4


def measure(runs: Path) -> None:
    """Every method at every ε, at its own step size."""
    found: dict[str, Any] = {}
    for task, (file, column) in TASKS.items():
        for epsilon in EPSILONS:
            for method in METHODS:
                folder = runs / f"{task}-{epsilon}-{method}"
                label, row = one(setting(file, epsilon, method), folder, column)
                found.setdefault(task, {}).setdefault(label, {})[str(epsilon)] = row
                print(task, epsilon, label, row, flush=True)
                RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def setting(file: str, epsilon: float | None, method: str) -> Experiment:
    table = read_toml(HERE.parent / "examples" / file) | {"rounds": 100, "seeds": TUNED_ON}
    table |= {"algorithms": [{"kind": method, "K": K}]}
    table["evaluation"] = {**table["evaluation"], "every": 10, "full_every": 100}
    table.pop("privacy", None)
    if epsilon is not None:
        table["privacy"] = {"clip": CLIP, "epsilon": epsilon, "delta": DELTA}
    return experiment(table)


def one(given: Experiment, folder: Path, column: str) -> tuple[str, dict[str, Any]]:
    """A method's label, its best step size and the last value of a column with each seed."""
    tuned = best(given, tune(given, GRID, folder / "tune"))
    made = run_experiment(replace(tuned, seeds=tuple(SEEDS)), folder / "best", resume=True)
    spent = made[0].last.get("epsilon")
    values = [None if history.diverged else history.last[column] for history in made]
    return made[0].label, {"eta": tuned.algorithms[0]["eta"], "spent": spent, "values": values}


def cell(row: dict[str, Any]) -> str:
    values = [100 * value for value in row["values"] if value is not None]
    return "diverged" if len(values) < len(row["values"]) else f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}"


def table(task: str) -> str:
    """A method in each row, an ε in each column."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))[task]
    heads = [f"ε = {e:g}" if e is not None else "not private" for e in EPSILONS]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    return "\n".join(
        [*lines, *(f"| {label} | {' | '.join(cell(by[str(e)]) for e in EPSILONS)} |" for label, by in results.items())]
    )


def draw() -> Figure:
    """A panel for each task, a line for each method."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.5, 3.4), dpi=DPI, layout="constrained")
        for axes, (task, by_method) in zip(
            figure.subplots(1, len(results), squeeze=False)[0], results.items(), strict=True
        ):
            styles = looks(list(by_method))
            for label, by in by_method.items():
                means = [100 * np.mean(by[str(e)]["values"]) for e in EPSILONS]
                axes.plot(range(len(means)), means, label=label, marker=styles[label].marker, **styles[label].line())
            axes.set_xticks(range(len(EPSILONS)), [f"{e:g}" if e is not None else "not private" for e in EPSILONS])
            axes.set_xlabel("privacy budget ε")
            axes.set_ylabel({"accuracy": "accuracy of x̄, %", "auroc": "AUROC of x̄, %"}[TASKS[task][1]])
            axes.set_title({"digits": "digits, 8 sites", "heart": "heart disease, 4 hospitals"}[task])
            axes.tick_params(**TICKS)
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    return figure


def page() -> str:
    """The page with its tables made anew."""
    return re.sub(
        r"<!-- (digits|heart) -->.*?<!-- end -->",
        lambda mark: f"<!-- {mark[1]} -->\n{table(mark[1])}\n<!-- end -->",
        PAGE.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(Path(sys.argv[1]))
    draw().savefig(PICTURE)
    PAGE.write_text(page(), encoding="utf-8")
