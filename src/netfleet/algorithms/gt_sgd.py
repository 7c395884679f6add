r"""GT-SGD: decentralized SGD with gradient tracking, in the form of GNSD.

| paper | here | |
|---|---|---|
| x_t⁽ⁱ⁾ | `x[i]` | model of worker i |
| y_t⁽ⁱ⁾ | `y[i]` | tracked gradient |
| g_t⁽ⁱ⁾ | `g[i]` | stochastic gradient at x_t⁽ⁱ⁾ |

    x_{t+1} = W x_t − η y_t                         (1)
    y_{t+1} = W y_t + g(x_{t+1}) − g(x_t)           (2)

One gradient and one exchange of two vectors per round. GT-DSGD (Xin, Khan, Kar) applies W after the step instead of
before; NET-FLEET generalises the form used here, and equals it at K = 1.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Conserved, Mix, Problem


@ALGORITHMS.register("gt-sgd", "gnsd", "gt-dsgd")
@dataclass(frozen=True, kw_only=True)
class GTSGD(Algorithm):
    """Gradient tracking with step size η."""

    title = "GT-SGD"
    uses_step = True
    exact_with = "any"
    exchanges_models = True
    conserves = Conserved("y", 1)
    assumes = "none"
    citation = """@inproceedings{lu2019gnsd,
  title     = {{GNSD}: a gradient-tracking based nonconvex stochastic algorithm for decentralized optimization},
  author    = {Lu, Songtao and Zhang, Xinwei and Sun, Haoran and Hong, Mingyi},
  booktitle = {IEEE Data Science Workshop (DSW)},
  year      = {2019}
}
@article{xin2020improved,
  title   = {An improved convergence analysis for decentralized online stochastic non-convex optimization},
  author  = {Xin, Ran and Khan, Usman A. and Kar, Soummya},
  journal = {IEEE Transactions on Signal Processing},
  volume  = {69},
  year    = {2021}
}"""

    class State(NamedTuple):
        x: Tensor  # [..., d]
        y: Tensor  # [..., d]
        g: Tensor  # [..., d]

    def init(self, f: Problem, mix: Mix, x: Tensor) -> State:
        g = f.grad(x, f.sample(0, 0))
        return self.State(x, g, g)

    def round(self, f: Problem, mix: Mix, t: int, s: State) -> State:
        x, y = mix(s.x, s.y)
        f.step(x, s.y, self.step_size(t))  # eq. (1)
        g = f.grad(x, f.sample(t, 1))
        return self.State(x, y.add_(g).sub_(s.g), g)  # eq. (2)
