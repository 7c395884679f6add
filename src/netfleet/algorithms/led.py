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

Without gradients, (1) to (3) are stable on an eigenvalue λ of W while τ β < 2 (1 + λ) / (1 − λ): the weights must have
none below (τβ − 2) / (τβ + 2), which for β = 1/τ is −1/3. A smaller step size does not help where that fails. With
β = 0 nothing is learned; that is LD-SGD.

On graphs that change from round to round, with late messages and where many are lost, β = 1/τ is unstable too, for
every W; β = 0.1/τ is stable on all of these (`runs/requirements.py` tries it).
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Conserved, Mix, Problem
from netfleet.errors import ConfigError


@ALGORITHMS.register("led")
@dataclass(frozen=True, kw_only=True)
class LED(Algorithm):
    """Local exact diffusion with K local steps of size η; the correction's step β is 1/K unless given."""

    K: int = 10
    beta: float | None = None

    title = "LED"
    uses_step = True
    exact_with = "linear"
    divides_by_eta = True
    sums_differences = True
    conserves = Conserved("c", 0)
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
        if self.beta is not None and not 0 < self.beta <= 1:
            raise ConfigError(
                f"beta, LED's step along the correction, must lie in (0, 1], got {self.beta!r}; leave it out for 1/K, "
                f"or use ld-sgd for no correction"
            )

    @property
    def least_eigenvalue(self) -> float:  # type: ignore[override]
        """Below it the correction overshoots, whatever the step size."""
        return (self.K * self._beta - 2) / (self.K * self._beta + 2)

    @property
    def correction_step(self) -> float:  # type: ignore[override]
        return self._beta

    def remedy(self, least: float) -> str:
        """Where beta was given, it is what to change."""
        if self.beta is None:
            return super().remedy(least)
        return (
            f"lower beta from {self.beta:g} to at most {2 * (1 + least) / (1 - least) / self.K:.3g}, or leave it out "
            f"(1/K) and {super().remedy(least)}"
        )

    @property
    def _beta(self) -> float:
        return 1 / self.K if self.beta is None else self.beta

    def round(self, f: Problem, mix: Mix, t: int, s: State) -> State:
        eta, before = self.step_size(t), self.step_size(max(t - 1, 0))
        x = mix(s.x)  # eq. (2)
        c = (s.x - x).mul_(self._beta / (before * f.gain)).add_(s.c)  # eq. (3)
        del s
        for k in range(1, self.steps(f, t) + 1):
            f.step(x, f.grad(x, f.sample(t, k)) + c, eta)  # eq. (1)
        return self.State(x, c)

    def flow(self, t: int) -> float:
        return -self._beta / self.step_size(max(t - 1, 0))

    def steps(self, f: Problem, t: int) -> int:
        """τ, the local steps of round t."""
        return self.K
