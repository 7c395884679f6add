"""Side by side: every figure is a ratio of two things that were timed in turn, with its spread."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Timed = Callable[[], object]


@dataclass(frozen=True)
class Spread:
    """The median of some values and their quartiles."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high)

    def __str__(self) -> str:
        return f"{self.middle:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass
class Report:
    """One table of results."""

    name: str
    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        self.rows.append([str(cell) for cell in cells])
        print("  " + " · ".join(self.rows[-1]), flush=True)

    def markdown(self) -> str:
        lines = [f"| {' | '.join(self.columns)} |", f"|{'---|' * len(self.columns)}"]
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        return (
            f"# {self.title}\n\n{machine()}\n\n" + "\n".join(lines + [""] + [f"- {note}" for note in self.notes]) + "\n"
        )


def seconds(run: Timed) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def alternating(runs: Sequence[Timed], repeats: int) -> list[list[float]]:
    """Seconds of each run, taken in turn; a first turn warms up and does not count."""
    turns = [[seconds(run) for run in runs] for _ in range(repeats + 1)][1:]
    return [list(times) for times in zip(*turns, strict=True)]


def ratio(above: Sequence[float], below: Sequence[float]) -> Spread:
    """The spread of the quotients, turn by turn."""
    return Spread.of([a / b for a, b in zip(above, below, strict=True)])


def machine() -> str:
    """The machine and the versions, in one line."""
    import torch

    from netfleet.compute.threads import available_threads

    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    kind = torch.backends.cpu.get_cpu_capability()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30 if hasattr(os, "sysconf") else 0
    return (
        f"{model} ({kind}), {available_threads()} cores, {memory:.0f} GiB; Python {platform.python_version()}, "
        f"torch {torch.__version__}. Ratios are medians of alternating runs with their quartiles."
    )
