"""Timing side by side: every number is a ratio of two things that were timed in turn, with its spread."""

import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

import torch

from netfleet.compute.threads import available_threads

Timed = Callable[[], object]


class Spread(NamedTuple):
    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Self:
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        return cls(middle, low, high)

    def __str__(self) -> str:
        return f"{self.middle:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass
class ResultTable:
    """One table of results; the columns are separated by " | "."""

    title: str
    columns: str
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        self.rows.append([str(cell) for cell in cells])
        print("  " + " · ".join(self.rows[-1]), flush=True)

    def markdown(self) -> str:
        """The table, with the machine above it and the notes below."""
        lines = [f"| {self.columns} |", f"|{'---|' * len(self.columns.split(' | '))}"]
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        return "\n".join([f"# {self.title}", "", machine(), "", *lines, "", *(f"- {note}" for note in self.notes), ""])


def seconds(run: Timed) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def alternating(runs: Sequence[Timed], repeats: int) -> list[list[float]]:
    """Seconds of each run, taken in turn; a first turn warms up and does not count."""
    turns = [[seconds(run) for run in runs] for _ in range(repeats + 1)][1:]
    return [list(times) for times in zip(*turns, strict=True)]


def milliseconds(times: Sequence[float]) -> Spread:
    return Spread.of([1e3 * t for t in times])


def ratio(above: Sequence[float], below: Sequence[float]) -> Spread:
    """The spread of the quotients, turn by turn."""
    return Spread.of([a / b for a, b in zip(above, below, strict=True)])


def machine() -> str:
    cpus = Path("/proc/cpuinfo")
    known = re.search(r"model name\s*:\s*(.*)", cpus.read_text(encoding="utf-8") if cpus.exists() else "")
    model = known[1].strip() if known else platform.processor() or platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{model} ({torch.backends.cpu.get_cpu_capability()}), {available_threads()} cores, {memory:.0f} GiB; Python "
        f"{platform.python_version()}, torch {torch.__version__}. Ratios are medians of alternating runs with their "
        "quartiles."
    )
