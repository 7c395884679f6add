r"""LD-SGD: local decentralized SGD, K local steps between two exchanges.

| paper | here | |
|---|---|---|
| x_t⁽ⁱ⁾ | `x[i]` | model of worker i |
| η | `eta` | step size |
| I₁ + I₂ with I₂ = 1 | `K` | steps per exchange |

    X_{t+1} = (X_t − η G(X_t; ξ_t)) W_t,  W_t = W every K steps, else I          (1)

A round here begins with the exchange, as in NET-FLEET, so that all methods are measured at the same moment; since all
workers start from one model, the iterates are those of eq. (1).
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Mix, Problem


@ALGORITHMS.register("ld-sgd")
@dataclass(frozen=True, kw_only=True)
class LDSGD(Algorithm):
    """Local SGD with gossip averaging: K local steps per round, step size η."""

    K: int = 10

    title = "LD-SGD"
    uses_step = True
    exchanges_models = True
    assumes = "bounded dissimilarity"
    citation = """@article{li2019communication,
  title   = {Communication-Efficient Local Decentralized {SGD} Methods},
  author  = {Li, Xiang and Yang, Wenhao and Wang, Shusen and Zhang, Zhihua},
  journal = {arXiv preprint arXiv:1910.09126},
  year    = {2019}
}"""

    class State(NamedTuple):
        x: Tensor  # [..., d]

    def round(self, f: Problem, mix: Mix, t: int, s: State) -> State:
        x = mix(s.x)  # eq. (1), W_t = W
        del s
        for k in range(1, self.K + 1):
            f.step(x, f.grad(x, f.sample(t, k)), self.step_size(t))  # eq. (1), W_t = I
        return self.State(x)
