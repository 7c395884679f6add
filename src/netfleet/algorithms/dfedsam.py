r"""DFedSAM: decentralized federated averaging whose local steps seek flat minima (sharpness-aware minimisation).

| paper | here | |
|---|---|---|
| y_i^{t,k} | `x` | model of a worker during its local steps |
| η, ρ | `eta`, `rho` | step size, radius of the perturbation |
| Q | `gossip` | exchanges per round (multiple gossip steps, DFedSAM-MGS) |

    g̃ = ∇F(y + ρ g / ‖g‖; ξ) with g = ∇F(y; ξ)                                    (1)
    y ← y − η g̃,  K times                                                        (2)
    x^{t+1} = W^Q y^{t,K}                                                        (3)

Two gradients per local step, on the same mini-batch. A round here begins with the exchange. With ρ = 0 and Q = 1 it
is LD-SGD.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Mix, Problem
from netfleet.errors import ConfigError


@ALGORITHMS.register("dfedsam")
@dataclass(frozen=True, kw_only=True)
class DFedSAM(Algorithm):
    """K local sharpness-aware steps of size η and radius ρ, then gossip averaging, `gossip` times."""

    K: int = 10
    rho: float = 0.01
    gossip: int = 1

    title = "DFedSAM"
    uses_step = True
    exchanges_models = True
    assumes = "bounded dissimilarity"
    citation = """@inproceedings{shi2023improving,
  title     = {Improving the Model Consistency of Decentralized Federated Learning},
  author    = {Shi, Yifan and Shen, Li and Wei, Kang and Sun, Yan and Yuan, Bo and Wang, Xueqian and Tao, Dacheng},
  booktitle = {International Conference on Machine Learning (ICML)},
  year      = {2023}
}"""

    class State(NamedTuple):
        x: Tensor  # [..., d]

    def __post_init__(self) -> None:
        super().__post_init__()
        rho, gossip = self.rho, self.gossip
        if not 0 <= rho < math.inf or gossip < 1:
            raise ConfigError(f"DFedSAM needs a finite rho >= 0 and gossip >= 1, got rho = {rho}, gossip = {gossip}")

    def round(self, f: Problem, mix: Mix, t: int, s: State) -> State:
        x = mix(s.x)  # eq. (3)
        for _ in range(1, self.gossip):
            x = mix(x)
        del s
        for k in range(1, self.K + 1):
            sample = f.sample(t, k)
            g = f.grad(x, sample)
            uphill = g / g.norm(dim=-1, keepdim=True).clamp_min(1e-12)
            f.step(x, f.grad(x.add(uphill, alpha=self.rho), sample), self.step_size(t))  # eqs. (1), (2)
        return self.State(x)
