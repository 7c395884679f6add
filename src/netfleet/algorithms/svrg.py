r"""SVRG, distributed: gradients at a snapshot whose exact gradient is known take the noise out of the others.

| paper | here | |
|---|---|---|
| w | `x` | the server's model, the same in every row |
| w̃, μ̃ | `z`, `u` | snapshot, and the exact gradient of f there |
| η, m | `eta`, `period` | step size, rounds from one snapshot to the next |

    every `period` rounds: w̃ = w, μ̃ = (1/m) Σᵢ ∇fᵢ(w̃)                             (1)
    wᵢ ← wᵢ − η (∇Fᵢ(wᵢ; ξ) − ∇Fᵢ(w̃; ξ) + μ̃),  K times from w                     (2)
    w ← (1/m) Σᵢ wᵢ                                                             (3)

With K = 1 this is SVRG with a mini-batch of all workers' samples. Two gradients per step, and one pass over the data
per snapshot.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Mix, Period, Problem


@ALGORITHMS.register("svrg")
@dataclass(frozen=True, kw_only=True)
class SVRG(Algorithm):
    """Variance-reduced steps of size η, K per round; a snapshot every `period` rounds."""

    K: int = 1
    period: Period = 20

    server = True
    title = "SVRG"
    uses_step = True
    exact_with = "any"
    assumes = "none"
    citation = """@inproceedings{johnson2013accelerating,
  title     = {Accelerating Stochastic Gradient Descent using Predictive Variance Reduction},
  author    = {Johnson, Rie and Zhang, Tong},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year      = {2013}
}"""

    class State(NamedTuple):
        x: Tensor  # [..., d]
        z: Tensor  # [..., d]
        u: Tensor  # [..., d]

    def init(self, f: Problem, mix: Mix, x: Tensor) -> State:
        return self.State(x, x, x)

    def round(self, f: Problem, mix: Mix, t: int, s: State) -> State:
        z, u = (s.x, mix(f.full_grad(s.x))) if t % self.period == 0 else (s.z, s.u)  # eq. (1)
        x = s.x.clone()
        del s
        for k in range(1, self.K + 1):
            sample = f.sample(t, k)
            f.step(x, f.grad(x, sample) - f.grad(z, sample) + u, self.step_size(t))  # eq. (2)
        return self.State(mix(x), z, u)  # eq. (3)
