r"""DSGD: decentralized (parallel) SGD.

| paper | here | |
|---|---|---|
| x_t⁽ⁱ⁾ | `x[i]` | model of worker i |
| ∇F(x; ξ) | `f.grad` | stochastic gradient |
| γ | `eta` | step size |

    x_{t+1} = W x_t − γ ∇F(x_t; ξ_t)                (1)

The gradient is taken at the worker's own model before mixing, so that it can be computed while messages travel.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Mix, Problem


@ALGORITHMS.register("dsgd")
@dataclass(frozen=True, kw_only=True)
class DSGD(Algorithm):
    """Decentralized SGD with step size η."""

    title = "DSGD"
    uses_step = True
    exchanges_models = True
    assumes = "bounded dissimilarity"
    citation = """@inproceedings{lian2017can,
  title     = {Can Decentralized Algorithms Outperform Centralized Algorithms? {A} Case Study for Decentralized
               Parallel Stochastic Gradient Descent},
  author    = {Lian, Xiangru and Zhang, Ce and Zhang, Huan and Hsieh, Cho-Jui and Zhang, Wei and Liu, Ji},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year      = {2017}
}"""

    class State(NamedTuple):
        x: Tensor  # [..., d]

    def round(self, f: Problem, mix: Mix, t: int, s: State) -> State:
        g = f.grad(s.x, f.sample(t, 1))
        x = mix(s.x)
        del s
        f.step(x, g, self.step_size(t))  # eq. (1)
        return self.State(x)
