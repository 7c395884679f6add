"""What the numbers of the studies say: power laws in m and SK, the rounds that a metric takes, and the figure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from netfleet.report.intervals import Interval, interval
from netfleet.report.looks import MARKERS, OTHERS, OURS
from netfleet.report.plots import DPI, INK, MUTED, STYLE, TICKS
from reproduce.speedup.study import Results, Study

#: A metric of so many times the study's median counts as diverged, though it is still finite.
DIVERGED = 1e4
HEADINGS = ("study", "line", "rounds", "points", "exponent of m", "of SK", "of mSK")
#: The corollary speaks of S ≥ (mK)³; how much further inside, and how that is said.
RANGES = {"S ≥ 16(mK)³": 16.0, "S ≥ (mK)³": 1.0, "all": 0.0}
WIDTH, HEIGHT = 4.8, 3.5
DOTTED = (0, (1.2, 1.6))
Floats = npt.NDArray[np.float64]


class Row(NamedTuple):
    """The points of one line, m and S, over seeds."""

    m: int
    S: int
    K: int
    eta: float
    values: tuple[float, ...]

    @property
    def work(self) -> int:
        """mSK: gradients taken by all workers."""
        return self.m * self.S * self.K

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    def inside(self, times: float = 1.0) -> bool:
        """Whether K is at most the corollary's S^⅓/m, that is, S ≥ (mK)³, or so many times that."""
        return times * (self.m * self.K) ** 3 <= self.S


Measured = Mapping[str, Sequence[Row]]


def rows(study: Study, results: Results) -> Measured:
    """What was measured of each line, by m and S; points that are missing are left out, huge ones have diverged."""
    found: dict[str, dict[tuple[int, int, int, float], list[float]]] = {line.label: {} for line in study.lines}
    known = [(point, value) for point in study.points() if (value := results.get(point.hash)) is not None]
    most = DIVERGED * float(np.median([value for _, value in known])) if known else 0.0
    for point, value in known:
        found[point.line.label].setdefault(point[2:6], []).append(value if value <= most else math.inf)
    return {label: [Row(*key, tuple(values)) for key, values in line.items()] for label, line in found.items()}


def measured(known: Sequence[tuple[Study, Results]]) -> list[tuple[Study, Measured]]:
    """The studies with something to show; one that is not finished says so in its title."""
    found: list[tuple[Study, Measured]] = []
    for study, results in known:
        lines, points = rows(study, results), len(list(study.points()))
        if done := sum(len(row.values) for line in lines.values() for row in line):
            part = f" ({done} of {points} runs)" if done < points else ""
            found.append((replace(study, title=study.title + part), lines))
    return found


class Fit(NamedTuple):
    """Power laws through rows: the metric goes as (mSK)^work, and as m^workers (SK)^steps."""

    work: Interval
    factor: float
    workers: Interval | None  # None where m and SK were not varied independently
    steps: Interval | None

    def at(self, work: float) -> float:
        return float(self.factor * work**self.work.mean)


def fit(measured: Sequence[Row]) -> Fit | None:
    """Least squares of the logarithms, each seed by itself, as its points share their functions; None without three."""
    finite = [row for row in measured if np.isfinite(row.mean)]
    seeds = min((len(row.values) for row in finite), default=0)
    if len(finite) < 3:
        return None
    m, SK = np.log([row.m for row in finite]), np.log([row.S * row.K for row in finite])
    y = np.log([row.values[:seeds] for row in finite])  # [rows, seeds]
    laws, both = _solve([m + SK], y), _solve([m, SK], y)
    if laws is None:
        return None
    slope = float(np.mean(laws[1]))
    factor = float(np.exp(np.mean(np.log([row.mean for row in finite]) - slope * (m + SK))))  # amid the rows' means
    workers, steps = (None, None) if both is None else (interval(both[1]), interval(both[2]))
    return Fit(interval(laws[1]), factor, workers, steps)


