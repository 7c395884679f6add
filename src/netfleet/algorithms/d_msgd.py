r"""Decentralized momentum SGD with local steps: the workers average their momenta as well as their models.

| paper | here | |
|---|---|---|
| x_i, u_i | `x`, `u` | model and momentum of a worker |
| γ, β | `eta`, `beta` | step size, momentum |
| I | `K` | steps per exchange |

    u ← β u + ∇F(x; ξ),  x ← x − γ u                                    (1)
    every I steps: u ← W u, x ← W x                                     (2)

Yu, Jin and Yang have (2) with the exact average every I steps (PR-SGD-Momentum) and with a graph at every step; the
decentralized method with local steps is both at once. A round here begins with the exchange.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Mix, Momentum, Problem


@ALGORITHMS.register("d-msgd")
@dataclass(frozen=True, kw_only=True)
class DMSGD(Algorithm):
    """Local SGD with momentum and gossip averaging of models and momenta."""

    K: int = 10
    beta: Momentum = 0.9

    title = "D-MSGD"
    exchanges_models = True
    assumes = "bounded dissimilarity"
    citation = """@inproceedings{yu2019linear,
  title     = {On the Linear Speedup Analysis of Communication Efficient Momentum {SGD} for Distributed Non-Convex
               Optimization},
  author    = {Yu, Hao and Jin, Rong and Yang, Sen},
  booktitle = {International Conference on Machine Learning (ICML)},
  year      = {2019}
}"""

    class State(NamedTuple):
        x: Tensor  # [..., d]
        u: Tensor  # [..., d]

    def round(self, f: Problem, mix: Mix, t: int, s: State) -> State:
        x, u = mix(s.x, s.u)  # eq. (2)
        del s
        for k in range(1, self.K + 1):
            u.mul_(self.beta).add_(f.grad(x, f.sample(t, k)))  # eq. (1)
            x.sub_(u, alpha=self.step_size(t))
        return self.State(x, u)
