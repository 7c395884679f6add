r"""PD-SGDM: periodic decentralized SGD with momentum, K local steps between two exchanges.

| paper | here | |
|---|---|---|
| x_t⁽ᵏ⁾, m_t⁽ᵏ⁾ | `x`, `m` | model and momentum of a worker |
| η, μ | `eta`, `beta` | step size, momentum |
| p | `K` | steps per exchange |

    m_t = μ m_{t−1} + ∇F(x_{t−1}; ξ)                                    (1)
    x_t = x_{t−1} − η m_t,  and x_t ← W x_t every p steps               (2)

The momentum stays with its worker; `d-msgd` mixes it too. A round here begins with the exchange, as in all methods
with local steps. With μ = 0 this is LD-SGD.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Mix, Momentum, Problem


@ALGORITHMS.register("pd-sgdm")
@dataclass(frozen=True, kw_only=True)
class PDSGDM(Algorithm):
    """Local SGD with momentum and gossip averaging of the models."""

    K: int = 10
    beta: Momentum = 0.9

    title = "PD-SGDM"
    exchanges_models = True
    assumes = "bounded gradients"
    citation = """@article{gao2020periodic,
  title   = {Periodic Stochastic Gradient Descent with Momentum for Decentralized Training},
  author  = {Gao, Hongchang and Huang, Heng},
  journal = {arXiv preprint arXiv:2008.10435},
  year    = {2020}
}"""

    class State(NamedTuple):
        x: Tensor  # [..., d]
        m: Tensor  # [..., d]

    def round(self, f: Problem, mix: Mix, t: int, s: State) -> State:
        x, m = mix(s.x), s.m  # eq. (2), W
        del s
        for k in range(1, self.K + 1):
            m = (self.beta * m).add_(f.grad(x, f.sample(t, k)))  # eq. (1)
            x.sub_(m, alpha=self.step_size(t))  # eq. (2)
        return self.State(x, m)
