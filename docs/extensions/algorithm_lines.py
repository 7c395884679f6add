"""The paper's Algorithm 1 beside the statements of our code that are marked with its lines."""

from __future__ import annotations

import inspect
import re

from netfleet.algorithms import net_fleet

#: Algorithm 1 of the paper, without the worker's index ⁽ⁱ⁾ where all vectors are the worker's own.
PAPER = {
    1: r"set $x_{0,0} = x^0$ and $y_{0,0} = g_{0,0} = \nabla f_i(x_{0,0}; \zeta_{0,0})$",
    2: r"for $s = 0, \ldots, S-1$",
    3: r"for each worker $i$",
    4: r"share $(x_{s,0}, y_{s,0})$ with the neighbours",
    5: r"update $x_{s,1}^{(i)} = \sum_{j} [W]_{ij} x_{s,0}^{(j)} - \eta y_{s,0}^{(i)}$",
    6: r"calculate $g_{s,1} = \nabla f_i(x_{s,1}; \zeta_{s,1})$",
    7: r"correct $y_{s,1}^{(i)} = \sum_{j} [W]_{ij} y_{s,0}^{(j)} + g_{s,1}^{(i)} - g_{s,0}^{(i)}$",
    8: r"for $k = 1, \ldots, K-1$",
    9: r"update $x_{s,k+1} = x_{s,k} - \eta y_{s,k}$",
    10: r"calculate $g_{s,k+1} = \nabla f_i(x_{s,k+1}; \zeta_{s,k+1})$",
    11: r"correct $y_{s,k+1} = y_{s,k} + g_{s,k+1} - g_{s,k}$",
    12: "end for",
    13: r"set $x_{s+1,0} = x_{s,K}$, $y_{s+1,0} = y_{s,K}$, $g_{s+1,0} = g_{s,K}$",
}
ENGINE = {2: "the engine's loop over rounds", 3: "the engine's hosts; `x`, `y`, `g` have a row for each worker", 12: ""}
MARKED = re.compile(r"^\s*(.*?)\s+# line (\d+)$", re.MULTILINE)


def algorithm_lines() -> str:
    """A table: line, paper, code. A mark in the code that the paper does not have is an error."""
    code = {int(line): f"`{statement}`" for statement, line in MARKED.findall(inspect.getsource(net_fleet))}
    if strange := code.keys() - PAPER.keys():
        raise ValueError(f"net_fleet.py marks the lines {sorted(strange)}; Algorithm 1 has {sorted(PAPER)}")
    rows = [f"| {line} | {paper} | {code.get(line) or ENGINE[line]} |" for line, paper in PAPER.items()]
    return "\n".join(["| line | the paper | `net_fleet.py` |", "|---|---|---|", *rows])
