r"""NET-FLEET: decentralized federated learning with recursive gradient correction (Algorithm 1).

| paper | here | |
|---|---|---|
| x_{s,k}⁽ⁱ⁾ | `x[i]` | model of worker i |
| y_{s,k}⁽ⁱ⁾ | `y[i]` | corrected gradient, tracks (1/m) Σⱼ gⱼ |
| g_{s,k}⁽ⁱ⁾ | `g[i]` | stochastic gradient ∇fᵢ(x; ζ) |
| s, k | `t`, `k` | round, local step |
| η, K | `eta`, `K` | step size, local steps per round |
| Σⱼ [W]ᵢⱼ ·⁽ʲ⁾ | `mix(·)` | average over the neighbourhood |
| ζ_{s,k} | `f.sample(t, k)` | mini-batch |

Line 5 moves along the worker's own y_{s,0}, not along the mixed one. With K = 1 this is GT-SGD. Because W is doubly
stochastic, Σᵢ yᵢ = Σᵢ gᵢ after every step; that is what makes heterogeneous data harmless. What `mix` returns is ours
alone, so it is updated in place.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Conserved, Mix, Problem


@ALGORITHMS.register("net-fleet")
@dataclass(frozen=True, kw_only=True)
class NetFleet(Algorithm):
    """NET-FLEET with K local steps per round and step size η."""

    K: int = 10

    title = "NET-FLEET"
    uses_step = True
    exact_with = "any"
    exchanges_models = True
    conserves = Conserved("y", 1)
    assumes = "none"
    citation = """@inproceedings{zhang2022netfleet,
  title     = {{NET-FLEET}: Achieving Linear Convergence Speedup for Fully Decentralized Federated Learning with
               Heterogeneous Data},
  author    = {Zhang, Xin and Fang, Minghong and Liu, Zhuqing and Yang, Haibo and Liu, Jia and Zhu, Zhengyuan},
  booktitle = {Proceedings of the Twenty-Third International Symposium on Theory, Algorithmic Foundations, and
               Protocol Design for Mobile Networks and Mobile Computing (MobiHoc)},
  year      = {2022},
  doi       = {10.1145/3492866.3549723}
}"""

    class State(NamedTuple):
        x: Tensor  # [..., d]
        y: Tensor  # [..., d]
        g: Tensor  # [..., d]

    def init(self, f: Problem, mix: Mix, x: Tensor) -> State:
        g = f.grad(x, f.sample(0, 0))  # line 1
        return self.State(x, g, g)

    def round(self, f: Problem, mix: Mix, t: int, s: State) -> State:
        eta = self.step_size(t)
        x, y = mix(s.x, s.y)  # line 4
        f.step(x, s.y, eta)  # line 5
        before = s.g
        del s
        g = f.grad(x, f.sample(t, 1))  # line 6
        y.add_(g).sub_(before)  # line 7
        del before
        for k in range(1, self.K):  # line 8
            f.step(x, y, eta)  # line 9
            g_next = f.grad(x, f.sample(t, k + 1))  # line 10
            y.add_(g_next).sub_(g)  # line 11
            g = g_next
        return self.State(x, y, g)  # line 13
