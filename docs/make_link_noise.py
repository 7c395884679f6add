"""Writes docs/link_noise.md from docs/link_noise.json: python docs/make_link_noise.py [measure]

With `measure`, the tables are measured first (three minutes on two cores).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from netfleet.algorithms.build import make_algorithm
from netfleet.privacy.audit import AuditOptions, audit
from netfleet.privacy.audit.recording import coefficients, record
from netfleet.privacy.audit.views import read_gradients, views_of
from netfleet.runs.build import build_job, build_setting
from netfleet.runs.config import Experiment, experiment
from netfleet.runs.run import run_experiment

HERE = Path(__file__).parent
RESULTS = HERE / "link_noise.json"
SCALES, SEEDS, EXACT = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3), (0, 1, 2), 10
ATTACKED = 10  # rounds whose messages are attacked
METHODS = ("net-fleet", "k-gt", "led", "ld-sgd")
BASE: dict[str, Any] = {
    "rounds": 150,
    "topology": {"kind": "erdos-renyi", "workers": 10, "p": 0.5, "weights": "metropolis"},
    "problem": {
        "kind": "classification",
        "data": "digits",
        "partition": "shards",
        "model": {"kind": "mlp", "hidden": [64]},
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
| a site two hops away | sums of many sites, into which the noise is mixed (table below) |
| outsiders | nothing, as without noise (TLS) |

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

Each site makes a key pair (X25519) for the run. Neighbours ask each other for the public key before the first round of
their link. Like every message it comes with a signature of the certificate's key, over the run's hash, the site's name
and the key, and is on [record](sites.md#the-record-netfleet-receipts). Each end computes the link's secret (HKDF).
Keys and secrets are in `run/noise.json` (mode 600) before they are used. A site that restarts has the same ones, and a
repeated round sends the same bits; after a [rollback](sites.md#roll-back-netfleet-rollback) of all sites the noise is
another. A site that lost the file has to `--rejoin`; new links have new secrets. A neighbour that joins gets what a
site last sent in place of its model. A site that has one neighbour left logs `exposed`.

In the simulator and on clusters the secrets follow from the seed.
"""
VIEWS = """
## What others see in {rounds} rounds

Ten workers with two labels each, an MLP with 64 hidden units, a random graph (p = 0.5), K = 5. An attacker subtracts
the noise that it knows, and combines all messages that it has into the best linear guess of each gradient of a
worker, or of the mean of a round's gradients ([netfleet audit](audit.md) does the same). A cell is how much of the
clearest one it then knows: for one neighbour / a site two hops away / all neighbours together. *Images* are
NET-FLEET's with a batch of one: how many of them follow exactly from a row of the first layer's gradient and its
bias.

| σ | {methods} | images |
|---|{lines}---|
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


def explained(method: str, scale: float) -> dict[str, float]:
    """By view: how much of a worker's clearest gradient the messages of some rounds determine."""
    given = settings(method, scale)
    setting = build_setting(given, 0)
    recording = record(build_job(given.algorithms[0], 0, given, setting), ATTACKED)
    found = coefficients(recording)
    readings = {view.name: read_gradients(recording, found, view) for view in views_of(recording, setting.topology, 0)}
    return {name: reading.found[0].share for name, reading in readings.items()}


def recovered(scale: float) -> dict[str, float]:
    """By view: the share of NET-FLEET's images that `netfleet audit` computes exactly, with one image a batch."""
    given = settings("net-fleet", scale, problem=BASE["problem"] | {"batch": 1})
    found = audit(given, AuditOptions(rounds=ATTACKED, victims=10, shadows=0, inverted=0))
    return {view: found.value("algebra", "batch", view, "NET-FLEET", scale > 0) or 0.0 for view in found.views}


def measure() -> dict[str, Any]:
    seen = {
        str(scale): {method: explained(method, scale) for method in METHODS} | {"images": recovered(scale)}
        for scale in SCALES
    }
    sums = {
        str(scale): {d: trained("net-fleet", scale, 0, 0, d)["tracking_error"] for d in ("float64", "float32")}
        for scale in SCALES
    }
    by_scale = {str(scale): {method: accuracy(method, scale) for method in METHODS} for scale in SCALES}
    return {"views": seen, "sums": sums, "accuracy": by_scale}


def page() -> str:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    titles = [make_algorithm(method).title for method in METHODS]
    names, lines = " | ".join(titles), "---|" * len(METHODS)
    text = HEAD + VIEWS.format(rounds=ATTACKED, methods=names, lines=lines)
    for scale, row in results["views"].items():
        views = ("neighbour", "two hops", "all neighbours")
        cells = [*(" / ".join(f"{row[m][view]:.1%}" for view in views) for m in METHODS)]
        cells += [" / ".join(f"{row['images'][view]:.0%}" for view in views)]
        text += f"| {scale} | {' | '.join(cells)} |\n"
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
