"""Dense or sparse W? The time of W·x both ways, and which of the two the simulator takes."""

import functools

import torch

from benchmarks.measure import ResultTable, alternating, ratio
from benchmarks.setting import Setting
from netfleet.compute.products import Product, as_sparse
from netfleet.compute.threads import available_threads, one_intra_op_thread
from netfleet.engines.simulator import as_matrix
from netfleet.topology.topology import make_topology

D = 10_330  # the paper's CNN


def run(setting: Setting) -> ResultTable:
    table = ResultTable(
        f"Dense and sparse W, d = {D}, float32", "m | non-zeros per row | dense ÷ sparse | the rule takes"
    )
    multiply = Product(available_threads())
    workers, degrees = setting.pick((50, 200, 1000), (50, 200), (50,)), (2, 4, 8, 16, 32, 64, 128, 256)
    for m, degree in [(m, degree) for m in workers for degree in degrees if degree < m / 2]:
        graph = {"kind": "random-regular", "degree": degree} if degree > 2 else "ring"
        W, x = make_topology(graph, workers=m).W(), torch.randn(m, D)
        both = (torch.from_numpy(W.toarray()).float(), as_sparse(W, torch.float32))
        with one_intra_op_thread():
            times = alternating([functools.partial(multiply, A, x, m) for A in both], setting.pick(15, 5, 1))
        taken = as_matrix(W, torch.float32, torch.device("cpu")).layout
        table.add(m, f"{W.nnz / m:.0f}", ratio(*times), "dense" if taken is torch.strided else "sparse")
    return table
