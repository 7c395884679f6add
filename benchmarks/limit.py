"""One round against the bare gradient work in it, and that against the machine."""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import setting
from benchmarks.measure import Report, alternating, ratio, seconds
from netfleet.compute.threads import available_threads
from netfleet.data import Dataset
from netfleet.gradients.native.layers import recognise
from netfleet.problems import ModuleProblem


def run(quick: bool) -> Report:
    """Round ÷ gradients, gradients ÷ PyTorch's, and FLOP/s."""
    report = Report(
        "limit",
        "One NET-FLEET round against the bare gradient work, m = 50, K = 10, batch 32",
        (
            "model",
            "path",
            "round, ms",
            "gradients only, ms",
            "round ÷ gradients",
            "PyTorch's gradients ÷ ours",
            "GFLOP/s",
            "of peak",
        ),
    )
    repeats, peak = (5 if quick else 21), _peak()
    data = setting.images()
    for model in ("cnn", "mlp", "softmax"):
        f, plain = setting.problem(model, data), setting.problem(model, data, gradients="looped")
        x = f.start().repeat(f.m, 1)
        samples = [f.sample(0, k) for k in range(setting.K)]

        def bare(g: ModuleProblem = f, x: torch.Tensor = x, samples: list = samples) -> None:  # type: ignore[type-arg]
            for sample in samples:
                g._path.gradients(x, sample, None)

        go = setting.rounds(f, setting.network())
        whole, work, theirs = alternating([go, bare, lambda g=plain, bare=bare: bare(g)], repeats)  # type: ignore[misc]
        speed = _flops(f) * setting.K * f.m / sorted(work)[len(work) // 2]
        report.add(
            model,
            f.path,
            f"{1e3 * sorted(whole)[len(whole) // 2]:.1f}",
            f"{1e3 * sorted(work)[len(work) // 2]:.1f}",
            ratio(whole, work),
            ratio(theirs, work),
            f"{speed / 1e9:.0f}",
            f"{speed / peak:.0%}",
        )
    report.notes = [
        f"Peak: a product of 2048 × 2048 float32 matrices, {available_threads()} threads: {peak / 1e9:.0f} GFLOP/s.",
        "FLOPs are those of the dense gradient (twice the multiplications of forward, weight and input gradients). The "
        "native path does fewer: behind max-pooling and ReLU it visits only the pixels that have a gradient.",
        "PyTorch's gradients are the looped path on the same threads: channels last, pooling before ReLU.",
        f"Where PyTorch's time for the CNN goes (one thread): {_profile(data)}.",
        f"Of the native gradient of the CNN the forward pass takes {_forward(data, repeats):.0%}: the dense part, "
        "which no zeros shorten.",
    ]
    return report


def _peak() -> float:
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    before = torch.get_num_threads()
    torch.set_num_threads(available_threads())
    fastest = min(seconds(lambda: a @ b) for _ in range(8))
    torch.set_num_threads(before)
    return 2 * 2048**3 / fastest


def _flops(f: ModuleProblem) -> float:
    """Of one worker's gradient, by the book: every layer thrice, the first twice (nobody asks for the data's)."""
    layers = recognise(f.model, tuple(f.data.train_x.shape[1:])) or []
    total = 0.0
    for n, layer in enumerate(layers):
        area = layer.kernel_h * layer.kernel_w * layer.rows * layer.columns
        total += 2.0 * f.batch * layer.cin * layer.cout * (area or 1) * (3 if n else 2)
    return total


def _forward(data: Dataset, repeats: int) -> float:
    """The forward pass's share of a step of the CNN."""
    f = setting.problem("cnn", data)
    x, sample, chunk = f.start().repeat(f.m, 1), f.sample(0, 1), torch.arange(f.batch)
    forward, both = alternating([lambda: f._path.scores(x, [chunk], None), lambda: f.grad(x, sample)], repeats)
    return ratio(forward, both).middle


def _profile(data: Dataset) -> str:
    """The operators that take most of a step."""
    f = setting.problem("cnn", data, gradients="looped", threads=1)
    x, sample = f.start().repeat(f.m, 1), f.sample(0, 1)
    f.grad(x, sample)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        f.grad(x, sample)
    events = sorted(profiled.key_averages(), key=lambda e: -e.self_cpu_time_total)
    total = sum(e.self_cpu_time_total for e in events)
    return ", ".join(f"{e.key.removeprefix('aten::')} {e.self_cpu_time_total / total:.0%}" for e in events[:6])
