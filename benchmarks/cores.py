"""How far threads carry: what part of a step holds the interpreter lock, and what processes cost instead."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.measure import ResultTable, Spread, Timed, alternating, milliseconds, ratio
from benchmarks.setting import Setting
from netfleet.compute.threads import available_threads
from netfleet.gradients.processes import MOST_THREADS
from netfleet.problems import ModuleProblem


def run(setting: Setting) -> ResultTable:
    """One step of the paper's CNN for all workers."""
    table = ResultTable(
        f"One step of the paper's CNN, m = {setting.m}, batch {setting.batch}, on one core and on all",
        "path | one thread, ms | one thread ÷ all | ÷ all, with processes | lock held, at most | so threads scale to",
    )
    repeats, data, cores = setting.pick(11, 3, 1), setting.images(), available_threads()
    for path in ("native", "looped"):
        runs = [_step(setting.problem("cnn", data, gradients=path, threads=n)) for n in (1, cores)]
        if path == "looped" and setting.pick(True, True, False):
            runs.append(_step(setting.problem("cnn", data, gradients="processes", threads=cores)))
        times = alternating(runs, repeats)
        held = _overhead(setting, path, repeats) / Spread.of(times[0]).middle
        spread = ratio(times[0], times[2]) if len(times) > 2 else "not needed"
        table.add(path, milliseconds(times[0]), ratio(*times[:2]), spread, f"{held:.1%}", f"{1 / held:.0f} cores")
    table.notes = [
        f"There are {cores} cores here. The lock's share is bounded from above by the time of the same step with "
        "next to no arithmetic in it (4 × 4 pixels, one channel, batch 1): Python, dispatch, autograd's bookkeeping.",
        f"With more than {MOST_THREADS} threads the looped path uses processes by itself.",
    ]
    return table


def _step(f: ModuleProblem) -> Timed:
    x, sample = f.start().repeat(f.m, 1), f.sample(0, 1)
    return lambda: f.grad(x, sample)


def _overhead(setting: Setting, path: str, repeats: int) -> float:
    """Seconds of a step whose arithmetic is negligible."""
    tiny = nn.Sequential(
        nn.Conv2d(1, 1, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(1, 1, 3, padding=1), nn.MaxPool2d(2),
        nn.ReLU(), nn.Flatten(), nn.Linear(1, 10),
    )  # fmt: skip
    f = setting.problem(tiny, setting.images(1000, (1, 4, 4), 10), batch=1, gradients=path, threads=1)
    x: Tensor = torch.zeros(f.m, f.d)
    sample = f.sample(0, 1)
    return Spread.of(alternating([lambda: f.grad(x, sample)], repeats)[0]).middle
