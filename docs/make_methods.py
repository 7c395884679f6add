"""Writes docs/methods.md from the registry and docs/methods.json: python docs/make_methods.py [RUNS]

With RUNS, the folder of `netfleet tune examples/methods.toml --out RUNS` and of the comparison that it proposes
(`netfleet run RUNS/tuned.toml --out RUNS/best --set seeds=[1,2,3]`), the measured part is taken from there first.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import netfleet as nf
from netfleet.algorithms import ALGORITHMS
from netfleet.algorithms.base import short_citation
from netfleet.algorithms.proxskip import ProxSkip
from netfleet.history import History

HERE = Path(__file__).parent
RESULTS = HERE / "methods.json"
TARGET = 0.9  # accuracy of the average model
WORKERS, BATCH = 20, 32  # of examples/methods.toml
HEAD = """# Methods

Made by `python docs/make_methods.py` from the code and from runs; do not edit by hand.

One file per method in [src/netfleet/algorithms](../src/netfleet/algorithms), each with its paper's equations;
`netfleet algorithms KIND` prints them. A method of your own is another such file
([examples/my_algorithm.py](../examples/my_algorithm.py)).
"""
COSTS = """Vectors of the model's size: kept from round to round for each worker (with a server, its own included),
and sent to each neighbour, or to the server and back, per round. Gradients on a mini-batch per worker
and round with K = 10 (on average, for ProxSkip and Scaffnew). SVRG and SPIDER make a pass over all data
and one more exchange every 20 rounds besides. Assumptions are those of a convergence theorem for the
method on how the workers' data differ; FedAvg's is that of generalized FedAvg with η = 1, DSGT's paper
has none that we know.
"""
FAMILY = """
## One family

Most of the methods that reach the optimum of heterogeneous objectives with K local steps and a fixed step size
take the same local step, x ← x − η (g + c), with corrections c that sum to zero over the workers. They differ
in what c is refreshed with at an exchange, and in what that costs:

| method | correction after an exchange | sends |
|---|---|---|
| NET-FLEET, LU-GT | W (c + g) − g with g the last local gradient | two vectors |
| periodical GT | the same with the first local gradient | two vectors |
| K-GT | the same with the mean of the K local gradients | two vectors |
| LED, ProxSkip | the same with that mean, and (I − W) x / (K η) in addition | one vector |
| SCAFFOLD (II), VRL-SGD, Scaffnew | K-GT and LED on the exact average, where the two agree | to and from a server |

SCAFFOLD (I) takes the gradient at the server's model instead of that mean; SVRG has a correction for every
mini-batch.

`tests/test_methods.py` and `tests/test_server.py` hold these equalities, the special cases (K = 1, no
momentum), each method's iterates against its equations in the paper's order, and where it comes to rest on
heterogeneous quadratics: the optimum, or a biased point that is computed.

**Where the equations come from.** NET-FLEET, and DSGT's description, from the NET-FLEET paper. From code of the
authors: QG-DSGDm, Momentum Tracking, VRL-SGD, the compression of CHOCO-SGD. From code of others that cites the
paper's equations: K-GT, LED, D², GT-SGD (GNSD), ProxSkip, SCAFFOLD, DFedAvgM, DFedSAM. From descriptions and
general knowledge, not checked against the paper's text: periodical GT, LU-GT (in the form that sends both
vectors at once), PD-SGDM, generalized FedAvg, SVRG, SPIDER, and D-MSGD, which joins two methods of its paper
(momentum averaged every K steps, and over a graph). LSGT (Ge, Chang, arXiv 2302.01537) is not here under its
name: its text was not at hand, and what is known of it fits both periodical GT and K-GT with η_s = 1, which
are. If you have a paper at hand that says otherwise, an issue is welcome.

**Limits.** D², LED and ProxSkip refuse weights with an eigenvalue below −1/3, under which they diverge; the
default weights have none. Partial participation (`participation`) is there where the paper has it; the
corrections of VRL-SGD and Scaffnew rest on everyone taking part. FedAvg, SCAFFOLD and the other methods whose
rounds end with the average show the server's model as every worker's; VRL-SGD and Scaffnew end theirs with the
local steps, so their workers' columns show the local models.
"""
HOW = """
## Measured

Rounds, bytes and mini-batch gradients per worker until the average model x̄ has {target:.0%} accuracy, on real
digits with two labels per worker (20 workers, a random graph, ten local steps per round where a method has
them), each method at its best step size of one grid. Mean over seeds {seeds}, none of which was tuned on (step
sizes were chosen, like results are given, by accuracy on the test digits); "–" where not all of them get there
in {rounds} rounds.

    netfleet tune examples/methods.toml --out runs/methods
    netfleet run runs/methods/tuned.toml --out runs/methods/best --set 'seeds={seeds}'
    python docs/make_methods.py runs/methods

