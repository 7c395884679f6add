"""A method of your own, in one file: decentralized SGD with heavy-ball momentum.

Run it beside NET-FLEET from this folder:   netfleet run my_algorithm.toml
or from Python:                             python my_algorithm.py
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

import netfleet as nf


@dataclass(frozen=True, kw_only=True)
class HeavyBall(nf.Algorithm):
    """x ← W x − η u,  u ← β u + g(x): a hyper-parameter is a field, a vector per worker is a field of State."""

    beta: float = 0.9
    title = "heavy ball"
    citation = "@article{polyak1964some, author = {Polyak, Boris T.}, year = {1964}}"

    class State(NamedTuple):
        x: Tensor  # models, [..., d]
        u: Tensor  # momentum, [..., d]

    def init(self, f: nf.Problem, mix: nf.Mix, x: Tensor) -> State:
        return self.State(x, torch.zeros_like(x))

    def round(self, f: nf.Problem, mix: nf.Mix, t: int, s: State) -> State:
        u = self.beta * s.u + f.grad(s.x, f.sample(t, 1))
        return self.State(mix(s.x) - self.step_size(t) * u, u)


if __name__ == "__main__":
    history = nf.simulate(HeavyBall(eta=0.02), topology="ring", workers=8, rounds=100, progress=True)
    print(f"{history.label}: {history.last['accuracy']:.1%} of the test digits right")
