"""Fills the table about an attacker in docs/sites.md from attackers.json: python docs/make_attackers.py [measure]

With `measure`, it is measured first (a minute on one core).

Twelve sites have quadratics without gradient noise. In every round one of them adds a vector to all that it sends, by
which it wants to move the others. The ledger is that of a real site.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from netfleet.algorithms.build import make_algorithm
from netfleet.engines.host import Tag
from netfleet.engines.loop import Counted
from netfleet.problems.synthetic import Quadratics
from netfleet.sites.runtime.neighbourhood import Ledger
from netfleet.topology.topology import Topology, make_topology

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "attackers.json", HERE / "sites.md"
METHODS = ("net-fleet", "k-gt", "led", "ld-sgd")
WORKERS, LIAR, ROUNDS, FOUND = 12, 0, 1000, 100
#: Entries of what the attacker adds in a round, and the longest difference that a clipped link lets through.
LIE, CLIP = 0.1, 0.1
RULES = {
    "none": "nothing is done",
    "clip": "every link clipped",
    "drop": "links ended, nothing taken back",
    "evict": "`netfleet evict`",
}


class Attacked:
    """`mix` for all sites, of which one attacks."""

    def __init__(self, method: Any, topology: Topology, rule: str) -> None:
        self.W, self.rule, self.tag = torch.from_numpy(topology.W().toarray()), rule, Tag(-1, 0)
        self.near = [i for i in range(WORKERS) if i != LIAR and self.W[i, LIAR]]
        self.ledgers = {i: Ledger(method) for i in self.near}

    def __call__(self, *vectors: Tensor) -> Any:
        mixed = [self._mixed(argument, v) for argument, v in enumerate(vectors)]
        self.tag = Tag(self.tag.t, self.tag.call + 1)
        return mixed[0] if len(mixed) == 1 else tuple(mixed)

    def _mixed(self, argument: int, v: Tensor) -> Tensor:
        lie = torch.zeros_like(v)
        lie[LIAR] = LIE
        differences = (v + lie)[None] - v[:, None]  # [to, from, d]
        differences[LIAR] = v[None] - v[LIAR]
        if self.rule == "clip":
            norms = differences.norm(dim=2, keepdim=True)
            differences = differences * (CLIP / norms.clamp(min=CLIP))
        for i, ledger in self.ledgers.items():
            if self.W[i, LIAR]:
                ledger.add(
                    self.tag, argument, v[i], {LIAR: v[i] + differences[i, LIAR]}, {LIAR: float(self.W[i, LIAR])}
                )
        return v + (self.W[:, :, None] * differences).sum(dim=1)

    def end_links(self, state: Any) -> Any:
        """The state once the attacker's neighbours have ended their links, with or without what came over them."""
        for i in self.near:
            self.W[i, LIAR] = 0.0
            if self.rule == "evict" and self.ledgers[i].flows:
                own = self.ledgers[i].take_back(type(state)(*(values[i : i + 1] for values in state)), [LIAR])
                for values, new in zip(state, own, strict=True):
                    values[i : i + 1] = new
        return state


def distance(kind: str, rule: str) -> float:
    """How far the honest sites are from their optimum in the end, at most."""
    topology = make_topology("erdos-renyi", workers=WORKERS, p=0.5, seed=1, weights="metropolis")
    problem = Quadratics(WORKERS, d=10, mu=1.0, L=1.5, heterogeneity=1.0, seed=0, dtype=torch.float64)
    method = make_algorithm({"kind": kind, "K": 4, "eta": 0.05})
    mix, f = Attacked(method, topology, rule), Counted(problem)
    state: Any = method.init(f, mix, problem.start().repeat(WORKERS, 1))  # type: ignore[arg-type]
    for t in range(ROUNDS):
        mix.tag = Tag(t, 0)
        f.begin(t)
        state = method.round(f, mix, t, state)  # type: ignore[arg-type]
        if t == FOUND and rule in ("drop", "evict"):
            state = mix.end_links(state)
    honest = [i for i in range(WORKERS) if i != LIAR]
    A, b = problem.A[honest], problem.b[honest]
    best = torch.linalg.solve(A.sum(dim=0), (A @ b[..., None]).sum(dim=0))[:, 0]
    return float((state.x[honest] - best).norm(dim=1).max())


def measure() -> dict[str, dict[str, float]]:
    return {kind: {rule: distance(kind, rule) for rule in RULES} for kind in METHODS}


def page() -> str:
    lines = [f"| | {' | '.join(RULES.values())} |", f"|---|{'---|' * len(RULES)}"]
    for kind, row in json.loads(RESULTS.read_text(encoding="utf-8")).items():
        cells = " | ".join(f"{row[rule]:.2g}" if row[rule] >= 0.01 else f"{row[rule]:.0e}" for rule in RULES)
        lines.append(f"| {make_algorithm(kind).title} | {cells} |")
    table = "\n".join(lines)
    marked = f"<!-- attackers -->\n{table}\n<!-- end -->"
    return re.sub(r"<!-- attackers -->.*?<!-- end -->", marked, PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


if __name__ == "__main__":
    if sys.argv[1:] == ["measure"]:
        RESULTS.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
