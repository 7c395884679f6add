r"""Parallel SGD: a server averages one gradient of every worker, as a large mini-batch would.

| symbol | here | |
|---|---|---|
| x | `x` | the server's model, the same in every row |
| η | `eta` | step size |

    x ← (1/m) Σᵢ (x − η ∇Fᵢ(x; ξᵢ))                                             (1)
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Mix, Problem
from netfleet.topology.server import Participation


@ALGORITHMS.register("parallel-sgd")
@dataclass(frozen=True, kw_only=True)
class ParallelSGD(Algorithm):
    """SGD with the average of a gradient of every worker that takes part, step size η."""

    participation: Participation = 1.0

    server = True
    title = "Parallel SGD"
    uses_step = True
    exact_with = "linear"
    exchanges_models = True
    assumes = "none"
    citation = """@article{dekel2012optimal,
  title   = {Optimal Distributed Online Prediction Using Mini-Batches},
  author  = {Dekel, Ofer and Gilad-Bachrach, Ran and Shamir, Ohad and Xiao, Lin},
  journal = {Journal of Machine Learning Research},
  volume  = {13},
  year    = {2012}
}"""

    class State(NamedTuple):
        x: Tensor  # [..., d]

    def round(self, f: Problem, mix: Mix, t: int, s: State) -> State:
        x = s.x.clone()
        del s
        f.step(x, f.grad(x, f.sample(t, 1)), self.step_size(t))
        return self.State(mix(x))  # eq. (1)
