r"""FedAvg, also known as local SGD: K local steps from the server's model, then the average of the results.

| paper | here | |
|---|---|---|
| w_t | `x` | the server's model, the same in every row |
| η | `eta` | step size |
| E n_k / B | `K` | local steps per round |
| C | `participation` | share of the workers that a round is done with |

    w⁽ᵏ⁾ ← w⁽ᵏ⁾ − η ∇F_k(w⁽ᵏ⁾; ξ),  K times from w_t, for k ∈ 𝒮_t                   (1)
    w_{t+1} = (1/|𝒮_t|) Σ_{k ∈ 𝒮_t} w⁽ᵏ⁾                                         (2)

All workers have the same weight here, as in every other method, where FedAvg weighs them by their samples.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Mix, Problem
from netfleet.topology.server import Participation


@ALGORITHMS.register("fedavg", "local-sgd")
@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """Federated averaging: K local steps of size η by a share of the workers."""

    K: int = 10
    participation: Participation = 1.0

    server = True
    title = "FedAvg"
    uses_step = True
    exchanges_models = True
    assumes = "bounded dissimilarity"
    citation = r"""@inproceedings{mcmahan2017communication,
  title     = {Communication-Efficient Learning of Deep Networks from Decentralized Data},
  author    = {McMahan, Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and
               Ag{\"u}era y Arcas, Blaise},
  booktitle = {International Conference on Artificial Intelligence and Statistics (AISTATS)},
  year      = {2017}
}
@inproceedings{stich2019local,
  title     = {Local {SGD} Converges Fast and Communicates Little},
  author    = {Stich, Sebastian U.},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year      = {2019}
}"""

    class State(NamedTuple):
        x: Tensor  # [..., d]

    def round(self, f: Problem, mix: Mix, t: int, s: State) -> State:
        x = s.x.clone()
        del s
        for k in range(1, self.K + 1):
            f.step(x, f.grad(x, f.sample(t, k)), self.step_size(t))  # eq. (1)
        return self.State(mix(x))  # eq. (2)
