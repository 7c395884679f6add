"""The paths of gradients/ against each other: where the written rule draws its lines."""

import functools

from benchmarks.measure import ResultTable, alternating, milliseconds, ratio
from benchmarks.setting import Setting, network
from netfleet.gradients.native import layers

WORKERS = 8
#: Hidden layers, or channels of two convolutions.
MODELS: dict[str, dict[str, object]] = {
    "softmax": {"kind": "mlp", "hidden": []},
    **{str(width): {"kind": "mlp", "hidden": [width]} for width in (64, 256, 512)},
    "2 × 512": {"kind": "mlp", "hidden": [512, 512]},
    **{str(width): {"kind": "mlp", "hidden": [width]} for width in (2048, 12579)},
    "2 × 2048": {"kind": "mlp", "hidden": [2048, 2048]},
    **{f"cnn {channels}": {"kind": "cnn", "channels": channels} for channels in (4, 16, 32, 64, 128)},
}


def run(setting: Setting) -> ResultTable:
    table = ResultTable(
        f"One step of {WORKERS} workers, batch {setting.batch}, by each path",
        "model | largest matrix | the rule takes | native, ms | looped ÷ native | stacked ÷ native",
    )
    data, kept = setting.images(8000, tests=100), layers.LARGEST_MATRIX
    for name in setting.pick(list(MODELS), list(MODELS), ["64", "cnn 4"]):
        model = network(MODELS[name])
        rule = setting.problem(model, data, WORKERS).path
        # the stacked path has grouped convolutions: several times slower on a CPU
        paths = ("native", "looped") if "cnn" in name else ("native", "looped", "stacked")
        try:
            layers.LARGEST_MATRIX = 1 << 40
            problems = [setting.problem(model, data, WORKERS, gradients=path) for path in paths]
        finally:
            layers.LARGEST_MATRIX = kept
        x, sample = problems[0].start().repeat(WORKERS, 1), problems[0].sample(0, 1)
        times = alternating([functools.partial(f.grad, x, sample) for f in problems], setting.pick(15, 5, 1))
        largest = max(p.numel() for p in model.parameters())
        ratios = [ratio(t, times[0]) for t in times[1:]]
        table.add(name, largest, rule, milliseconds(times[0]), *ratios, *["–"] * (2 - len(ratios)))
    table.notes = [
        f"The rule leaves models with a matrix of more than {kept:,} numbers after the first layer to PyTorch."
    ]
    return table
