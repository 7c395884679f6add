"""Writes docs/audit.md from docs/audit.json: python docs/make_audit.py [--measure]

With --measure the audits are made first (ten minutes on two cores).
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from netfleet.privacy.audit import AuditOptions, audit
from netfleet.privacy.audit.results import Audit, Finding
from netfleet.privacy.audit.table import VIEWERS, shown
from netfleet.privacy.audit.target import methods_by_name
from netfleet.privacy.audit.views import WORDS as VIEWS
from netfleet.runs.config import Experiment, experiment

HERE = Path(__file__).parent
RESULTS = HERE / "audit.json"
BATCHES, HIDDEN, PRIVACY, SEEDS = (1, 4, 8, 32), (64, 512), {"clip": 1.0, "noise": 1.0}, (0, 1, 2, 3, 4)
METHODS, BATCH = "net-fleet,gt-sgd,dsgd,k-gt,led,ld-sgd", 8
GRAPHS: dict[str, dict[str, Any]] = {"random": {"kind": "erdos-renyi", "p": 0.3}, "ring": {"kind": "ring"}}
COLUMNS = {
    "gradients": ("gradients", "exact"),
    "labels": ("labels", "advantage"),
    "division": ("algebra", "batch"),
    "all rows": ("algebra", "rows"),
    "membership": ("membership", "advantage"),
}
HEAD = """# Attack yourself

Made by `python docs/make_audit.py` from audits; do not edit by hand.

`netfleet audit` runs an experiment, takes the place of a curious site, and tries to get the training data back from the
messages. It needs no site to be up and sends nothing anywhere.

    netfleet audit                                   # the demo
    netfleet audit FILE.toml --methods net-fleet,k-gt,ld-sgd
    netfleet audit plan                              # the folder that `netfleet plan` made
    netfleet audit plan/north                        # at a site: its own rows are the victim

It writes `audit.html`, a page with the results and, for images, originals beside reconstructions, and `audit.json`. If
the experiment has `[privacy]`, each method is attacked without it and with it. In Python:

    from netfleet.privacy.audit import AuditOptions, audit
    found = audit(nf.load_experiment("my.toml"), AuditOptions(rounds=3))
    found.value("algebra", "batch", "neighbour", "NET-FLEET")

## Who attacks

| view | knows |
|---|---|
{views}

All of them know W, the step sizes, the initial model and the batch size. A site of a plan knows its own row of W only;
the audit takes the worse case.

## What is tried

- **Gradients.** Every message is a sum of gradients. The coefficients follow from the method, so the messages that an
  attacker has are linear equations, and it solves them for the victim's gradients (El Mrini, Cyffers, Bellet 2024). The
  audit finds the coefficients by running the method with symbols in place of gradients: methods of your own are audited
  without further code. Local optimizers such as Adam, and compression, are not linear; there the audit takes the
  changes from message to message. Where links have [noise](link_noise.md), an attacker subtracts what it knows of it,
  and the rest is an error of known size.
- **Labels.** The last layer's bias has a negative gradient for labels that are in the batch, or at least a smaller one
  than the attacker's own rows suggest. The result is the share of labels found less the share of labels said in error,
  so guessing gets 0 %.
- **Division.** A row of the first layer's weight gradient divided by its bias gradient is an input, if that input alone
  has reached the unit. An input counts as recovered if no value is further off than 0.1 % of the data's range.
- **Optimisation.** Inputs are looked for whose gradient points the same way as the victim's; at most 8 for each of
  `--inverted` victims. An input counts as recovered from a PSNR of 20 dB on.
- **Membership.** A likelihood-ratio test with shadow models (Carlini et al. 2022) on the model that the attacker has:
  that of the victim, or two hops away that of the neighbour between them. `--shadows` trainings of `--training` rounds
  on halves of the rows serve as targets and shadows in turn. The advantage is the share of members found less the share
  of others taken for members, with a 95 % interval by the bootstrap over rows. With privacy the file also has the
  largest advantage that (ε, δ) allows; that ε is of the shadows' training, whose workers have half of the rows.

The attacks are known ones of moderate effort. What they find is there; what they do not find, a better attack may.
"""
TABLE = """
## A mini-batch gradient is no secret

NET-FLEET's first message is the gradient of one mini-batch. Inputs of it that one neighbour recovers exactly, of digits
with two labels at each of 20 sites (means over five seeds):