def _solve(variables: Sequence[Floats], y: Floats) -> Floats | None:
    """The constant and the exponents of each seed, `[1 + variables, seeds]`; None where rows do not tell them apart."""
    X = np.stack([np.ones(len(y)), *variables], axis=1)
    if len(X) <= X.shape[1] or np.linalg.matrix_rank(X) < X.shape[1]:
        return None
    return np.asarray(np.linalg.lstsq(X, y, rcond=None)[0])


def _shown(exponent: Interval | None) -> str:
    if exponent is None:
        return "–"
    half = f" ± {exponent.high - exponent.mean:.2f}" if exponent.seeds > 1 else ""
    return f"{exponent.mean:.2f}{half}".replace("-", "−")


def slopes(found: Sequence[tuple[Study, Measured]]) -> list[tuple[str, ...]]:
    """Under HEADINGS, the exponents of every line in each of the ranges that has enough points."""
    return [
        (study.title, label, words, str(len(some)), *map(_shown, (law.workers, law.steps, law.work)))
        for study, lines in found
        for label, line in lines.items()
        for words, times in RANGES.items()
        if (law := fit(some := [row for row in line if row.inside(times)])) is not None
    ]


def reachable(lines: Measured) -> float:
    """The least metric that the fewest workers reach on every line."""
    fewest = min(row.m for measured in lines.values() for row in measured)
    return max(min((row.mean for row in line if row.m == fewest), default=0.0) for line in lines.values())


def rounds_to(measured: Sequence[Row], eps: float) -> dict[int, tuple[float, bool] | None]:
    """For each m the rounds S at which the metric is ε, and whether they are at most so many, as none fewer were run.

    None where the most rounds that were run are too few.
    """
    found: dict[int, tuple[float, bool] | None] = {}
    for m in sorted({row.m for row in measured}):
        line = sorted((row.S, row.mean) for row in measured if row.m == m and np.isfinite(row.mean))
        S, metric = np.log([s for s, _ in line]), np.log([v for _, v in line])
        falls = np.minimum.accumulate(metric)
        found[m] = None
        if len(falls) and np.log(eps) >= falls[-1] - 1e-9:
            rounds = float(np.exp(np.interp(-np.log(eps), -falls, S)))
            found[m] = rounds, bool(np.log(eps) > falls[0])
    return found


