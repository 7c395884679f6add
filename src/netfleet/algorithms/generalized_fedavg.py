r"""Generalized FedAvg: two-sided step sizes, one for the workers and one for the server.

| paper | here | |
|---|---|---|
| x_t | `x` | the server's model, the same in every row |
| η_L, η | `eta`, `eta_g` | step sizes of the workers and of the server |
| S_t | `participation` | share of the workers that a round is done with |

    x_{t,k+1}ⁱ = x_{t,k}ⁱ − η_L ∇Fᵢ(x_{t,k}ⁱ; ξ),  k = 0, …, K − 1,  x_{t,0}ⁱ = x_t          (1)
    Δ_tⁱ = x_{t,K}ⁱ − x_t,  x_{t+1} = x_t + η (1/|S_t|) Σ_{i ∈ S_t} Δ_tⁱ                    (2)

With η = 1 this is FedAvg.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from netfleet.algorithms.base import ALGORITHMS, Algorithm, ExchangeStep, Mix, Problem
from netfleet.topology.server import Participation


@ALGORITHMS.register("generalized-fedavg", "g-fedavg")
@dataclass(frozen=True, kw_only=True)
class GeneralizedFedAvg(Algorithm):
    """FedAvg with K local steps of size η and a server step of size η_g."""

    K: int = 10
    eta_g: ExchangeStep = 1.0
    participation: Participation = 1.0

    server = True
    title = "Generalized FedAvg"
    uses_step = True
    assumes = "bounded dissimilarity"
    citation = """@inproceedings{yang2021achieving,
  title     = {Achieving Linear Speedup with Partial Worker Participation in Non-{IID} Federated Learning},
  author    = {Yang, Haibo and Fang, Minghong and Liu, Jia},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year      = {2021}
}"""

    class State(NamedTuple):
        x: Tensor  # [..., d]

    def round(self, f: Problem, mix: Mix, t: int, s: State) -> State:
        x = s.x.clone()
        for k in range(1, self.K + 1):
            f.step(x, f.grad(x, f.sample(t, k)), self.step_size(t))  # eq. (1)
        return self.State(mix(x.sub_(s.x)).mul_(self.eta_g).add_(s.x))  # eq. (2)