{table}

The neighbour reads off {labels} of the labels of these batches. `[privacy]`: clip = {clip:g}, noise = {noise:g}.
"""
WORDS = """
Privacy of single rows does not hide what many rows have in common: labels that many rows of a batch have can still be
read off, as the tables below show.
"""
RANKING = """
## Methods by what their messages show

Batches of {batch}, an MLP with 64 hidden units, messages of three rounds with K = 10, {victims} victims; methods from
the one that shows most on. "gradients": those that can be computed exactly (private ones have noise already);
"division": of the inputs of the best known gradient; "all rows": of all inputs behind the messages.
"""
FOUND = """
- Tracking methods that send y start with one mini-batch's gradient, and all neighbours together compute another one
  exactly in every round. With one gradient per round (GT-SGD, DSGD) they compute all of them.
- Methods that send the sum of K steps show the mean of a round's gradients: fewer inputs, and the labels all the same.
- **Messages pass a site** where x is sent with the direction of its step. K-GT's next x + η K z, and GT-SGD's x + η y,
  are the sender's mixed model, and so show what it received. On a ring, where one neighbour of the sender is unknown, a
  site two hops away computes the victim's gradient (GT-SGD) or mean gradient (K-GT) exactly. With NET-FLEET, LED and
  LD-SGD it cannot.
- Membership is found best in models that overfit; these have been trained for 30 rounds only.
"""


def settings(graph: dict[str, Any], hidden: int, batch: int) -> Experiment:
    """The digits of the demo."""
    problem = {"kind": "classification", "data": "digits", "partition": {"kind": "shards", "per_worker": 2}}
    problem |= {"model": {"kind": "mlp", "hidden": [hidden]}, "batch": batch}
    table = {"name": "digits", "rounds": 50, "topology": {**graph, "workers": 20}, "problem": problem}
    return experiment({**table, "algorithms": [{"kind": "net-fleet", "K": 10, "eta": 0.05}], "privacy": PRIVACY})


def measure() -> dict[str, Any]:
    """All audits, as their files have them."""
    first = AuditOptions(rounds=1, victims=20, shadows=0, inverted=0)
    batches: dict[str, list[dict[str, Any]]] = {}
    for hidden in HIDDEN:
        for batch in BATCHES:
            given = settings(GRAPHS["random"], hidden, batch)
            for seed in SEEDS:
                found = audit(replace(given, seeds=(seed,)), first)
                batches.setdefault(f"{hidden}/{batch}", []).append(_short(found, ["neighbour"]))
            print(hidden, batch, flush=True)
    methods = {}
    for name, graph in GRAPHS.items():
        given = settings(graph, HIDDEN[0], BATCH)
        methods[name] = _short(audit(given, AuditOptions(inverted=0), methods=methods_by_name(METHODS, given)))
        print(name, flush=True)
    return {"batches": batches, "methods": methods}


def _short(found: Audit, views: Sequence[str] = tuple(VIEWS)) -> dict[str, Any]:
    """Of an audit's table the numbers that the page shows: a value and its interval by what they are of."""
    kept = {*COLUMNS.values(), ("labels", "recall"), ("gradients", "clearest")}
    numbers = {
        _key((f.attack, f.name), f.view, f.method, f.private): [round(x, 4) for x in (f.value, *(f.interval or ()))]
        for f in found.findings
        if (f.attack, f.name) in kept and f.view in views and f.value is not None
    }
    table = found.to_table()
    return {"settings": table["settings"], "ranking": table["ranking"], "numbers": numbers}


def _key(column: tuple[str, str], view: str, method: str, private: bool) -> str:
    return " / ".join([*column, view, method, *(["private"] if private else [])])