def draw(found: Sequence[tuple[Study, Measured]]) -> Figure:
    """A column per study: the metric over all gradients taken, and below what m does to it.

    Full marks where K is the corollary's or less, hollow ones elsewhere.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure((WIDTH * len(found), 2 * HEIGHT + 1.2), dpi=DPI, layout="constrained")
        grid = figure.subplots(2, len(found), squeeze=False)
        for place, (study, lines) in enumerate(found):
            _draw_metric(grid[0, place], study, lines)
            (_draw_workers if study.fixed else _draw_rounds)(grid[1, place], study, lines)
    return figure


def _styled(lines: Measured) -> Iterator[tuple[str, Sequence[Row], str, str]]:
    for (label, rows), color, shape in zip(lines.items(), (OURS, *OTHERS), ("o", *MARKERS), strict=False):
        yield label, rows, color, shape


def _draw_metric(axes: Axes, study: Study, lines: Measured) -> None:
    """The law is fitted to the full marks."""
    for label, rows, color, shape in _styled(lines):
        inside = [row for row in rows if row.inside()]
        words = label
        if law := fit(inside):
            ends = [min(row.work for row in inside), max(row.work for row in inside)]
            axes.plot(ends, [law.at(end) for end in ends], color=color, linewidth=1.2)
            words += f": slope {_shown(law.work)}"
        diverged = sum(not np.isfinite(row.mean) for row in rows)
        words += f" ({diverged} diverged)" if diverged else ""
        _marks(axes, [(row.work, row.mean, row.inside()) for row in rows], color, shape, words, 1.5)
    axes.set(xscale="log", yscale="log", xlabel="gradients taken by all workers, m S K", ylabel="averaged metric")
    axes.set_title(study.title)
    _legend_below(axes)


def _marks(
    axes: Axes, points: Sequence[tuple[float, float, bool]], color: str, shape: str, label: str, width: float = 1.2
) -> None:
    """Points, full or hollow, and their line in the legend."""
    for wanted, face in ((True, color), (False, "none")):
        some = [(x, y) for x, y, inside in points if inside == wanted and np.isfinite(y)]
        x, y = zip(*some, strict=True) if some else ((), ())
        axes.scatter(x, y, s=22, marker=shape, facecolors=face, edgecolors=color, linewidths=1, zorder=3)
    axes.plot([], [], color=color, marker=shape, markersize=4.5, linewidth=width, label=label)


def _draw_rounds(axes: Axes, study: Study, lines: Measured) -> None:
    """The dotted lines fall as 1/m; they are left out where K changes with m. Arrows: at most so many rounds."""
    eps, bounded = reachable(lines), False
    for label, rows, color, shape in _styled(lines):
        needed, steps = rounds_to(rows, eps), {row.K for row in rows}
        values = {m: need[0] if need else np.nan for m, need in needed.items()}
        few = [m for m, need in needed.items() if need and need[1]]
        exact = [(m, S, all((m * K) ** 3 <= S for K in steps)) for m, S in values.items() if m not in few]
        axes.plot(list(values), [np.nan if m in few else S for m, S in values.items()], color=color, linewidth=1.2)
        _marks(axes, exact, color, shape, label)
        axes.scatter(few, [values[m] for m in few], s=60, marker=r"$\downarrow$", color=color, linewidths=0.4, zorder=3)
        bounded = bounded or bool(few)
        reached = {m: S for m, S in values.items() if np.isfinite(S)}
        if reached and len(steps) == 1 and min(reached) not in few:
            _draw_ideal(axes, reached, -1.0)
    if bounded:
        axes.plot([], [], linestyle="none", marker=r"$\downarrow$", color=MUTED, label="at most so many")
    _label_workers(axes, study, "rounds S", f"Rounds to a metric of {eps:.2g}", "as 1/m")


def _draw_workers(axes: Axes, study: Study, lines: Measured) -> None:
    """The metric after the same rounds; the dotted line falls as 1/√m."""
    for label, rows, color, shape in _styled(lines):
        found = {row.m: row for row in sorted(rows) if study.fixed == row.S}
        axes.plot(list(found), [row.mean for row in found.values()], color=color, linewidth=1.2)
        _marks(axes, [(m, row.mean, row.inside()) for m, row in found.items()], color, shape, label)
        if found and label == next(iter(lines)):
            _draw_ideal(axes, {m: row.mean for m, row in found.items()}, -0.5)
    _label_workers(axes, study, "averaged metric", f"After {study.fixed:,} rounds", "as 1/√m")


def _draw_ideal(axes: Axes, found: Mapping[int, float], power: float) -> None:
    first = min(found)
    ideal = [found[first] * (m / first) ** power for m in found]
    axes.plot(list(found), ideal, color=MUTED, linestyle=DOTTED, linewidth=1, zorder=1)


def _label_workers(axes: Axes, study: Study, words: str, title: str, ideal: str) -> None:
    axes.plot([], [], color=MUTED, linestyle=DOTTED, linewidth=1, label=ideal)
    axes.set(xscale="log", yscale="log", xlabel="workers m", ylabel=words)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(sorted(study.workers), [str(m) for m in sorted(study.workers)])
    axes.set_title(title, color=INK)
    _legend_below(axes)


def _legend_below(axes: Axes) -> None:
    """Below the axes the legend covers no point."""
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(-0.02, -0.17))
    axes.tick_params(**TICKS)
