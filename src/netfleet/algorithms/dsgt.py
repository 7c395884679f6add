r"""DSGT with local steps: plain SGD between exchanges, one step of gradient tracking at each.

| symbol | here | |
|---|---|---|
| θ, ϑ, g | `x`, `y`, `g` | model, tracked gradient, and the gradient last fed to the tracker |

    θ ← W θ − η ϑ,  ϑ ← W ϑ + g(θ) − g_before                                     (1)
    θ ← θ − η ∇F(θ; ξ),  K − 1 times                                             (2)

As the NET-FLEET paper tells it: local SGD, then one round of gradient tracking. K counts the tracking step too, so it
is one more than the paper's number of local steps, and a round takes K gradients as in the other methods. The local
steps carry no correction, so with K > 1 and a fixed step size it does not reach the optimum of heterogeneous
objectives; with K = 1 it is GT-SGD.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Conserved, Mix, Problem


@ALGORITHMS.register("dsgt")
@dataclass(frozen=True, kw_only=True)
class DSGT(Algorithm):
    """One step of gradient tracking and K − 1 steps of local SGD per round, step size η."""

    K: int = 10

    title = "DSGT"
    uses_step = True
    exchanges_models = True
    conserves = Conserved("y", 1)
    assumes = "none stated"
    citation = """@article{lu2019learn,
  title   = {Learn Electronic Health Records by Fully Decentralized Federated Learning},
  author  = {Lu, Songtao and Zhang, Yawen and Wang, Yunlong and Mack, Christina},
  journal = {arXiv preprint arXiv:1912.01792},
  year    = {2019}
}"""

    class State(NamedTuple):
        x: Tensor  # [..., d]
        y: Tensor  # [..., d]
        g: Tensor  # [..., d]

    def init(self, f: Problem, mix: Mix, x: Tensor) -> State:
        g = f.grad(x, f.sample(0, 0))
        return self.State(x, g, g)

    def round(self, f: Problem, mix: Mix, t: int, s: State) -> State:
        eta = self.step_size(t)
        x, y = mix(s.x, s.y)
        f.step(x, s.y, eta)  # eq. (1)
        g = f.grad(x, f.sample(t, 1))
        y.add_(g).sub_(s.g)  # eq. (1)
        del s
        for k in range(2, self.K + 1):
            f.step(x, f.grad(x, f.sample(t, k)), eta)  # eq. (2)
        return self.State(x, y, g)
