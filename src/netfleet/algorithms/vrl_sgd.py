r"""VRL-SGD: variance-reduced local SGD, which learns its corrections from how far each worker ends from the average.

| paper | here | |
|---|---|---|
| x_i | `x` | model of a worker |
| −Δ_i | `c` | correction, Σᵢ cᵢ = 0 |
| γ, k | `eta`, `K` | step size, local steps |

    x_i ← x_i − γ (∇F_i(x_i; ξ) − Δ_i),  k times from x̂                            (1)
    x̂ = (1/N) Σᵢ x_i,  Δ_i ← Δ_i + (x̂ − x_i) / (k γ)                              (2)

These are the equations of LED with β = 1/K on the exact average, so that is what is run; on a graph the method is
LED.
"""

from dataclasses import dataclass, field

from netfleet.algorithms.base import ALGORITHMS
from netfleet.algorithms.led import LED


@ALGORITHMS.register("vrl-sgd")
@dataclass(frozen=True, kw_only=True)
class VRLSGD(LED):
    """K corrected local steps of size η between two exact averages."""

    beta: None = field(default=None, init=False)  # 1/K

    server = True
    title = "VRL-SGD"
    citation = """@article{liang2019variance,
  title   = {Variance Reduced Local {SGD} with Lower Communication Complexity},
  author  = {Liang, Xianfeng and Shen, Shuheng and Liu, Jingchang and Pan, Zhen and Chen, Enhong and Cheng, Yifei},
  journal = {arXiv preprint arXiv:1912.12844},
  year    = {2019}
}"""
