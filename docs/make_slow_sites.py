"""Fills the table about slow sites in docs/sites.md from slow_sites.json: python docs/make_slow_sites.py [measure]

With `measure`, it is measured first (two minutes on two cores).
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

import netfleet as nf
from netfleet.algorithms.build import make_algorithm

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "slow_sites.json", HERE / "sites.md"
METHODS = ("net-fleet", "k-gt", "led", "ld-sgd")
WORKERS, K, SLOWER, TARGET, SEEDS = 8, 9, 9, 0.93, (0, 1, 2)
TOPOLOGY = {"kind": "ring", "workers": WORKERS, "weights": "metropolis"}
MODEL = {"kind": "mlp", "hidden": [32]}
DIGITS = {"kind": "classification", "data": "digits", "partition": "shards", "model": MODEL, "batch": 16}
QUADRATICS = {"kind": "quadratics", "d": 10}
#: A round's local steps have the time in which the others make all K, and one site the first of them.
BOX = {"seconds": float(K), "step_seconds": [float(SLOWER), *[1.0] * (WORKERS - 1)]}


def rounds_to_target(method: str, seed: int, box: dict[str, Any] | None) -> int | None:
    """The first round after which x̄ reaches the target; None: it does not."""
    evaluation = {"every": 1, "gradient": False, "worker_test_samples": 1}
    spec, parts = {"kind": method, "K": K, "eta": 0.05}, {"topology": TOPOLOGY, "problem": DIGITS, "time_box": box}
    history = nf.simulate(spec, **parts, rounds=200, seed=seed, evaluation=evaluation)  # type: ignore[arg-type]
    return next((record["round"] for record in history.records if record["accuracy"] >= TARGET), None)


def distance(method: str, box: dict[str, Any] | None) -> float:
    """‖x̄ − x*‖ in the end, without gradient noise."""
    spec, parts = {"kind": method, "K": K, "eta": 0.02}, {"topology": TOPOLOGY, "problem": QUADRATICS, "time_box": box}
    history = nf.simulate(spec, **parts, rounds=2000, engine={"dtype": "float64"})  # type: ignore[arg-type]
    return float(history.last["distance2"]) ** 0.5


def measure() -> dict[str, Any]:
    return {
        method: {
            "equal": [rounds_to_target(method, seed, None) for seed in SEEDS],
            "box": [rounds_to_target(method, seed, BOX) for seed in SEEDS],
            "distance": [distance(method, None), distance(method, BOX)],
        }
        for method in METHODS
    }


def page() -> str:
    lines = [
        "| | equal sites, rounds | one slow, time box | time ÷ equal | without a box | ‖x̄ − x*‖, equal | one slow |"
    ]
    lines += ["|---|---|---|---|---|---|---|"]
    for method, row in json.loads(RESULTS.read_text(encoding="utf-8")).items():
        equal, box = (", ".join("–" if t is None else str(t) for t in row[name]) for name in ("equal", "box"))
        pairs = [(a, b) for a, b in zip(row["equal"], row["box"], strict=True) if a is not None and b is not None]
        ratio = f"{np.mean([b / a for a, b in pairs]):.2f}" if len(pairs) == len(SEEDS) else "–"
        far = " | ".join(f"{value:.0e}" for value in row["distance"])
        lines.append(f"| {make_algorithm(method).title} | {equal} | {box} | {ratio} | {SLOWER} | {far} |")
    table = "\n".join(lines)
    marked = f"<!-- slow sites -->\n{table}\n<!-- end -->"
    return re.sub(r"<!-- slow sites -->.*?<!-- end -->", marked, PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


if __name__ == "__main__":
    if sys.argv[1:] == ["measure"]:
        RESULTS.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
