"""Writes docs/methods.md from the registry, methods.json and local.json: python docs/make_methods.py [RUNS | local]

With RUNS, the folder of the tuning and of the comparison that the page names, the measured part is taken from there
first. With `local`, where methods with local optimizers come to rest is measured again (a minute).
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

import netfleet as nf
from netfleet.algorithms import ALGORITHMS
from netfleet.algorithms.base import short_citation
from netfleet.algorithms.proxskip import ProxSkip
from netfleet.report.looks import OTHERS, OURS
from netfleet.report.plots import DPI, STYLE, TICKS
from netfleet.runs.history import History
from netfleet.runs.tuning import rounds_to

HERE = Path(__file__).parent
RESULTS = HERE / "methods.json"
LOCAL = HERE / "local.json"
TARGET = 0.9  # accuracy of the average model
PICTURE = HERE / "methods.png"
HEAD = """# Methods

Made by `python docs/make_methods.py` from the code and from runs; do not edit by hand.

Each method is one file in [src/netfleet/algorithms](../src/netfleet/algorithms) with its paper's equations,
and one class in `netfleet.algorithms`; `netfleet algorithms KIND` prints the equations. A method of your
own is another such file ([examples/my_algorithm.py](../examples/my_algorithm.py)).
"""
COSTS = """- **keeps, sends**: vectors of the model's size that a worker keeps from round to round (with a server, the
  server's included) and sends to each neighbour, or to the server and back, per round.
- **gradients**: mini-batch gradients per worker and round with K = 10 (on average for ProxSkip and Scaffnew).
  SVRG and SPIDER also make a pass over all data and one more exchange every 20 rounds.
- **assumes**: what a convergence theorem for the method assumes about the differences between the workers'
  data. FedAvg's is that of generalized FedAvg; we know of none for DSGT.
"""
FAMILY = """
## One family

Most methods that reach the optimum of heterogeneous objectives with K local steps and a fixed step size
take the same local step, x ← x − η (g + c), with corrections c that sum to zero over the workers. They
differ in how an exchange updates c:

| method | correction after an exchange |
|---|---|
| NET-FLEET, LU-GT | W (c + g) − g with g the last local gradient |
| periodical GT | the same with the first local gradient |
| K-GT | the same with the mean of the K local gradients |
| LED | K-GT's, and (I − W) x / (K η) in addition, x where the steps begin |
| ProxSkip | LED's, with a random number of local steps, K on average |
| SCAFFOLD (II), VRL-SGD, Scaffnew | K-GT and LED on the exact average, where the two agree |

SCAFFOLD (I) uses the gradient at the server's model instead of that mean; SVRG has a correction for every
mini-batch. `tests/algorithms` checks these equalities, the special cases (K = 1, no momentum), each
method's iterates against its paper's equations, and its fixed point on heterogeneous quadratics.

**Where the equations come from**

- The NET-FLEET paper: NET-FLEET, DSGT.
- The authors' code: QG-DSGDm, Momentum Tracking, VRL-SGD, the compression of CHOCO-SGD.
- Others' code that cites the paper's equations: K-GT, LED, D², GT-SGD (GNSD), ProxSkip, SCAFFOLD, DFedAvgM,
  DFedSAM.
- Descriptions, not checked against the paper: periodical GT, LU-GT (the form that sends both vectors at
  once), PD-SGDM, generalized FedAvg, SVRG, SPIDER, and D-MSGD, which joins two methods of its paper.
- Left out: LSGT (Ge, Chang, arXiv 2302.01537); what we know fits both periodical GT and K-GT with η_s = 1.

**Limits**

- D² and LED diverge with weights that have an eigenvalue below −1/3 (LED with its own β: below (Kβ − 2) /
  (Kβ + 2)), ProxSkip below −1/(2K + 1). netfleet rejects such weights; the default ones have none below
  1/3. For these methods it also rejects top-k and random-k compression, and networks on which they diverge:
  their correction sums differences of models, and outdated differences feed back. Methods that track
  gradients work there.
- `participation` is available where the paper has it; the corrections of VRL-SGD and Scaffnew need all
  workers.
- DSGT's K counts the tracking step too: it is the paper's K + 1.
- A round is measured after its local steps, before the next exchange. Only `qg-dsgdm` is measured after
  mixing, because its round ends with the exchange, which lowers its consensus error and favours its workers.
- Methods whose round ends with the average (FedAvg, SCAFFOLD, …) show the server's model as every worker's;
  VRL-SGD and Scaffnew show the local models.
