"""Dense or sparse W? The time of W·x both ways, side by side in alternating runs: python benchmarks/mixing.py

Prints, for graphs of growing density, dense time / sparse time, and which of the two the simulator takes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from netfleet import make_topology
from netfleet.engines import simulator
from netfleet.problems import Quadratics

D, REPEATS = 10_330, 15  # the paper's CNN


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def product(W: torch.Tensor, x: torch.Tensor, host: simulator.Simulator) -> Callable[[], object]:
    return lambda: host._product(W, x)


def main() -> None:
    torch.set_num_threads(1)
    print(f"d = {D}, float32; dense / sparse (median and quartiles): above 1 sparse is faster")
    for m in (50, 200, 1000):
        for degree in (2, 4, 8, 16, 32, 64, 128, 256):
            if degree >= m / 2:
                continue
            topology = make_topology({"kind": "random-regular", "degree": degree} if degree > 2 else "ring", workers=m)
            host = simulator.Simulator(Quadratics(m, d=1), topology)
            W = topology.W()
            dense = torch.from_numpy(W.toarray()).float()
            indices = [torch.from_numpy(part.astype("int64")) for part in (W.indptr, W.indices)]
            values = torch.from_numpy(W.data)
            sparse = torch.sparse_csr_tensor(*indices, values, (m, m), dtype=torch.float32, check_invariants=True)
            x = torch.randn(m, D)
            runs = [product(matrix, x, host) for matrix in (dense, sparse)]
            [run() for run in runs]
            ratios = []
            for _ in range(REPEATS):
                a, b = (seconds(run) for run in runs)
                ratios.append(a / b)
            spread = statistics.quantiles(ratios, n=4)
            taken = simulator.as_matrix(W, torch.float32, torch.device("cpu")).layout
            rule = "dense" if taken is torch.strided else "sparse"
            ratio = f"{spread[1]:5.2f} [{spread[0]:.2f}, {spread[2]:.2f}]"
            print(f"m = {m:4d}, {W.nnz / m:3.0f} per row, density {W.nnz / m / m:6.4f}:  {ratio:20}  rule: {rule}")


if __name__ == "__main__":
    main()
