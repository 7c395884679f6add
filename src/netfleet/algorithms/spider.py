r"""SPIDER, distributed: a running estimate of the gradient, renewed exactly from time to time.

| paper | here | |
|---|---|---|
| x_k | `x` | the server's model, the same in every row |
| x_{k−1}, v_{k−1} | `x_before`, `v` | the model and the estimate before |
| η, q | `eta`, `period` | step size, rounds from one exact gradient to the next |

    v_k = (1/m) Σᵢ ∇fᵢ(x_k) if k mod q = 0, else v_{k−1} + (1/m) Σᵢ (∇Fᵢ(x_k; ξ) − ∇Fᵢ(x_{k−1}; ξ))          (1)
    x_{k+1} = x_k − η v_k                                                                            (2)

SPIDER divides the step by ‖v‖; with a fixed step (SpiderBoost) the rate is the same, and the steps are those of the
other methods.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Mix, Period, Problem


@ALGORITHMS.register("spider")
@dataclass(frozen=True, kw_only=True)
class SPIDER(Algorithm):
    """Steps of size η along a recursive estimate, exact every `period` rounds."""

    period: Period = 20

    server = True
    title = "SPIDER"
    exact_with = "linear"
    assumes = "none"
    citation = """@inproceedings{fang2018spider,
  title     = {{SPIDER}: Near-Optimal Non-Convex Optimization via Stochastic Path-Integrated Differential Estimator},
  author    = {Fang, Cong and Li, Chris Junchi and Lin, Zhouchen and Zhang, Tong},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year      = {2018}
}"""

    class State(NamedTuple):
        x: Tensor  # [..., d]
        x_before: Tensor  # [..., d]
        v: Tensor  # [..., d]

    def init(self, f: Problem, mix: Mix, x: Tensor) -> State:
        return self.State(x, x, x)

    def round(self, f: Problem, mix: Mix, t: int, s: State) -> State:
        if t % self.period == 0:
            v = mix(f.full_grad(s.x))  # eq. (1)
        else:
            sample = f.sample(t, 1)
            v = mix(f.grad(s.x, sample) - f.grad(s.x_before, sample)).add_(s.v)  # eq. (1)
        return self.State(s.x.sub(v, alpha=self.step_size(t)), s.x, v)  # eq. (2)
