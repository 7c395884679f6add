"""What the metrics of a run cost, in rounds of it."""

from __future__ import annotations

from benchmarks import setting
from benchmarks.measure import Report, Spread, alternating, ratio
from netfleet.runs.config import Evaluation


def run(quick: bool) -> Report:
    """Each metric ÷ one round, at the paper's setting."""
    report = Report(
        "evaluation", "Metrics against one round of the paper's CNN, m = 50", ("metric", "seconds", "÷ a round")
    )
    f = setting.problem("cnn")
    x, default = f.start().repeat(f.m, 1), Evaluation()
    workers, some = default.worker_test_samples, default.gradient_samples
    metrics = {
        "accuracy of x̄ on 10,000 test images": lambda: f.evaluate(x[:1]),
        f"accuracy of the 50 workers' models on {workers} each": lambda: f.evaluate(
            x, workers=f.workers, limit=workers
        ),
        "f and ∇f at x̄ on all 60,000 training images": lambda: f.objective(x[0]),
        f"f and ∇f at x̄ on {some:,} of them (the default)": lambda: f.objective(x[0], some),
    }
    one, *times = alternating([setting.rounds(f, setting.network()), *metrics.values()], 3 if quick else 9)
    for name, taken in zip(metrics, times, strict=True):
        report.add(name, Spread.of(taken), ratio(taken, one))
    report.notes = [
        f"By default they are taken every {default.every} rounds. `evaluation.gradient = false` leaves f and ∇f out."
    ]
    return report
