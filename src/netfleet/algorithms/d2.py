r"""D²: decentralized training over decentralized data, called exact diffusion in signal processing.

| paper | here | |
|---|---|---|
| x_t⁽ⁱ⁾ | `x` | model of a worker |
| γ_t | `eta` | step size |
| | `h` | x_{t−1} − γ_{t−1} ∇F(x_{t−1}; ξ_{t−1}) |

    x_{t+½} = 2 x_t − x_{t−1} − γ ∇F(x_t; ξ_t) + γ ∇F(x_{t−1}; ξ_{t−1})              (1)
    x_{t+1} = W x_{t+½}                                                           (2)

In round 0, x_{½} = x₀ − γ ∇F(x₀; ξ₀). When γ changes, (x_{t−1} − x_t)/γ_{t−1} takes the place of the difference, so
that what the workers have learned about each other keeps its size. W must have no eigenvalue below −1/3; the
weights of the NET-FLEET paper have none below 1/3. A round here begins with the exchange, so `x` is x_{t+½}. Exact
diffusion is D² with (I + W)/2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Mix
from netfleet.problems.base import Problem


@ALGORITHMS.register("d2")
@dataclass(frozen=True, kw_only=True)
class D2(Algorithm):
    """D² with step size η."""

    title = "D²"
    divides_by_eta = True
    sums_differences = True
    least_eigenvalue = -1 / 3
    assumes = "none"
    citation = """@inproceedings{tang2018d2,
  title     = {{D}$^2$: Decentralized Training over Decentralized Data},
  author    = {Tang, Hanlin and Lian, Xiangru and Yan, Ming and Zhang, Ce and Liu, Ji},
  booktitle = {International Conference on Machine Learning (ICML)},
  year      = {2018}
}
@article{yuan2019exact,
  title   = {Exact Diffusion for Distributed Optimization and Learning---Part {I}: Algorithm Development},
  author  = {Yuan, Kun and Ying, Bicheng and Zhao, Xiaochuan and Sayed, Ali H.},
  journal = {IEEE Transactions on Signal Processing},
  volume  = {67},
  number  = {3},
  year    = {2019}
}"""

    class State(NamedTuple):
        x: Tensor  # [..., d]
        h: Tensor  # [..., d]

    def init(self, f: Problem, mix: Mix, x: Tensor) -> State:
        return self.State(x, x)

    def round(self, f: Problem, mix: Mix, t: int, s: State) -> State:
        eta, before = self.step_size(t), self.step_size(max(t - 1, 0))
        x = mix(s.x)  # eq. (2)
        h = x.sub(f.grad(x, f.sample(t, 1)), alpha=eta)
        return self.State(x.sub_(s.h).mul_(eta / before).add_(h), h)  # eq. (1)
