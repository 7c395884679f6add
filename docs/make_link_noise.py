"""Writes docs/link_noise.md from docs/link_noise.json: python docs/make_link_noise.py [measure]

With `measure`, the tables are measured first (three minutes on two cores).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import netfleet as nf
from netfleet.algorithms.build import make_algorithm
from netfleet.engines.loop import Counted, begin
from netfleet.engines.simulator import Simulator
from netfleet.privacy.link_noise import LinkNoise, links_of, simulated_links
from netfleet.runs.build import Setting, build_setting
from netfleet.runs.config import Experiment, experiment
from netfleet.runs.run import run_experiment

HERE = Path(__file__).parent
RESULTS = HERE / "link_noise.json"
SCALES, SEEDS, EXACT = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3), (0, 1, 2), 10
METHODS = ("net-fleet", "k-gt", "led", "ld-sgd")
HIDDEN, INPUTS = 64, 64
#: An image counts as recovered if its error is below this part of it.
CLOSE = 0.1
BASE: dict[str, Any] = {
    "rounds": 150,
    "topology": {"kind": "erdos-renyi", "workers": 10, "p": 0.5, "weights": "metropolis"},
    "problem": {
        "kind": "classification",
        "data": "digits",
        "partition": "shards",
        "model": {"kind": "mlp", "hidden": [HIDDEN]},
        "batch": 32,
    },
    "evaluation": {"every": 150},
}
HEAD = """# Noise that cancels between neighbours

Made by `python docs/make_link_noise.py` from runs; do not edit by hand.

    [privacy]
    link_noise = 0.03      # standard deviation of each link's noise
    exact_rounds = 10      # rounds at the end without noise (default 0)

The two ends i and j of a link share a secret. For every vector of every exchange both draw the same normal numbers
nᵢⱼ from it; the end with the smaller number adds them to what it sends, the other subtracts them. A worker sends
vᵢ + Σⱼ ± nᵢⱼ and averages with this noisy vector itself. So Σx and Σy over all workers are what they are without noise:
x̄ moves as if there were none, but for the gradients, which are taken at noisy models, and Σ(y − g) stays 0. With
`clip` in the same table, gradients are differentially private as well; with `link_noise` alone they are not.

`netfleet` rejects it for methods with a server, with `compress`, with `[network]`, on graphs that change, with averaged
BatchNorm statistics, and where a worker has fewer than two neighbours.

## What it hides, and what not

| who | sees |
|---|---|
| one neighbour | a message with the noise of the other links: of standard deviation σ √(neighbours − 1) per entry |
| some neighbours that cooperate | the same, without the noise of their links |
| all neighbours of a site together | everything that the site sends, exactly |
| who gets the messages of a group of sites and knows the noise of all links that leave it | the group's sum, exactly |
| outsiders, sites that are no neighbours | nothing, as without noise (TLS) |

- **Sums are not hidden**, which is the point: x̄, and on a complete graph the sum of every exchange, is exact for
  everyone. Whatever the common model shows of a row, it shows with this noise too.
- **Noise is fresh in every round**, so whoever averages T messages has it reduced by √T. What stays the same for
  many rounds, such as which labels a site has, becomes visible in time.
- **In the last `exact_rounds` rounds nothing is hidden**: every neighbour sees what it would see without this option.
  All sites of a plan agree on that number, which is part of the run's hash.
- Not hidden either: accuracy and loss in the status, sizes and times of messages, the models that sites hand out in the
  end.
- Sums of floating-point numbers leave traces in their last digits. The noise is made to hide the leading ones.