"""
LOCALLY = """
## Local optimizers

`local = "adamw"` in a method's table (in Python `with_local(method, "adamw")`, or any class of `torch.optim`) lets a
torch optimizer make the local steps: it moves x along the method's corrected direction g + c in place of
x − η (g + c). Its state stays with the worker. `netfleet.algorithms` has `with_local` and `with_outer`.

Whether a method then still reaches the optimum of heterogeneous objectives depends on what its correction is learned
from:

- **From gradients** (NET-FLEET, K-GT, periodical GT, LU-GT, GT-SGD, SCAFFOLD, SVRG): g + c = 0 and Σc = 0 at the fixed
  point, whatever is made of g + c. Every local optimizer is exact. K-GT and SCAFFOLD (II) here average the directions
  themselves, where their papers divide the distance that was covered by K η; for plain steps that is the same.
- **From how far the models moved** (D², LED, ProxSkip, VRL-SGD, Scaffnew): the distance is divided by η and by the
  optimizer's gain, 1 / (1 − β) for momentum β. Momentum and Nesterov are exact. On a graph they are stable for
  1 − β ≥ bβ and 1 − β ≥ bβ², where b is 1/K for LED, 1 for D² and 2/(K + 1) for ProxSkip: LED with K = 10 takes β up
  to 0.909. Others are rejected. Their fixed point is the optimum too, but Adam's distance does not depend on the size
  of the gradients: where these are small, the correction is far too large, and the method no longer gets there.
- **From nothing** (LD-SGD, FedAvg, …): not exact, with or without a local optimizer. Parallel SGD is exact with
  momentum, but not where the workers' optimizers scale their gradients differently.

Methods with a momentum of their own (PD-SGDM, D-MSGD, DFedAvgM, QG-DSGDm, Momentum Tracking) and SPIDER, whose step is
the server's, reject `local`.

The largest distance of a worker's model from the optimum after {rounds} rounds with exact gradients, {workers} workers
with different quadratics, K = 3 (`python docs/make_methods.py local`). AdamW has `amsgrad = true` and no weight decay:
its factors then become constant, so that there is a fixed point. The last column has a factor for each number that
differs between the workers.

