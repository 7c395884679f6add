r"""LU-GT: gradient tracking with local updates, the mixing skipped in all but one of K steps.

| symbol | here | |
|---|---|---|
| x, y, g | `x`, `y`, `g` | model, tracked gradient and gradient of a worker |

    x⁺ = W_k (x − η y),  y⁺ = W_k y + g(x⁺) − g(x),  W_k = W every K steps, else I          (1)

NET-FLEET is the same with W x − η y in the step that mixes. The LU-GT paper also puts g(x⁺) − g(x) under W, which
takes a second exchange; this form (also known as FlexGT) sends both vectors at once. With K = 1 it is GT-DSGD.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Conserved, Mix, Problem


@ALGORITHMS.register("lu-gt")
@dataclass(frozen=True, kw_only=True)
class LUGT(Algorithm):
    """Gradient tracking with K − 1 local updates between two exchanges."""

    K: int = 10

    title = "LU-GT"
    uses_step = True
    exact_with = "any"
    exchanges_models = True
    conserves = Conserved("y", 1)
    assumes = "none"
    citation = r"""@inproceedings{nguyen2023performance,
  title     = {On the Performance of Gradient Tracking with Local Updates},
  author    = {Nguyen, Edward Duc Hien and Alghunaim, Sulaiman A. and Yuan, Kun and Uribe, C{\'e}sar A.},
  booktitle = {IEEE Conference on Decision and Control (CDC)},
  year      = {2023}
}
@article{huang2023computation,
  title   = {On the Computation-Communication Trade-Off with A Flexible Gradient Tracking Approach},
  author  = {Huang, Yan and Xu, Jinming},
  journal = {arXiv preprint arXiv:2306.07159},
  year    = {2023}
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
        x = s.x.clone()
        f.step(x, s.y, eta)
        x, y = mix(x, s.y)  # eq. (1), W_k = W
        g = f.grad(x, f.sample(t, 1))
        y.add_(g).sub_(s.g)
        del s
        for k in range(2, self.K + 1):
            f.step(x, y, eta)  # eq. (1), W_k = I
            g_next = f.grad(x, f.sample(t, k))
            y.add_(g_next).sub_(g)
            g = g_next
        return self.State(x, y, g)
