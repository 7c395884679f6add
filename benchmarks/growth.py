"""Time and memory of a round as the number of workers and the size of the model grow."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys

from benchmarks import setting
from benchmarks.measure import Report, seconds

WORKERS = (10, 50, 200, 1000, 5000)
WIDTHS = (13, 126, 1258, 12579)  # hidden units for d near 10⁴, 10⁵, 10⁶, 10⁷
DEGREE, SAMPLES = 4, 20_000


def run(quick: bool) -> Report:
    """Each size in a process of its own, so that its peak memory is its own."""
    report = Report(
        "growth",
        "Growth of a NET-FLEET round",
        ("model", "m", "d", "graph and λ, s", "round, s", "round ÷ (m·d), ns", "memory, MB", "vectors of m·d floats"),
    )
    jobs = [("softmax", m) for m in WORKERS[: 4 if quick else None]]
    jobs += [("mlp", width) for width in WIDTHS[: 3 if quick else None]]
    for model, size in jobs:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.growth", model, str(size)],
            capture_output=True,
            text=True,
            check=True,
        )
        found = json.loads(done.stdout.splitlines()[-1])
        m, d, time, memory = found["m"], found["d"], found["round"], found["memory"]
        report.add(
            model,
            m,
            d,
            f"{found['lambda']:.2f}",
            f"{time:.4g}",
            f"{1e9 * time / (m * d):.2f}",
            f"{memory / 1e6:.0f}",
            f"{memory / (4 * m * d):.1f}",
        )
    for model in ("softmax", "mlp"):
        points = [
            (math.log(int(m) * int(d)), math.log(float(t))) for name, m, d, _, t, *_ in report.rows if name == model
        ]
        slope = statistics.linear_regression([p[0] for p in points], [p[1] for p in points]).slope
        report.notes.append(f"{model}: seconds grow as (m·d)^{slope:.2f}.")
    report.notes += [
        f"softmax: 784 inputs, a random regular graph of degree {DEGREE}, K = 1. mlp: one hidden layer, 10 workers.",
        "Memory is the growth of the peak resident set from before the first vector was made. NET-FLEET's state is 3 "
        "vectors per worker; the state before the round is kept beside it, so that an interrupted or diverging round "
        "loses nothing.",
    ]
    return report


def measure(model: str, size: int) -> dict[str, float]:
    """One size: λ of the graph, the median round, the memory beyond that of the data and the libraries."""
    from netfleet.problems.models import MODELS
    from netfleet.topology.topology import make_topology

    m = size if model == "softmax" else 10
    degree = {"kind": "random-regular", "degree": DEGREE}
    topology = make_topology(degree, workers=m)
    spectrum = seconds(lambda: make_topology(degree, workers=m))
    data = setting.images(max(SAMPLES, m), tests=100)
    options = {"hidden": [size]} if model == "mlp" else {}
    module = MODELS.build({"kind": model, **options}, inputs=(1, 28, 28), classes=10)
    f = setting.problem(module, data, m)
    before = _peak_bytes(reset=True)
    go = setting.rounds(f, topology, steps=1)
    times = [seconds(go) for _ in range(8)][2:]
    memory = _peak_bytes() - before
    return {"m": m, "d": f.d, "round": statistics.median(times), "memory": memory, "lambda": spectrum}


def _peak_bytes(reset: bool = False) -> int:
    """The peak resident set of this process; with `reset` it is made to start from what is resident now."""
    if reset:
        with open("/proc/self/clear_refs", "w", encoding="utf-8") as file:
            file.write("5")
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