def _text(results: dict[str, Any]) -> str:
    """As JSON, with a list on one line."""
    text = json.dumps(results, indent=1, ensure_ascii=False)
    return re.sub(r"\[[^][{}]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text) + "\n"


def find(table: dict[str, Any], column: tuple[str, str], view: str, method: str, private: bool) -> Finding | None:
    stored = table["numbers"].get(_key(column, view, method, private))
    if stored is None:
        return None
    value, *interval = stored
    pair = (interval[0], interval[1]) if interval else None
    return Finding(*column, view, method, private, table["settings"]["victims"], value, pair, "")


def value(table: dict[str, Any], column: tuple[str, str], view: str, method: str, private: bool = False) -> float:
    found = find(table, column, view, method, private)
    return 0.0 if found is None or found.value is None else found.value


def batches(results: dict[str, Any]) -> str:
    """The share of a batch that is recovered, by model, batch and privacy."""
    lines = ["| inputs recovered exactly | " + " | ".join(f"batch {batch}" for batch in BATCHES) + " |"]
    lines.append("|---" * (1 + len(BATCHES)) + "|")
    for private in (False, True):
        for hidden in HIDDEN:
            stored = [results["batches"][f"{hidden}/{batch}"] for batch in BATCHES]
            cells = [f"{100 * mean(tables, COLUMNS['division'], private):.0f} %" for tables in stored]
            name = f"MLP, {hidden} hidden units{', with `[privacy]`' if private else ''}"
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def mean(tables: Sequence[dict[str, Any]], column: tuple[str, str], private: bool = False) -> float:
    """What one neighbour sees of NET-FLEET, over seeds."""
    found = [value(table, column, "neighbour", "NET-FLEET", private) for table in tables]
    return sum(found) / len(found)


def labels(results: dict[str, Any]) -> str:
    """The least and the largest share of labels that are read off."""
    found = [mean(tables, ("labels", "recall")) for tables in results["batches"].values()]
    low, high = round(100 * min(found)), round(100 * max(found))
    return f"{high} %" if low == high else f"{low} to {high} %"


def ranking(results: dict[str, Any], graph: str) -> str:
    """A table for each view."""
    table, parts = results["methods"][graph], []
    for view, order in table["ranking"].items():
        lines = [f"| seen by {VIEWERS[view]} | {' | '.join(COLUMNS)} |", "|---" * (1 + len(COLUMNS)) + "|"]
        for method in order:
            for private in (False, True):
                cells = [shown(find(table, column, view, method, private), "%") for column in COLUMNS.values()]
                lines.append(f"| {method}{', private' if private else ''} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def check_words(results: dict[str, Any]) -> None:
    """Raise if the results contradict what the page says."""
    ring, random = (results["methods"][graph] for graph in ("ring", "random"))
    clearest = ("gradients", "clearest")

    def far(method: str) -> float:
        return value(ring, clearest, "two hops", method)

    claims = {
        "privacy leaves nothing to divide": all(
            value(table, column, view, method, True) == 0
            for table in (*itertools.chain(*results["batches"].values()), ring, random)
            for column in (COLUMNS["division"], COLUMNS["all rows"])
            for view in table["ranking"]
            for method in table["ranking"][view]
        ),
        "a batch of one is recovered": all(
            mean(results["batches"][f"{hidden}/1"], COLUMNS["division"]) == 1 for hidden in HIDDEN
        ),
        "labels can be read off with privacy": value(ring, COLUMNS["labels"], "neighbour", "LD-SGD", True) > 0.1,
        "with one gradient per round all are computed": all(
            value(random, COLUMNS["gradients"], "all neighbours", method) == 1 for method in ("GT-SGD", "DSGD")
        ),
        "GT-SGD and K-GT show a gradient two hops away on a ring": min(far("GT-SGD"), far("K-GT")) > 0.99,
        "NET-FLEET, LED and LD-SGD do not": max(map(far, ("NET-FLEET", "LED", "LD-SGD"))) < 0.9,
    }
    if wrong := [claim for claim, holds in claims.items() if not holds]:
        raise ValueError(
            f"{RESULTS.name} does not say that {'; '.join(wrong)}; rewrite the words of {Path(__file__).name}"
        )


def page() -> str:
    """The whole page."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    check_words(results)
    views = "\n".join(f"| {VIEWERS[view]} | {words.partition(': ')[2]} |" for view, words in VIEWS.items())
    made = HEAD.format(views=views) + TABLE.format(table=batches(results), labels=labels(results), **PRIVACY) + WORDS
    victims = results["methods"]["ring"]["settings"]["victims"]
    made += RANKING.format(batch=BATCH, victims=victims) + FOUND
    for graph in GRAPHS:
        made += f"\n### On a {graph}{' graph' if graph == 'random' else ''} of 20\n\n{ranking(results, graph)}\n"
    return made


if __name__ == "__main__":
    if "--measure" in sys.argv[1:]:
        RESULTS.write_text(_text(measure()), encoding="utf-8")
    (HERE / "audit.md").write_text(page(), encoding="utf-8")
