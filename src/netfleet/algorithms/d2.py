r"""D²: decentralized training over decentralized data, called exact diffusion in signal processing.

| paper | here | |
|---|---|---|
| x_t⁽ⁱ⁾ | `x` | model of a worker |
| γ_t | `eta` | step size |
| (x_{t−1} − γ ∇F(x_{t−1}; ξ_{t−1}) − x_t) / γ | `c` | correction, in the unit of a gradient; Σᵢ cᵢ = 0 |

    x_{t+½} = 2 x_t − x_{t−1} − γ ∇F(x_t; ξ_t) + γ ∇F(x_{t−1}; ξ_{t−1})              (1)
    x_{t+1} = W x_{t+½}                                                           (2)

With c, (1) is x_{t+½} = x_t − γ (∇F(x_t; ξ_t) + c_t), and by the same equation a round earlier

    c_t = c_{t−1} + (x_{t−½} − x_t) / γ,  c_0 = 0                                 (3)

which is LED with one local step. Kept like this, what the workers have learned about each other keeps its size when γ
changes, and its sum, 0, when some of them are away for rounds in which it does. W must have no eigenvalue below −1/3;
the weights of the NET-FLEET paper have none below 1/3. A round here begins with the exchange, so `x` is x_{t+½}. Exact
diffusion is D² with (I + W)/2.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Conserved, Mix, Problem


@ALGORITHMS.register("d2")
@dataclass(frozen=True, kw_only=True)
class D2(Algorithm):
    """D² with step size η."""

    title = "D²"
    uses_step = True
    exact_with = "linear"
    correction_step = 1.0
    divides_by_eta = True
    sums_differences = True
    least_eigenvalue = -1 / 3
    conserves = Conserved("c", 0)
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
        c: Tensor  # [..., d]

    def round(self, f: Problem, mix: Mix, t: int, s: State) -> State:
        eta, before = self.step_size(t), self.step_size(max(t - 1, 0))
        x = mix(s.x)  # eq. (2)
        c = (s.x - x).div_(before * f.gain).add_(s.c)  # eq. (3)
        del s
        f.step(x, f.grad(x, f.sample(t, 1)) + c, eta)  # eq. (1)
        return self.State(x, c)

    def flow(self, t: int) -> float:
        return -1 / self.step_size(max(t - 1, 0))
