r"""QG-DSGDm: quasi-global momentum, taken from the movement of the models rather than from the local gradients.

| paper | here | |
|---|---|---|
| x_i, m̂_i | `x`, `m` | model and quasi-global momentum of a worker |
| η, β, μ | `eta`, `beta`, `mu` | step size, momentum, its averaging |

    m = β m̂ + ∇F(x; ξ)                                                          (1)
    x⁺ = W (x − η m)                                                            (2)
    m̂⁺ = μ m̂ + (1 − μ) (x − x⁺) / η                                             (3)

A round ends with the exchange here, because (3) needs both sides of it. So a History measures these models after
mixing, those of all other methods before: the consensus error and the workers' own accuracy look better for it.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Mix, Momentum, Problem


@ALGORITHMS.register("qg-dsgdm")
@dataclass(frozen=True, kw_only=True)
class QGDSGDm(Algorithm):
    """Decentralized SGD with quasi-global momentum β, averaged with factor μ."""

    beta: Momentum = 0.9
    mu: Momentum = 0.9

    title = "QG-DSGDm"
    divides_by_eta = True
    assumes = "bounded dissimilarity"
    citation = """@inproceedings{lin2021quasi,
  title     = {Quasi-global Momentum: Accelerating Decentralized Deep Learning on Heterogeneous Data},
  author    = {Lin, Tao and Karimireddy, Sai Praneeth and Stich, Sebastian U. and Jaggi, Martin},
  booktitle = {International Conference on Machine Learning (ICML)},
  year      = {2021}
}"""

    class State(NamedTuple):
        x: Tensor  # [..., d]
        m: Tensor  # [..., d]

    def round(self, f: Problem, mix: Mix, t: int, s: State) -> State:
        eta = self.step_size(t)
        m = (self.beta * s.m).add_(f.grad(s.x, f.sample(t, 1)))  # eq. (1)
        x = mix(s.x.sub(m, alpha=eta))  # eq. (2)
        return self.State(x, (s.x - x).mul_((1 - self.mu) / eta).add_(s.m, alpha=self.mu))  # eq. (3)
