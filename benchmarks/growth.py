"""Time and memory of a round as the number of workers and the size of the model grow.

`python -m benchmarks.growth MODEL SIZE` measures one size, in a process of its own, so that its peak memory is its own.
"""

import json
import math
import statistics
import sys
from pathlib import Path

from benchmarks.measure import ResultTable, seconds
from benchmarks.processes import result
from benchmarks.setting import PAPER, Setting, network, rounds
from netfleet.topology.topology import make_topology

WORKERS = (10, 50, 200, 1000, 5000)
WIDTHS = (13, 126, 1258, 12579)  # hidden units for d near 10⁴, 10⁵, 10⁶, 10⁷
DEGREE, SAMPLES = 4, 20_000


def run(setting: Setting) -> ResultTable:
    table = ResultTable(
        "Growth of a NET-FLEET round",
        "model | m | d | graph and λ, s | round, s | round ÷ (m·d), ns | memory, MB | vectors of m·d floats",
    )
    sizes = {"softmax": WORKERS[: setting.pick(5, 4, 1)], "mlp": WIDTHS[: setting.pick(4, 3, 0)]}
    for model, some in sizes.items():
        points = []
        for size in some:
            found = result([sys.executable, "-m", "benchmarks.growth", model, str(size)])
            m, d, time, memory = (found[key] for key in ("m", "d", "round", "memory"))
            counts = f"{1e9 * time / (m * d):.2f}", f"{memory / 1e6:.0f}", f"{memory / (4 * m * d):.1f}"
            table.add(model, m, d, f"{found['lambda']:.2f}", f"{time:.4g}", *counts)
            points.append((math.log(m * d), math.log(time)))
        if len(points) > 1:
            slope = statistics.linear_regression(*zip(*points, strict=True)).slope
            table.notes.append(f"{model}: seconds grow as (m·d)^{slope:.2f}.")
    table.notes += [
        f"softmax: 784 inputs, a random regular graph of degree {DEGREE}, K = 1. mlp: one hidden layer, 10 workers.",
        "Memory is the growth of the peak resident set from before the first vector was made. NET-FLEET's state is 3 "
        "vectors per worker; the simulator also keeps the state before the round, so that an interrupted or diverging "
        "round loses nothing.",
    ]
    return table


def measure(model: str, size: int) -> dict[str, float]:
    """One size: λ of the graph, the median round, the memory beyond that of the data and the libraries."""
    m = size if model == "softmax" else 10
    graph = {"kind": "random-regular", "degree": DEGREE}
    topology = make_topology(graph, workers=m)
    spectrum = seconds(lambda: make_topology(graph, workers=m))
    options = {"hidden": [size]} if model == "mlp" else {}
    f = PAPER.problem(network({"kind": model, **options}), PAPER.images(max(SAMPLES, m), tests=100), m)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak starts from what is resident now
    before = _peak_bytes()
    go = rounds(f, topology, steps=1)
    times = [seconds(go) for _ in range(8)][2:]
    memory = _peak_bytes() - before
    return {"m": m, "d": f.d, "round": statistics.median(times), "memory": memory, "lambda": spectrum}


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
