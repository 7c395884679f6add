r"""Momentum Tracking: gradient tracking in which the momentum takes the gradient's place.

| paper | here | |
|---|---|---|
| x_i, u_i | `x`, `u` | model and momentum of a worker |
| u_i − c_i | `y` | tracked momentum, Σᵢ yᵢ = Σᵢ uᵢ |
| η, β | `eta`, `beta` | step size, momentum |

    x⁺ = W x − η y                                                              (1)
    u⁺ = β u + ∇F(x⁺; ξ)                                                        (2)
    y⁺ = W y + u⁺ − u                                                           (3)

The paper starts from c = (g − ḡ)/(1 − β), which takes an exact average; here u and y start at the first gradient, as
in gradient tracking, which this is with β = 0.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Conserved, Mix, Momentum, Problem


@ALGORITHMS.register("momentum-tracking")
@dataclass(frozen=True, kw_only=True)
class MomentumTracking(Algorithm):
    """Decentralized SGD with tracked momentum β."""

    beta: Momentum = 0.9

    title = "Momentum Tracking"
    exact_with = "linear"
    exchanges_models = True
    conserves = Conserved("y", 1)
    assumes = "none"
    citation = """@article{takezawa2023momentum,
  title   = {Momentum Tracking: Momentum Acceleration for Decentralized Deep Learning on Heterogeneous Data},
  author  = {Takezawa, Yuki and Bao, Han and Niwa, Kenta and Sato, Ryoma and Yamada, Makoto},
  journal = {Transactions on Machine Learning Research},
  year    = {2023}
}"""

    class State(NamedTuple):
        x: Tensor  # [..., d]
        y: Tensor  # [..., d]
        u: Tensor  # [..., d]

    def init(self, f: Problem, mix: Mix, x: Tensor) -> State:
        u = f.grad(x, f.sample(0, 0))
        return self.State(x, u, u)

    def round(self, f: Problem, mix: Mix, t: int, s: State) -> State:
        x, y = mix(s.x, s.y)
        x.sub_(s.y, alpha=self.step_size(t))  # eq. (1)
        u = (self.beta * s.u).add_(f.grad(x, f.sample(t, 1)))  # eq. (2)
        return self.State(x, y.add_(u).sub_(s.u), u)  # eq. (3)
