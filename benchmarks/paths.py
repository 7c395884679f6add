"""The paths of gradients/choice.py against each other: where the written rule draws its lines."""

from __future__ import annotations

from torch import nn

from benchmarks import setting
from benchmarks.measure import Report, Spread, alternating, ratio
from netfleet.gradients.native import layers
from netfleet.problems.models import MODELS


def convolutions(channels: int) -> nn.Module:
    """Two convolutions of that many channels."""
    return MODELS.build({"kind": "cnn", "channels": channels}, inputs=(1, 28, 28), classes=10)


def hidden(*widths: int) -> nn.Module:
    """Fully connected."""
    return MODELS.build({"kind": "mlp", "hidden": list(widths)}, inputs=(1, 28, 28), classes=10)


def run(quick: bool) -> Report:
    """One step of 8 workers, each path in turn."""
    report = Report(
        "paths",
        "One step of 8 workers, batch 32, by each path",
        ("model", "largest matrix", "the rule takes", "native, ms", "looped ÷ native", "stacked ÷ native"),
    )
    models = {
        "softmax": hidden(),
        "64": hidden(64),
        "256": hidden(256),
        "512": hidden(512),
        "2 × 512": hidden(512, 512),
    }
    models |= {"2048": hidden(2048), "12579": hidden(12579), "2 × 2048": hidden(2048, 2048)} | {
        f"cnn {c}": convolutions(c) for c in (4, 16, 32, 64, 128)
    }
    data = setting.images(8000, tests=100)
    kept = layers.LARGEST_MATRIX
    for name, model in models.items():
        rule = setting.problem(model, data, 8).path
        try:
            layers.LARGEST_MATRIX = 1 << 40
            fs = [setting.problem(model, data, 8, gradients=path) for path in ("native", "looped", "stacked")]
        finally:
            layers.LARGEST_MATRIX = kept
        if "cnn" in name:
            fs.pop()  # grouped convolutions: several times slower on a CPU
        x, sample = fs[0].start().repeat(8, 1), fs[0].sample(0, 1)
        times = alternating([lambda f=f, x=x, s=sample: f.grad(x, s) for f in fs], 5 if quick else 15)  # type: ignore[misc]
        largest = max(p.numel() for p in model.parameters())
        ratios = [ratio(t, times[0]) for t in times[1:]]
        report.add(name, largest, rule, Spread.of([1e3 * t for t in times[0]]), *ratios, *["–"] * (2 - len(ratios)))
    report.notes = [
        f"The rule leaves models with a matrix of more than {kept:,} numbers after the first layer to PyTorch."
    ]
    return report
