r"""DFedAvgM: decentralized federated averaging with momentum that starts anew in every round.

| paper | here | |
|---|---|---|
| y^{t,k}(i) | `x` | model of a worker during its local steps |
| η, θ | `eta`, `beta` | step size, momentum |

    y^{t,k+1} = y^{t,k} − η ∇F(y^{t,k}; ξ) + θ (y^{t,k} − y^{t,k−1}),  y^{t,−1} = y^{t,0} = x^t          (1)
    x^{t+1} = W y^{t,K}                                                                          (2)

A round here begins with the exchange. With θ = 0 this is LD-SGD. Quantised messages, the paper's other half, come
with any method here.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Mix, Momentum, Problem


@ALGORITHMS.register("dfedavgm")
@dataclass(frozen=True, kw_only=True)
class DFedAvgM(Algorithm):
    """K local heavy-ball steps of size η and momentum β, then gossip averaging of the models."""

    K: int = 10
    beta: Momentum = 0.9

    title = "DFedAvgM"
    exchanges_models = True
    assumes = "bounded gradients"
    citation = """@article{sun2022decentralized,
  title   = {Decentralized Federated Averaging},
  author  = {Sun, Tao and Li, Dongsheng and Wang, Bao},
  journal = {IEEE Transactions on Pattern Analysis and Machine Intelligence},
  year    = {2022}
}"""

    class State(NamedTuple):
        x: Tensor  # [..., d]

    def round(self, f: Problem, mix: Mix, t: int, s: State) -> State:
        x = mix(s.x)  # eq. (2)
        del s
        v = torch.zeros_like(x)  # (y^{t,k−1} − y^{t,k}) / η
        for k in range(1, self.K + 1):
            v.mul_(self.beta).add_(f.grad(x, f.sample(t, k)))
            x.sub_(v, alpha=self.step_size(t))  # eq. (1)
        return self.State(x)
