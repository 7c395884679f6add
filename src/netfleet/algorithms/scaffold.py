r"""SCAFFOLD: local steps corrected by control variates that the server and the workers keep.

| paper | here | |
|---|---|---|
| x, c | `x`, `v` | the server's model and control variate, the same in every row |
| c_i | `v_i` | the worker's control variate |
| y_i | `y` | the worker's model during its local steps |
| η_l, η_g | `eta`, `eta_g` | step sizes of the workers and of the server |
| 𝒮, N | `participation`, m | share of the workers that a round is done with; their number |

    y_i ← y_i − η_l (g_i(y_i) − c_i + c),  K times from x                        (1)
    option I:   c_i⁺ = g_i(x)                                                   (2)
    option II:  c_i⁺ = (1/K) Σ g_i(y_i)                                         (3)
    x ← x + η_g (1/|𝒮|) Σ_{i ∈ 𝒮} (y_i − x)                                      (4)
    c ← c + (1/N) Σ_{i ∈ 𝒮} (c_i⁺ − c_i)                                        (5)

Option I takes one more gradient, here on a mini-batch of its own. The paper has (3) as c_i − c + (x − y_i) / (K η_l),
which is the same for (1); as a mean of gradients it stays right when a local optimizer makes other steps.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from netfleet.algorithms.base import ALGORITHMS, Algorithm, ExchangeStep, Mix, Problem
from netfleet.topology.server import Participation, participants


@ALGORITHMS.register("scaffold")
@dataclass(frozen=True, kw_only=True)
class SCAFFOLD(Algorithm):
    """K corrected local steps of size η, a server step of size η_g, control variates by option I or II."""

    K: int = 10
    eta_g: ExchangeStep = 1.0
    option: Literal["I", "II"] = "II"
    participation: Participation = 1.0

    server = True
    title = "SCAFFOLD"
    uses_step = True
    exact_with = "any"
    assumes = "none"
    citation = """@inproceedings{karimireddy2020scaffold,
  title     = {{SCAFFOLD}: Stochastic Controlled Averaging for Federated Learning},
  author    = {Karimireddy, Sai Praneeth and Kale, Satyen and Mohri, Mehryar and Reddi, Sashank and
               Stich, Sebastian U. and Suresh, Ananda Theertha},
  booktitle = {International Conference on Machine Learning (ICML)},
  year      = {2020}
}"""

    class State(NamedTuple):
        x: Tensor  # [..., d]
        v: Tensor  # [..., d]
        v_i: Tensor  # [..., d]

    def round(self, f: Problem, mix: Mix, t: int, s: State) -> State:
        eta = self.step_size(t)
        y, correction, mean = s.x.clone(), s.v - s.v_i, torch.zeros_like(s.x)
        for k in range(1, self.K + 1):
            g = f.grad(y, f.sample(t, k))
            f.step(y, g + correction, eta)  # eq. (1)
            mean.add_(g, alpha=1 / self.K)
        v_i = mean if self.option == "II" else f.grad(s.x, f.sample(t, self.K + 1))  # eq. (3) or (2)
        v_i = torch.where(f.active, v_i, s.v_i)
        share = participants(f.m, self.participation) / f.m  # |𝒮| / N
        dx, dv = mix(y.sub_(s.x), v_i - s.v_i)
        x = dx.mul_(self.eta_g).add_(s.x)  # eq. (4)
        return self.State(x, dv.mul_(share).add_(s.v), v_i)  # eq. (5)
