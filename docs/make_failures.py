"""Writes docs/failures.md: python docs/make_failures.py [measure]; `measure` computes the table anew (3 minutes)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure

import netfleet as nf
from netfleet.problems.synthetic import Quadratics
from netfleet.report.looks import looks
from netfleet.report.plots import DPI, STYLE, TICKS

HERE = Path(__file__).parent
RESULTS, PICTURE = HERE / "failures.json", HERE / "failures.png"
METHODS = ("net-fleet", "k-gt", "gt-sgd", "led")
CASES: dict[str, dict[str, Any] | None] = {
    "nothing fails": None,
    **{
        f"{loss:.0%} lost, {rule}": {"loss": loss, "rule": rule}
        for loss in (0.1, 0.3)
        for rule in ("drop", "counters", "fold", "ignore")
    },
    **{f"70% lost, {rule}": {"loss": 0.7, "rule": rule} for rule in ("drop", "counters")},
    "up to 2 rounds late, drop": {"delay": 2},
    "up to 5 rounds late, drop": {"delay": 5},
    "up to 2 rounds late, fold": {"delay": 2, "rule": "fold"},
    "20 % of the workers away": {"absent": 0.2},
    "20 % away, 10 rounds at a time": {"absent": 0.2, "spell": 10},
}
DRAWN = ("nothing fails", *(f"30% lost, {rule}" for rule in ("drop", "counters", "fold", "ignore")))
HEAD = """# When the network fails

Made by `python docs/make_failures.py`; do not edit by hand.

[experiments.md](experiments.md#network) has the keys of `[network]` and the rules. Mixing is a sum over
links of wᵢⱼ (xⱼ − xᵢ), which the two ends of a link see with opposite signs. "drop" and "counters" preserve
this and so Σᵢ yᵢ = Σᵢ gᵢ, and a tracking method still reaches the optimum. The usual rules, "fold" and
"ignore", do not.

![NET-FLEET's error under four rules]({picture})

Relative error ‖x̄ − x*‖ / ‖x*‖ after {rounds} rounds on a ring of 8 workers with heterogeneous quadratic
objectives (float64, exact gradients, η = {eta}, K = {K}):

"""
TAIL = """
- **"drop"** (the default): a share of the links fails. Both ends must know, as in a protocol with
  acknowledgements. With late messages netfleet lowers the weights, so that the workers do not oscillate.
- **The other rules**: a share of the messages is lost, each direction by itself.
- **"counters"** needs no agreement, but a sum per link at each end. It overshoots where most messages are
  lost.
- **LED, D² and ProxSkip** overshoot where many messages are lost or late, and on graphs that change from
  round to round; a smaller step size makes it worse. netfleet rejects such a network. LED with `beta = 0.1 /
  K` works.
- Longer delays need more rounds.
"""
SETTING = {"rounds": 2000, "eta": 0.02, "K": 10}
REJECTED = -1.0


def errors(kind: str, network: dict[str, Any] | None) -> dict[int, float]:
    """The relative error every 50 rounds; none if the run diverged or was rejected."""
    spec = {"kind": kind, "eta": SETTING["eta"], **({} if kind == "gt-sgd" else {"K": SETTING["K"]})}
    problem = Quadratics(8, d=5, seed=0, dtype=torch.float64)
    try:
        history = nf.simulate(
            spec,
            topology=nf.make_topology("ring", workers=8, weights="metropolis"),
            problem=problem,
            rounds=int(SETTING["rounds"]),
            engine=nf.EngineConfig(dtype="float64"),
            network=network,
            evaluation=nf.Evaluation(every=50),
        )
    except nf.DivergedError:
        return {}
    except nf.ConfigError:
        return {int(SETTING["rounds"]): REJECTED}
    return {r["round"]: float(f"{r['distance2'] ** 0.5 / problem.optimum.norm():.3g}") for r in history}


def measure() -> dict[str, Any]:
    """What every method ends at in every case, and the first one's way there in those that are drawn."""
    found = {case: {kind: errors(kind, network) for kind in METHODS} for case, network in CASES.items()}
    ends = {case: {kind: e.get(int(SETTING["rounds"])) for kind, e in row.items()} for case, row in found.items()}
    return {"ends": ends, "ways": {case: list(found[case][METHODS[0]].items()) for case in DRAWN}}


def draw(ways: dict[str, list[tuple[int, float]]]) -> Figure:
    """The error over the rounds, a line per rule."""
    styles = looks(list(ways))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.6), dpi=DPI, layout="constrained")
        axes = figure.add_subplot()
        for case, way in ways.items():
            axes.plot(*zip(*way, strict=True), label=case, **styles[case].line())
        axes.set(
            yscale="log", xlabel="communication rounds", ylabel="‖x̄ − x*‖ / ‖x*‖", title="NET-FLEET on a ring of 8"
        )
        axes.tick_params(**TICKS)
        figure.legend(loc="outside right upper", frameon=False)
    return figure


def page() -> str:
    """The whole page."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))["ends"]
    titles = [nf.ALGORITHMS[kind].title for kind in METHODS]  # type: ignore[attr-defined]
    lines = [f"| | {' | '.join(titles)} |", "|---" * (len(METHODS) + 1) + "|"]
    for case, found in results.items():
        lines.append(f"| {case} | {' | '.join(map(_cell, found.values()))} |")
    return HEAD.format(picture=PICTURE.name, **SETTING) + "\n".join(lines) + "\n" + TAIL


def _cell(error: float | None) -> str:
    if error == REJECTED:
        return "rejected"
    if error is None or error > 1e3:
        return "diverges"
    return f"{error:.0e}" if error < 1e-3 else f"{error:.2g}"


if __name__ == "__main__":
    if "measure" in sys.argv[1:]:
        found = measure()
        RESULTS.write_text(json.dumps(found) + "\n", encoding="utf-8")
        draw(found["ways"]).savefig(PICTURE)
    (HERE / "failures.md").write_text(page(), encoding="utf-8")
