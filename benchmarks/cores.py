"""How far threads carry: what part of a step holds the interpreter lock, and what processes cost instead."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks import setting
from benchmarks.measure import Report, Spread, Timed, alternating, ratio
from netfleet.compute.threads import available_threads
from netfleet.gradients.paths import Sample
from netfleet.gradients.processes import MOST_THREADS
from netfleet.problems import ModuleProblem


def run(quick: bool) -> Report:
    """One step of the paper's CNN for 50 workers."""
    report = Report(
        "cores",
        "One step of the paper's CNN, m = 50, batch 32, on one core and on all",
        (
            "path",
            "one thread, ms",
            "one thread ÷ all",
            "÷ all, with processes",
            "lock held, at most",
            "so threads scale to",
        ),
    )
    repeats, data, all_cores = (3 if quick else 11), setting.images(), available_threads()
    for path in ("native", "looped"):
        one, many = (setting.problem("cnn", data, gradients=path, threads=n) for n in (1, all_cores))
        runs, x = [one, many], one.start().repeat(one.m, 1)
        if path == "looped":
            runs.append(setting.problem("cnn", data, gradients="processes", threads=all_cores))
        sample = one.sample(0, 1)
        times = alternating([_step(f, x, sample) for f in runs], repeats)
        held = _overhead(path, repeats) / Spread.of(times[0]).middle
        spread = ratio(times[0], times[2]) if len(times) > 2 else "not needed"
        milliseconds = Spread.of([1e3 * t for t in times[0]])
        report.add(path, milliseconds, ratio(*times[:2]), spread, f"{held:.1%}", f"{1 / held:.0f} cores")
    report.notes = [
        f"There are {all_cores} cores here. The lock's share is bounded from above by the time of the same step with "
        "next to no arithmetic in it (4 × 4 pixels, one channel, batch 1): Python, dispatch, autograd's bookkeeping.",
        f"With more than {MOST_THREADS} threads the looped path goes to processes by itself (problems/processes.py).",
    ]
    return report


def _step(f: ModuleProblem, x: Tensor, sample: Sample) -> Timed:
    return lambda: f.grad(x, sample)


def _overhead(path: str, repeats: int) -> float:
    """Seconds of a step whose arithmetic is negligible."""
    tiny = nn.Sequential(
        nn.Conv2d(1, 1, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(1, 1, 3, padding=1), nn.MaxPool2d(2),
        nn.ReLU(), nn.Flatten(), nn.Linear(1, 10),
    )  # fmt: skip
    f = setting.problem(tiny, setting.images(1000, (1, 4, 4), 10), batch=1, gradients=path, threads=1)
    x: Tensor = torch.zeros(f.m, f.d)
    return Spread.of(alternating([_step(f, x, f.sample(0, 1))], repeats)[0]).middle