"""


def costs(kind: str) -> tuple[float, float]:
    """Vectors sent per message slot and gradients taken per worker in a round of K = 10, measured on a toy problem."""
    spec = {"kind": kind, **({"K": 10} if hasattr(ALGORITHMS[kind], "K") else {})}
    d, m, rounds = 50, 6, 20
    problem, evaluation = {"kind": "quadratics", "d": d}, nf.Evaluation(every=1)
    history = nf.simulate(spec, topology="ring", workers=m, problem=problem, rounds=rounds, evaluation=evaluation)
    first, last = history.records[1], history.last  # what is done once, at the start, does not count
    bytes_, samples = (last[name] - first[name] for name in ("bytes", "samples"))
    gradients = 10 if issubclass(ALGORITHMS[kind], ProxSkip) else samples / ((rounds - 1) * m)  # type: ignore[arg-type]
    return bytes_ / ((rounds - 1) * 2 * m * d * 4), gradients


def number(value: float) -> str:
    return f"{value:.0f}" if abs(value - round(value)) < 1e-9 else f"{value:.3g}"


def static() -> str:
    """What each method keeps, sends, computes and assumes."""
    lines = [
        "\n## What a method costs and assumes\n",
        COSTS,
        "| kind | method | paper | over | keeps | sends | gradients | assumes of heterogeneity |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in sorted(ALGORITHMS):
        known: Any = ALGORITHMS[kind]
        sends, gradients = costs(kind)
        over = "server" if known.server else "graph"
        cells = [f"`{kind}`", known.title, short_citation(known.citation), over, str(len(known.State._fields))]
        lines.append(f"| {' | '.join([*cells, number(sends), number(gradients), known.assumes])} |")
    return "\n".join(lines) + "\n"


def reached(history: History) -> dict[str, float] | None:
    """When a run first has the target accuracy."""
    for record in history:
        if record["accuracy"] >= TARGET:
            return {name: record[name] for name in ("round", "bytes", "samples")}
    return None


def measure(runs: Path) -> dict[str, Any]:
    """What the page shows of a comparison of tuned methods."""
    found: dict[str, list[History]] = {}
    for config in sorted((runs / "best").glob("*/config.json")):
        history = History.load(config.parent)
        found.setdefault(history.config["algorithm"]["kind"], []).append(history)
    methods = {}
    for kind, histories in found.items():
        hits = [reached(h) for h in histories]
        means = {
            name: float(np.mean([hit[name] for hit in hits if hit])) if all(hits) else None
            for name in ("round", "bytes", "samples")
        }
        methods[kind] = means | {
            "eta": histories[0].config["algorithm"]["eta"],
            "accuracy": float(np.mean([h.last["accuracy"] for h in histories])),
            "worker_accuracy": float(np.mean([h.last["worker_accuracy_mean"] for h in histories])),
            "lowest": float(np.min([h.last["accuracy"] for h in histories])),
        }
    first = next(iter(found.values()))
    return {"rounds": first[0].config["rounds"], "seeds": [h.seed for h in first], "methods": methods}


def measured() -> str:
    """The table of results, the fewest rounds first."""
    if not RESULTS.exists():
        return ""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    lines = [
        HOW.format(target=TARGET, seeds=results["seeds"], rounds=results["rounds"]),
        "| method | best η | rounds | MB sent | gradients per worker | x̄ at the end (lowest seed) | workers |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, r in sorted(
        results["methods"].items(), key=lambda item: (item[1]["round"] or 10**9, -item[1]["accuracy"])
    ):
        there = r["round"] is not None
        counts = [f"{r['round']:.0f}", f"{r['bytes'] / 1e6:.0f}", f"{r['samples'] / (WORKERS * BATCH):.0f}"]
        ends = [f"{100 * r['accuracy']:.1f} % ({100 * r['lowest']:.1f})", f"{100 * r['worker_accuracy']:.1f} %"]
        title = ALGORITHMS[kind].title  # type: ignore[attr-defined]
        lines.append(f"| {' | '.join([title, str(r['eta']), *(counts if there else '–––'), *ends])} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The whole page."""
    return HEAD + static() + FAMILY + measured()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        RESULTS.write_text(json.dumps(measure(Path(sys.argv[1])), indent=1) + "\n", encoding="utf-8")
    (HERE / "methods.md").write_text(page(), encoding="utf-8")
