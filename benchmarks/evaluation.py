"""What the metrics of a run cost, in rounds of it."""

from __future__ import annotations

from benchmarks.measure import ResultTable, Spread, alternating, ratio
from benchmarks.setting import Setting, rounds
from netfleet.runs.config import Evaluation


def run(setting: Setting) -> ResultTable:
    """Each metric ÷ one round."""
    table = ResultTable(
        f"Metrics against one round of the paper's CNN, m = {setting.m}", "metric | seconds | ÷ a round"
    )
    f, default = setting.problem("cnn"), Evaluation()
    x, workers, some = f.start().repeat(f.m, 1), default.worker_test_samples, default.gradient_samples
    metrics = {
        f"accuracy of x̄ on {len(f.data.test_y):,} test images": lambda: f.evaluate(x[:1]),
        f"accuracy of the {f.m} workers' models on {workers} each": lambda: f.evaluate(
            x, workers=f.workers, limit=workers
        ),
        f"f and ∇f at x̄ on all {len(f.data.train_y):,} training images": lambda: f.objective(x[0]),
        f"f and ∇f at x̄ on {some:,} of them (the default)": lambda: f.objective(x[0], some),
    }
    runs = [rounds(f, setting.topology(), setting.K), *metrics.values()]
    one, *times = alternating(runs, setting.pick(9, 3, 1))
    for name, taken in zip(metrics, times, strict=True):
        table.add(name, Spread.of(taken), ratio(taken, one))
    table.notes = [
        f"By default a run takes them every {default.every} rounds. `evaluation.gradient = false` leaves f and ∇f out."
    ]
    return table
