r"""ProxSkip and its federated form Scaffnew: a coin decides after every local step whether to communicate.

| paper | here | |
|---|---|---|
| x_i, −h_i | `x`, `c` | model and correction of a worker, Σᵢ cᵢ = 0 |
| γ, p | `eta`, 1/`K` | step size, probability of an exchange |

    x̂_{t+1} = x_t − γ (∇F(x_t; ξ) − h_t)                                          (1)
    with probability p:  x_{t+1} = mean of x̂_{t+1},  else x_{t+1} = x̂_{t+1}        (2)
    h_{t+1} = h_t + (p/γ) (x_{t+1} − x̂_{t+1})                                     (3)

A round here lasts from one exchange to the next, a geometric number of steps with mean K, the same for all workers;
with a fixed number these are the equations of LED with β = 1/K. Scaffnew's mean is exact; on a graph W takes its
place.

Without gradients, the second moment of a round with a random number of steps is stable on an eigenvalue λ of W while
λ > −1/(2K + 1): the mean of (steps/K)² is 2 − 1/K, and the largest eigenvalue of E[M ⊗ M] reaches 1 there, where M is
the matrix of one round. For K = 1 that is LED's −1/3; below it noise adds up, whatever the step size.
"""

from dataclasses import dataclass, field

from netfleet import randomness
from netfleet.algorithms.base import ALGORITHMS, Problem
from netfleet.algorithms.led import LED


@ALGORITHMS.register("proxskip")
@dataclass(frozen=True, kw_only=True)
class ProxSkip(LED):
    """Corrected local steps of size η, K of them on average between two exchanges with the neighbours."""

    beta: None = field(default=None, init=False)  # 1/K

    title = "ProxSkip"
    citation = r"""@inproceedings{mishchenko2022proxskip,
  title     = {{ProxSkip}: Yes! Local Gradient Steps Provably Lead to Communication Acceleration! Finally!},
  author    = {Mishchenko, Konstantin and Malinovsky, Grigory and Stich, Sebastian and Richt{\'a}rik, Peter},
  booktitle = {International Conference on Machine Learning (ICML)},
  year      = {2022}
}"""

    @property
    def least_eigenvalue(self) -> float:  # type: ignore[override]
        """Below it the second moment grows, because the number of steps is random."""
        return -1 / (2 * self.K + 1)

    @property
    def correction_step(self) -> float:  # type: ignore[override]
        """Where the second moment grows, found as `least_eigenvalue` is: 2K / (K + 1) times that of LED."""
        return 2 / (self.K + 1)

    def steps(self, f: Problem, t: int) -> int:
        """How often the coin is thrown in round t until it says to communicate."""
        return int(randomness.generator("proxskip", f.seed, t).geometric(1 / self.K))


@ALGORITHMS.register("scaffnew")
@dataclass(frozen=True, kw_only=True)
class Scaffnew(ProxSkip):
    """Corrected local steps of size η, K of them on average between two exact averages."""

    server = True
    title = "Scaffnew"
