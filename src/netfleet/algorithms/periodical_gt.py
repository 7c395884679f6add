r"""Periodical GT: gradient tracking at the exchanges only; the local steps keep the correction found there.

| symbol | here | |
|---|---|---|
| x, g⁽ᵏ⁾ | `x`, `g` | model of a worker; its gradient in local step k, the first of which is kept |
| y | `y` | tracked gradient, y − g⁽¹⁾ is the correction; Σᵢ yᵢ = Σᵢ gᵢ⁽¹⁾ |

    x ← W x,  y ← W y + g⁽¹⁾ − g_before⁽¹⁾                                        (1)
    x ← x − η (g⁽ᵏ⁾ + y − g⁽¹⁾),  k = 1, …, K                                    (2)

Named in the K-GT paper as the method to improve on; written from that description. NET-FLEET differs in that its
tracker is fed the last gradient of a round, not the first. With K = 1 this is gradient tracking with W after the step
(GT-DSGD), whose exchange falls at another place in the round, and whose tracker has been through one exchange at the
start.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Conserved, Mix, Problem


@ALGORITHMS.register("periodical-gt")
@dataclass(frozen=True, kw_only=True)
class PeriodicalGT(Algorithm):
    """Gradient tracking once per round, K local steps of size η along the tracked correction."""

    K: int = 10

    title = "Periodical GT"
    uses_step = True
    exact_with = "any"
    exchanges_models = True
    conserves = Conserved("y", 1)
    assumes = "none"
    citation = """@article{liu2024decentralized,
  title   = {Decentralized gradient tracking with local steps},
  author  = {Liu, Yue and Lin, Tao and Koloskova, Anastasiia and Stich, Sebastian U.},
  journal = {Optimization Methods and Software},
  year    = {2024},
  doi     = {10.1080/10556788.2024.2322095}
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
        x, c = mix(s.x, s.y)
        c.sub_(s.g)
        del s
        g = f.grad(x, f.sample(t, 1))
        y = g + c  # eq. (1)
        f.step(x, y, eta)  # eq. (2), k = 1
        for k in range(2, self.K + 1):
            f.step(x, f.grad(x, f.sample(t, k)) + c, eta)  # eq. (2)
        return self.State(x, y, g)
