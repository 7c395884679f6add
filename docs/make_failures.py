"""Writes docs/failures.md: python docs/make_failures.py [measure]; `measure` computes the table anew (two minutes)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

import netfleet as nf
from netfleet.problems.synthetic import Quadratics

HERE = Path(__file__).parent
RESULTS = HERE / "failures.json"
METHODS = ("net-fleet", "k-gt", "gt-sgd", "led")
CASES: dict[str, dict[str, Any] | None] = {
    "nothing fails": None,
    **{
        f"{loss:.0%} lost, {rule}": {"loss": loss, "rule": rule}
        for loss in (0.1, 0.3)
        for rule in ("drop", "counters", "fold", "ignore")
    },
    "up to 2 rounds late, drop": {"delay": 2},
    "up to 2 rounds late, fold": {"delay": 2, "rule": "fold"},
    "20 % of the workers away": {"absent": 0.2},
    "20 % away, 10 rounds at a time": {"absent": 0.2, "spell": 10},
}
HEAD = """# When the network fails

Made by `python docs/make_failures.py`; do not edit by hand.

Mixing is a sum over links of wᵢⱼ (xⱼ − xᵢ), which the two ends of a link see with opposite signs. As long as a
rule for lost or late messages keeps that so, Σᵢ yᵢ = Σᵢ gᵢ survives, and a tracking method still reaches the
optimum of the sum. The rules that come to mind first do not: a reader that keeps the weight of a missing
message for itself ("fold"), or goes without ("ignore"), changes the sum that the method tracks.
[experiments.md](experiments.md#network) has the keys of `[network]`.

Relative error ‖x̄ − x*‖ / ‖x*‖ after {rounds} rounds on a ring of 8 workers with heterogeneous quadratic
objectives (float64, exact gradients, η = {eta}, K = {K}):

"""
TAIL = """
With "drop" (the default) a share of the links fails, at both ends: that asks that both know of it, which a
protocol with acknowledgements gives. With the other rules a share of the messages is lost, each direction by
itself. "counters" asks for no agreement, at the price of a sum per link that each end must keep. With late
messages "drop" lowers the weights so that old differences do not set the workers swinging (`faults.py`). That
is enough for methods that track gradients. LED, D² and ProxSkip find their corrections from differences of
models: they need one vector less, but old differences lead them astray.
"""
SETTING = {"rounds": 2000, "eta": 0.02, "K": 10}


def error(kind: str, network: dict[str, Any] | None) -> float | None:
    """The relative error at the end; None if the run diverged."""
    spec = {"kind": kind, "eta": SETTING["eta"], **({} if kind == "gt-sgd" else {"K": SETTING["K"]})}
    problem = Quadratics(8, d=5, seed=0, dtype=torch.float64)
    topology = nf.make_topology("ring", workers=8, weights="metropolis")
    engine = nf.EngineConfig(dtype="float64")
    evaluation = nf.Evaluation(every=int(SETTING["rounds"]))
    try:
        history = nf.simulate(
            spec,
            topology=topology,
            problem=problem,
            rounds=int(SETTING["rounds"]),
            engine=engine,
            network=network,
            evaluation=evaluation,
        )
    except nf.DivergedError:
        return None
    return float(history.last["distance2"] ** 0.5 / problem.optimum.norm())


def measure() -> dict[str, Any]:
    """Every method in every case."""
    return {case: {kind: error(kind, network) for kind in METHODS} for case, network in CASES.items()}


def page() -> str:
    """The whole page."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    titles = [nf.ALGORITHMS[kind].title for kind in METHODS]  # type: ignore[attr-defined]
    lines = [f"| | {' | '.join(titles)} |", "|---" * (len(METHODS) + 1) + "|"]
    for case, found in results.items():
        cells = ["diverges" if e is None or e > 1e3 else f"{e:.0e}" if e < 1e-3 else f"{e:.2g}" for e in found.values()]
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return HEAD.format(**SETTING) + "\n".join(lines) + "\n" + TAIL


if __name__ == "__main__":
    if "measure" in sys.argv[1:]:
        RESULTS.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    (HERE / "failures.md").write_text(page(), encoding="utf-8")
