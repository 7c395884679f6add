r"""LED: local exact diffusion, K corrected local steps between two exchanges of one vector.

| paper | here | |
|---|---|---|
| φ_i | `x` | model of a worker during its local steps |
| β y_i / α | `c` | correction, in the unit of a gradient; Σᵢ cᵢ = 0 |
| α, β | `eta`, `beta` | step sizes of the gradient and of the correction |
| τ | `K` | local steps |

    φ_{k+1} = φ_k − α ∇F(φ_k; ξ) − β y_r,  k = 0, …, τ − 1,  φ_0 = x_r               (1)
    x_{r+1} = W φ_τ                                                             (2)
    y_{r+1} = y_r + φ_τ − x_{r+1}                                               (3)

A round here begins with the exchange, and y starts at 0. Keeping β y / α instead of y gives the same iterates, and
stays right when the step size changes. β = 1/τ is the default: then τ = 1 is D², and on the exact
average LED is SCAFFOLD (option II).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Mix
from netfleet.errors import ConfigError
from netfleet.problems.base import Problem


@ALGORITHMS.register("led")
@dataclass(frozen=True, kw_only=True)
class LED(Algorithm):
    """Local exact diffusion with K local steps of size η; the correction's step β is 1/K unless given."""

    K: int = 10
    beta: float | None = None

    title = "LED"
    divides_by_eta = True
    sums_differences = True
    least_eigenvalue = -1 / 3
    assumes = "none"
    citation = """@article{alghunaim2024local,
  title   = {Local Exact-Diffusion for Decentralized Optimization and Learning},
  author  = {Alghunaim, Sulaiman A.},
  journal = {IEEE Transactions on Automatic Control},
  volume  = {69},
  number  = {11},
  year    = {2024},
  doi     = {10.1109/TAC.2024.3383271}
}"""

    class State(NamedTuple):
        x: Tensor  # [..., d]
        c: Tensor  # [..., d]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta is not None and not 0 <= self.beta <= 1:
            raise ConfigError(f"beta, LED's step along the correction, must lie in [0, 1], got {self.beta!r}")

    def init(self, f: Problem, mix: Mix, x: Tensor) -> State:
        return self.State(x, torch.zeros_like(x))

    def round(self, f: Problem, mix: Mix, t: int, s: State) -> State:
        eta, before = self.step_size(t), self.step_size(max(t - 1, 0))
        x = mix(s.x)  # eq. (2)
        beta = 1 / self.K if self.beta is None else self.beta
        c = (s.x - x).mul_(beta / before).add_(s.c)  # eq. (3)
        for k in range(1, self.steps(f, t) + 1):
            x.sub_(f.grad(x, f.sample(t, k)) + c, alpha=eta)  # eq. (1)
        return self.State(x, c)

    def steps(self, f: Problem, t: int) -> int:
        """τ, the local steps of round t."""
        return self.K