**No ε is stated for this noise.** It leaves sums as they are, so without `clip` one row more changes what others see of
the sum, without any noise: no finite ε exists. With `clip`, the ε of the History holds against everyone together, with
link noise or without, because this noise does not depend on data. Against one neighbour alone a smaller ε is
known for plain decentralized SGD ([Allouah et al. 2024](https://arxiv.org/abs/2405.01031), [Bellet et al.
2025](https://arxiv.org/abs/2510.17480)). Its proofs need every gradient to be taken at a point that follows from what
was sent. Here local steps, trackers and corrections go on from numbers that were not sent, so we do not claim it.

## The workers' own models

They stay noisy: a worker's x has its own noise and its neighbours'. x̄ does not. Take the mean of the sites' models, or
set `exact_rounds`: without noise an exchange shrinks the disagreement by λ. D², LED and ProxSkip learn from x − W x:
their models scatter two to three times as far as those of other methods, and come together faster.

When a site is lost after T rounds, each of its neighbours takes back all that came over the link, its noise included.
That keeps Σ(y − g) = 0 exactly. On a graph with cycles the noise of one link adds up like a random walk, so their y
jump by up to about σ √T per entry, in opposite directions, and mixing levels this out.

## At sites

Each site makes a key pair (X25519) for the run and signs the public key, with the run's hash and its name, by its
certificate's private key. Neighbours ask each other for it before the first round of their link, check certificate,
name, run and signature, and compute the link's secret (HKDF). Keys and secrets are in `run/noise.json` (mode 600)
before they are used. A site that restarts has the same ones, and a repeated round sends the same bits. A site that lost
the file has to `--rejoin`; new links have new secrets. A neighbour that joins gets what a site last sent in place of
its model. A site that has one neighbour left logs `exposed`.

In the simulator and on clusters the secrets follow from the seed.
"""
VIEWS = """
## What a neighbour sees of the first message

NET-FLEET's first message has y = g, the gradient of one mini-batch. Ten workers with two labels each, an MLP with 64
hidden units, a random graph (p = 0.5). A neighbour subtracts the noise that it knows. *Explained* is the share of the
gradient's variance that the best linear guess from the message explains (batch 32), *images* how many of ten images it
gets from a row of the first layer's gradient and its bias (batch 1, error below 10 %).

| σ | explained, one neighbour | all together | images, one neighbour | all together |
|---|---|---|---|---|
"""
TRAINED = """
## What it costs

Test accuracy of the average model / of the workers' own models / of these with `exact_rounds = {exact}`, after {rounds}
rounds (K = 5, η = 0.1, Metropolis weights), means over {seeds} seeds:

| σ | {methods} |
|---|{lines}
"""
SUMS = """
## How exact sums are

‖Σ(y − g)‖ after {rounds} rounds of NET-FLEET. Both ends draw the same bits, but v + n is rounded at the size of the
larger of the two:

| σ | float64 | float32 |
|---|---|---|
"""


def settings(method: str, scale: float, exact: int = 0, **parts: Any) -> Experiment:
    table = {**BASE, "algorithms": [{"kind": method, "K": 5, "eta": 0.1}], **parts}
    return experiment(table | ({"privacy": {"link_noise": scale, "exact_rounds": exact}} if scale else {}))


def trained(method: str, scale: float, exact: int, seed: int, dtype: str = "float32") -> dict[str, float]:
    """The last record of a run."""
    (history,) = run_experiment(settings(method, scale, exact, seeds=[seed], engine={"dtype": dtype}))
    return {name: value for name, value in history.last.items() if value is not None}


def accuracy(method: str, scale: float) -> dict[str, float]:
    """Means over the seeds: of the average model, of the workers' own, and of these after rounds without noise."""
    noisy, exact = ([trained(method, scale, k, seed) for seed in SEEDS] for k in (0, EXACT if scale else 0))
    mean = {name: float(np.mean([r[name] for r in noisy])) for name in ("accuracy", "worker_accuracy_mean")}
    return mean | {"exact": float(np.mean([r["worker_accuracy_mean"] for r in exact]))}


# ---- what neighbours see of the first message, which has y = g ----


def first_gradients(setting: Setting) -> Tensor:
    """g of every worker in NET-FLEET's first message."""
    host = Simulator(setting.problem, setting.topology, 1)
    f = Counted(setting.problem)
    state = begin(host, nf.NetFleet(K=5, eta=0.1), f, setting.problem.start().repeat(setting.problem.m, 1))
    return state.y  # type: ignore[attr-defined, no-any-return]


def seen(setting: Setting, y: Tensor, scale: float, together: bool) -> Tensor:
    """What the first neighbour of each worker makes of its message, or all neighbours together."""
    if not scale:
        return y
    graph, noise = setting.topology.graph, LinkNoise(scale, 1, simulated_links(0))
    zero = torch.zeros_like(y)
    _, sent = noise.added([zero, y], links_of({i: list(graph[i]) for i in graph}), 0, 0)
    for i in graph:
        known = list(graph[i]) if together else list(graph[i])[:1]
        _, own = noise.added([zero[:1], zero[:1]], links_of({i: known}), 0, 0)
        sent[i] -= own[0]
    return sent


def explained(found: Tensor, true: Tensor) -> float:
    """The mean over workers of the share of the true gradient's variance that the best linear guess explains."""
    return float(np.mean([np.corrcoef(a, b)[0, 1] ** 2 for a, b in zip(found, true, strict=True)]))


def recovered(setting: Setting, found: Tensor) -> float:
    """The share of workers whose one image follows from a row of the first layer's gradient and its bias's."""
    problem, count = setting.problem, HIDDEN * INPUTS
    rows, bias = found[:, :count].reshape(-1, HIDDEN, INPUTS), found[:, count : count + HIDDEN]
    place = bias.abs().argmax(dim=1)
    guess = torch.stack([rows[i, k] / bias[i, k] for i, k in enumerate(place)])
    sample = problem.sample(0, 0)
    data = problem.data.train_x.reshape(-1, INPUTS)  # type: ignore[attr-defined]
    truth = torch.stack([data[int(chosen[0])] for chosen in sample.rows])  # type: ignore[attr-defined]
    return float(((guess - truth).norm(dim=1) < CLOSE * truth.norm(dim=1)).float().mean())


def views(scale: float) -> dict[str, list[float]]:
    """For one neighbour, and for all together."""
    found: dict[str, list[float]] = {"explained": [], "images": []}
    for batch, name in ((32, "explained"), (1, "images")):
        setting = build_setting(settings("net-fleet", 0.0, problem=BASE["problem"] | {"batch": batch}), 0)
        y = first_gradients(setting)
        for together in (False, True):
            view = seen(setting, y, scale, together)
            found[name].append(explained(view, y) if name == "explained" else recovered(setting, view))
    return found


def measure() -> dict[str, Any]:
    with np.errstate(divide="ignore", invalid="ignore"):
        seen_by_scale = {str(scale): views(scale) for scale in SCALES}
    sums = {
        str(scale): {d: trained("net-fleet", scale, 0, 0, d)["tracking_error"] for d in ("float64", "float32")}
        for scale in SCALES
    }
    by_scale = {str(scale): {method: accuracy(method, scale) for method in METHODS} for scale in SCALES}
    return {"views": seen_by_scale, "sums": sums, "accuracy": by_scale}


def page() -> str:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    titles = [make_algorithm(method).title for method in METHODS]
    text = HEAD + VIEWS
    for scale, row in results["views"].items():
        shares = [f"{value:.2g}" for value in row["explained"]], [f"{value:.0%}" for value in row["images"]]
        text += f"| {scale} | {' | '.join([*shares[0], *shares[1]])} |\n"
    lines = "---|" * len(METHODS)
    names = " | ".join(titles)
    text += TRAINED.format(exact=EXACT, rounds=BASE["rounds"], seeds=len(SEEDS), methods=names, lines=lines)
    for scale, methods in results["accuracy"].items():
        cells = (" / ".join(f"{100 * value:.0f}" for value in methods[m].values()) for m in METHODS)
        text += f"| {scale} | {' | '.join(cells)} |\n"
    text += SUMS.format(rounds=BASE["rounds"])
    for scale, row in results["sums"].items():
        text += f"| {scale} | {row['float64']:.0e} | {row['float32']:.0e} |\n"
    return text


if __name__ == "__main__":
    if sys.argv[1:] == ["measure"]:
        RESULTS.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    (HERE / "link_noise.md").write_text(page(), encoding="utf-8")