"""
DECAY = """
**Weight decay.** A decoupled one, as AdamW has it (torch's default is 0.01), is not part of g + c. It moves the fixed
point, and where the workers' factors differ, not to the regularised optimum either. K-GT with a weight decay of
{decay:g} ends at this distance from the optimum of f + (λ/2)‖x‖²: with Adam, which adds λx to the direction,
{adam:.1e}; with AdamW {adamw:.2g}. Put a penalty that must be exact into the objective (`problem.l2`).

**Outer step.** `outer = {{kind = "nesterov", momentum = 0.9, rate = 0.7}}` replaces averaging at an exchange by
Nesterov's momentum on the exchanged change: with FedAvg and AdamW this is DiLoCo (Douillard et al. 2023), on a graph
it is a kin of NoLoCo (Kolehmainen et al. 2025). Messages then have one vector more. Methods that track gradients stay
exact; D², LED and others that do more with an exchange than to average the models reject it.
"""
HOW = """
## Measured

Rounds and bytes until the average model x̄ has {percent} accuracy on real digits: {workers} workers with two
labels each, a random graph, ten local steps per round where a method has them. Each method has the step
size of one grid with which it needs the fewest rounds on a tenth of the training rows, held out for this choice
with another seed; the test rows were not used. Means over seeds {seeds}; "–" means that not all seeds reach
{percent} in {rounds} rounds. Other weights than these (`laplacian`) need fewer: [weights.md](weights.md).

    netfleet tune examples/methods.toml --grid eta=0.01,0.03,0.1,0.3,1,3 --target {target} --out runs/methods
    netfleet run runs/methods/tuned.toml --out runs/methods/best --set 'seeds={seeds}'
    python docs/make_methods.py runs/methods

![What each method needs]({picture})
"""
ANSWER = """
### Do K-GT and LED beat NET-FLEET?

Here, yes. They work with larger step sizes ({kgt[eta]:g} and {led[eta]:g} against {ours[eta]:g})
and reach {percent} after {kgt[round]:.0f} and {led[round]:.0f} rounds instead of {ours[round]:.0f}, LED
with {led_bytes:.0%} of the bytes. Noise does not explain it: with batches of 72, about all data of a worker,
NET-FLEET tolerates no larger step size (no stored result):

    netfleet tune examples/methods.toml --grid eta=0.03,0.1,0.3 --target {target} --set problem.batch=72 \\
        --set 'algorithms=[{{kind="net-fleet", K=10}}, {{kind="k-gt", K=10}}]'

A likely cause: a worker's last gradient, with which NET-FLEET corrects, says little about the other nine. Against
LD-SGD, NET-FLEET ends higher by x̄ ({ours[accuracy]:.1%} against {ld[accuracy]:.1%}) and far higher by the
workers' own models ({ours[worker_accuracy]:.1%} against {ld[worker_accuracy]:.1%}), but does not reach
{percent} first. On MNIST with the paper's CNN: [reproduction.md](reproduction.md#beyond-the-paper).
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
        "| kind | method | paper | over | keeps | sends | gradients | assumes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in sorted(ALGORITHMS):
        known: Any = ALGORITHMS[kind]
        sends, gradients = costs(kind)
        over = "server" if known.server else "graph"
        cells = [
            ", ".join(f"`{name}`" for name in ALGORITHMS.names(kind)),
            known.title,
            short_citation(known.citation),
            over,
            str(len(known.State._fields)),
        ]
        lines.append(f"| {' | '.join([*cells, number(sends), number(gradients), known.assumes])} |")
    return "\n".join(lines) + "\n"


def measure_local() -> dict[str, Any]:
    """Where methods with local optimizers come to rest; None where the combination is rejected."""
    sys.path.insert(0, str(HERE.parent / "tests"))
    from support.local_optimizers import LOCALS, ROUNDS, WORKERS, build, decayed, distance

    def found(kind: str, name: str) -> float | None:
        try:
            return distance(build(kind, name))
        except nf.ConfigError:
            return None

    methods = {kind: {name: found(kind, name) for name in LOCALS} for kind in sorted(ALGORITHMS)}
    return {"rounds": ROUNDS, "workers": WORKERS, "methods": methods, "decay": decayed()}


def locally() -> str:
    """The table of methods and local optimizers."""
    results = json.loads(LOCAL.read_text(encoding="utf-8"))
    names = list(next(iter(results["methods"].values())))
    lines = [LOCALLY.format(**results) + f"| method | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for kind, found in results["methods"].items():
        known: Any = ALGORITHMS[kind]
        lines.append(f"| {known.title} | {' | '.join(at_rest(value) for value in found.values())} |")
    return "\n".join(lines) + "\n" + DECAY.format(**results["decay"])


def at_rest(distance: float | None) -> str:
    """A distance in a word."""
    if distance is None:
        return "rejected"
    return f"exact ({distance:.0e})" if distance < 1e-6 else f"{distance:.2g}"


def reached(history: History) -> dict[str, float] | None:
    """When a run first has the target accuracy."""
    first = rounds_to(history, TARGET)
    return next(
        ({name: r[name] for name in ("round", "bytes", "samples")} for r in history if r["round"] == first), None
    )


def measure(runs: Path) -> dict[str, Any]:
    """What the page shows of a comparison of tuned methods."""
    found: dict[str, list[History]] = {}
    for config in sorted((runs / "best").glob("*/config.json")):
        history = History.load(config.parent)
        found.setdefault(history.label, []).append(history)
    methods = {}
    for label, histories in found.items():
        hits = [reached(h) for h in histories]
        means = {
            name: float(np.mean([hit[name] for hit in hits if hit])) if all(hits) else None
            for name in ("round", "bytes", "samples")
        }
        methods[label] = means | {
            "kind": histories[0].config["algorithm"]["kind"],
            "eta": histories[0].config["algorithm"]["eta"],
            "accuracy": float(np.mean([h.last["accuracy"] for h in histories])),
            "worker_accuracy": float(np.mean([h.last["worker_accuracy_mean"] for h in histories])),
            "lowest": float(np.min([h.last["accuracy"] for h in histories])),
        }
    histories = next(iter(found.values()))
    config = histories[0].config
    return {
        "rounds": config["rounds"],
        "workers": config["topology"]["workers"],
        "batch": config["problem"]["batch"],
        "seeds": sorted(h.seed for h in histories),
        "methods": methods,
    }


def ordered(results: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The methods, the fewest rounds first, then the highest accuracy."""
    return sorted(results["methods"].items(), key=lambda item: (item[1]["round"] or math.inf, -item[1]["accuracy"]))


def needs(results: dict[str, Any], found: dict[str, Any]) -> tuple[float, float, float] | None:
    """Rounds, megabytes and gradients per worker to the target; None where a method does not get there."""
    if found["round"] is None:
        return None
    return found["round"], found["bytes"] / 1e6, found["samples"] / (results["workers"] * results["batch"])


def measured() -> str:
    """The table of results."""
    if not RESULTS.exists():
        return ""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    lines = [
        HOW.format(target=TARGET, percent=f"{TARGET:.0%}", picture=PICTURE.name, **results),
        "| method | best η | rounds | MB sent | x̄ at the end (lowest seed), % | workers, % |",
        "|---|---|---|---|---|---|",
    ]
    for label, found in ordered(results):
        counts = [f"{value:.0f}" for value in (needs(results, found) or ())[:2]] or list("––")
        end = f"{100 * found['accuracy']:.1f} ({100 * found['lowest']:.1f})"
        cells = [label, str(found["eta"]), *counts, end, f"{100 * found['worker_accuracy']:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n" + answer(results)


def check_words(results: dict[str, Any]) -> None:
    """Raise if the results contradict the words of ANSWER."""
    ours, kgt, led, ld = (results["methods"][label] for label in ("NET-FLEET", "K-GT", "LED", "LD-SGD"))
    rounds = {label: found["round"] or math.inf for label, found in results["methods"].items()}
    words = {
        "K-GT and LED get there before NET-FLEET": max(rounds["K-GT"], rounds["LED"]) < rounds["NET-FLEET"] < math.inf,
        "they work with larger step sizes": min(kgt["eta"], led["eta"]) > ours["eta"],
        "NET-FLEET ends higher than LD-SGD": ours["accuracy"] > ld["accuracy"],
        "far higher by the workers' models": ours["worker_accuracy"] > ld["worker_accuracy"] + 0.05,
        "but is not there first": rounds["LD-SGD"] < rounds["NET-FLEET"],
    }
    wrong = [claim for claim, holds in words.items() if not holds]
    if wrong:
        raise ValueError(
            f"{RESULTS.name} does not say that {'; '.join(wrong)}; rewrite ANSWER in {Path(__file__).name}"
        )


def answer(results: dict[str, Any]) -> str:
    """The answer to a frequent question, with the numbers of the table."""
    check_words(results)
    ours, kgt, led, ld = (results["methods"][label] for label in ("NET-FLEET", "K-GT", "LED", "LD-SGD"))
    share = led["bytes"] / ours["bytes"]
    return ANSWER.format(ours=ours, kgt=kgt, led=led, ld=ld, led_bytes=share, target=TARGET, percent=f"{TARGET:.0%}")


def draw(results: dict[str, Any]) -> Figure:
    """What each method needs to the target, a panel per currency; with a server hollow."""
    methods = [(label, found) for label, found in ordered(results) if found["round"] is not None]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 0.24 * len(methods) + 1.4), dpi=DPI, layout="constrained")
        panels = figure.subplots(1, 3, sharey=True)
        for place, (axes, title) in enumerate(zip(panels, ("rounds", "MB sent", "gradients per worker"), strict=True)):
            for height, (label, found) in enumerate(methods):
                server = ALGORITHMS[found["kind"]].server  # type: ignore[attr-defined]
                value = (needs(results, found) or (math.nan,) * 3)[place]
                color = OURS if label == "NET-FLEET" else OTHERS[0]
                axes.plot([0, value], [height, height], color=color, linewidth=1, alpha=0.4)
                axes.plot(value, height, "o", color=color, markerfacecolor="white" if server else color, markersize=6)
            axes.set_xlim(left=0)
            axes.set_title(title)
            axes.tick_params(**TICKS)
            axes.grid(visible=False, axis="y")
        panels[0].set_yticks(range(len(methods)), [label for label, _ in methods])
        panels[0].set_ylim(len(methods) - 0.4, -0.6)
        figure.suptitle(f"To {TARGET:.0%} accuracy of x̄ (filled: over a graph, hollow: with a server)", fontsize=10)
    return figure


def page() -> str:
    """The whole page."""
    return HEAD + static() + FAMILY + locally() + measured()


if __name__ == "__main__":
    if sys.argv[1:] == ["local"]:
        LOCAL.write_text(json.dumps(measure_local(), indent=1) + "\n", encoding="utf-8")
    elif len(sys.argv) > 1:
        found = measure(Path(sys.argv[1]))
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        draw(found).savefig(PICTURE)
    (HERE / "methods.md").write_text(page(), encoding="utf-8")
