"""Dense or sparse W? The time of W·x both ways, and which of the two the simulator takes."""

from __future__ import annotations

import torch

from benchmarks.measure import Report, alternating, ratio
from netfleet.compute.products import as_sparse
from netfleet.compute.threads import one_intra_op_thread
from netfleet.engines import simulator
from netfleet.problems import Quadratics
from netfleet.topology.topology import make_topology

D = 10_330  # the paper's CNN


def run(quick: bool) -> Report:
    """Graphs of growing density."""
    report = Report(
        "mixing",
        f"Dense and sparse W, d = {D}, float32",
        ("m", "non-zeros per row", "dense ÷ sparse", "the rule takes"),
    )
    for m in (50, 200) if quick else (50, 200, 1000):
        for degree in (2, 4, 8, 16, 32, 64, 128, 256):
            if degree >= m / 2:
                continue
            topology = make_topology({"kind": "random-regular", "degree": degree} if degree > 2 else "ring", workers=m)
            host = simulator.Simulator(Quadratics(m, d=1), topology)
            W = topology.W()
            dense, sparse = torch.from_numpy(W.toarray()).float(), as_sparse(W, torch.float32)
            x = torch.randn(m, D)
            runs = [lambda A=A, x=x, host=host: host._product(A, x) for A in (dense, sparse)]
            with one_intra_op_thread():
                times = alternating(runs, 5 if quick else 15)
            taken = simulator.as_matrix(W, torch.float32, torch.device("cpu")).layout
            report.add(m, f"{W.nnz / m:.0f}", ratio(*times), "dense" if taken is torch.strided else "sparse")
    return report
