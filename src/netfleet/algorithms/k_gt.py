r"""K-GT: gradient tracking with K local steps, corrected by the mean of all of a round's gradients.

| paper | here | |
|---|---|---|
| x_i⁽ᵗ⁾⁺ᵏ | `x` | model of a worker |
| c_i⁽ᵗ⁾ | `c` | correction, Σᵢ cᵢ = 0 |
| z_i⁽ᵗ⁾ | `z` | mean corrected gradient of the round |
| η_c, η_s | `eta`, `eta_s` | step sizes of a local step and of the exchange |

    x⁽ᵗ⁾⁺ᵏ⁺¹ = x⁽ᵗ⁾⁺ᵏ − η_c (∇F(x⁽ᵗ⁾⁺ᵏ; ξ) + c⁽ᵗ⁾),  k = 0, …, K − 1               (1)
    z⁽ᵗ⁾ = (1/K) Σₖ (∇F(x⁽ᵗ⁾⁺ᵏ; ξ) + c⁽ᵗ⁾),  c⁽ᵗ⁺¹⁾ = c⁽ᵗ⁾ − z⁽ᵗ⁾ + W z⁽ᵗ⁾               (2)
    x⁽ᵗ⁺¹⁾ = W (x⁽ᵗ⁾ + η_s (x⁽ᵗ⁾⁺ᴷ − x⁽ᵗ⁾))                                       (3)

NET-FLEET's correction within a round is W y₀ − g₀, which rests on the last mini-batch; this one rests on the mean of
K. The paper has z = (x⁽ᵗ⁾ − x⁽ᵗ⁾⁺ᴷ) / (K η_c), which is the same for (1); as the mean of what the steps went along, it
stays right when a local optimizer makes other steps of it. A round here begins with the exchange. On the exact average
this is SCAFFOLD (option II) with η_s as its server step.

Deviation: the paper begins with cᵢ = (1/n) Σⱼ ∇Fⱼ(x⁰; ξ) − ∇Fᵢ(x⁰; ξ), which takes an exact average over all workers
before the first round; here the corrections begin at 0. Both sum to 0, so the fixed points are the same; the first
rounds differ.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Conserved, ExchangeStep, Mix, Problem


@ALGORITHMS.register("k-gt")
@dataclass(frozen=True, kw_only=True)
class KGT(Algorithm):
    """Gradient tracking with K local steps of size η and an exchange of step size η_s."""

    K: int = 10
    eta_s: ExchangeStep = 1.0

    title = "K-GT"
    uses_step = True
    exact_with = "any"
    exchanges_models = True
    conserves = Conserved("c", 1)
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
        c: Tensor  # [..., d]
        z: Tensor  # [..., d]

    def round(self, f: Problem, mix: Mix, t: int, s: State) -> State:
        eta = self.step_size(t)
        x, c = mix(s.x, s.z)  # eq. (3), W
        c.add_(s.c).sub_(s.z)  # eq. (2)
        del s
        start = None if self.eta_s == 1 else x.clone()
        z = torch.zeros_like(x)
        for k in range(1, self.K + 1):
            direction = f.grad(x, f.sample(t, k)) + c
            f.step(x, direction, eta)  # eq. (1)
            z.add_(direction, alpha=1 / self.K)  # eq. (2)
            del direction  # its memory is the next gradient's
        if start is not None:
            x.sub_(start).mul_(self.eta_s).add_(start)  # eq. (3)
        return self.State(x, c, z)
