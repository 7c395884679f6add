"""What `netfleet reproduce speedup` does: makes the points of the studies, draws them and fits their slopes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from rich.console import Console
from rich.table import Table

from netfleet.errors import ConfigError
from netfleet.files import write_atomically
from netfleet.report.plots import DPI, INK, MARKERS, MUTED, OTHERS, OURS, STYLE, TICKS
from reproduce import speedup_study as scaling
from reproduce.panels import DIVISORS, Scale
from reproduce.progress import LiveTotal
from reproduce.speedup_study import Interval, Results, Row, Study
from reproduce.store import make_folder

#: The studies' folder beside the panels, their name on the command line, and that of their picture.
NAME = "speedup"
HEADINGS = ("study", "line", "rounds", "points", "exponent of m", "of SK", "of mSK")
#: The corollary speaks of S ≥ (mK)³; how much further inside, and how that is said.
RANGES = {"S ≥ 16(mK)³": 16.0, "S ≥ (mK)³": 1.0, "all": 0.0}
WIDTH, HEIGHT = 4.8, 3.5
COLORS = (OURS, *OTHERS)
SHAPES = ("o", *MARKERS)

Measured = Mapping[str, Sequence[Row]]


def asked(names: Sequence[str]) -> list[str]:
    """Of the names on the command line those that are meant for here: "speedup" or "speedup-STUDY"."""
    return [name for name in names if name == NAME or name.startswith(f"{NAME}-")]


def find(source: Path, scale: Scale = "full", seeds: int | None = None) -> list[Study]:
    """The studies of a checkout: all numbers of rounds, the first half of them or the first two, and so many seeds."""
    studies = scaling.find_studies(source / NAME)
    if not studies:
        raise ConfigError(f"no studies (*.toml) in {str(source / NAME)!r}; run this in a checkout of netfleet")
    return [_scaled(study, scale, seeds) for study in studies]


def _scaled(study: Study, scale: Scale, seeds: int | None) -> Study:
    rounds = sorted(study.rounds)
    rounds = rounds[: max(2, len(rounds) // DIVISORS[scale])] if scale != "full" else rounds
    chosen = study.seeds if seeds is None else list(range(study.seeds[0], study.seeds[0] + seeds))
    return replace(study, rounds=rounds, seeds=chosen, lines=[vars(line) for line in study.lines])


def chosen(studies: Sequence[Study], names: Sequence[str]) -> list[Study]:
    """The studies that names ask for."""
    known = {f"{NAME}-{study.name}": study for study in studies}
    for name in names:
        if name != NAME and name not in known:
            raise ConfigError(f"unknown study {name!r}; there are {NAME} (all of them), {', '.join(known)}")
    return [study for name, study in known.items() if NAME in names or name in names]


def reproduce(
    studies: Sequence[Study], to_run: Sequence[Study], results: Path, picture: Path, console: Console
) -> None:
    """Make the points that are missing of some studies, draw the figure of all and print the slopes."""
    make_folder(results)
    known = {study.name: Results(results / f"{study.name}.json") for study in studies}
    todo = [(p, known[s.name]) for s in to_run for p in s.points() if known[s.name].of(p) is None]
    if todo:
        with LiveTotal(console, {point.label: point.work for point, _ in todo}) as live:
            scaling.perform(todo, live)
    found = measured([(study, known[study.name]) for study in studies])
    if not found:
        console.print(f"{picture.name}: no runs yet", highlight=False)
        return
    make_folder(picture.parent)
    figure = draw(found)
    write_atomically(picture, lambda file: figure.savefig(file, format="png"))
    console.print(f"wrote {picture}", markup=False, highlight=False, soft_wrap=True)
    console.print(table(found))
    for sentence in margins([(study, known[study.name]) for study, _ in found]):
        console.print(sentence, highlight=False)


def measured(known: Sequence[tuple[Study, Results]]) -> list[tuple[Study, Measured]]:
    """The studies with something to show; one that is not finished says so in its title."""
    found: list[tuple[Study, Measured]] = []
    for study, results in known:
        lines = scaling.rows(study, results)
        points = list(study.points())
        done = sum(len(row.values) for rows in lines.values() for row in rows)
        if done < len(points):
            title = f"{study.title} ({done} of {len(points)} runs)"
            study = replace(study, title=title, lines=[vars(line) for line in study.lines])
        if done:
            found.append((study, lines))
    return found


def table(found: Sequence[tuple[Study, Measured]]) -> Table:
    """The slopes, for the terminal."""
    made = Table(*HEADINGS, header_style="bold")
    for row in slopes(found):
        made.add_row(*row)
    return made


def slopes(found: Sequence[tuple[Study, Measured]]) -> list[tuple[str, ...]]:
    """Under HEADINGS, the exponents of every line in each of the ranges that has enough points."""
    return [
        (study.title, label, words, str(len(some)), exponent(law.workers), exponent(law.steps), exponent(law.work))
        for study, lines in found
        for label, measured in lines.items()
        for words, times in RANGES.items()
        if (law := scaling.fit(some := _inside(measured, times))) is not None
    ]


def _inside(measured: Sequence[Row], times: float = 1.0) -> list[Row]:
    """The rows with S ≥ times · (mK)³."""
    return [row for row in measured if row.inside(times)]


def exponent(found: Interval | None) -> str:
    """An exponent with its confidence interval over seeds."""
    if found is None:
        return "–"
    return f"{found.mean:.2f}{'' if found.half is None else f' ± {found.half:.2f}'}".replace("-", "−")


def margins(found: Sequence[tuple[Study, Results]]) -> list[str]:
    """How the runs whose constants are known compare with Theorem 1, a sentence for each study."""
    sentences = []
    for study, results in found:
        if (margin := scaling.margin(study, results)) is not None:
            sentences.append(
                f"{study.title}: {margin.runs} runs of NET-FLEET, with η up to {margin.excess:,.0f} times what "
                f"Theorem 1 admits, are at most {margin.ratio:.2g} of its right-hand side"
            )
    return sentences


def draw(found: Sequence[tuple[Study, Measured]]) -> Figure:
    """A column per study: the metric over all gradients taken, and below the rounds to a target over workers."""
    with matplotlib.rc_context(STYLE):
        figure = Figure((WIDTH * len(found), 2 * HEIGHT + 1.2), dpi=DPI, layout="constrained")
        grid = figure.subplots(2, len(found), squeeze=False)
        for place, (study, lines) in enumerate(found):
            _draw_metric(grid[0, place], study, lines)
            (_draw_workers if study.fixed else _draw_rounds)(grid[1, place], study, lines)
    return figure


def _draw_metric(axes: Axes, study: Study, lines: Measured) -> None:
    """Full marks where K is the corollary's or less, hollow ones elsewhere; the law is fitted to the full ones."""
    for (label, measured), color, shape in zip(lines.items(), COLORS, SHAPES, strict=False):
        _marks(axes, [(row.work, row.mean, row.inside()) for row in measured], color, shape)
        diverged = sum(not np.isfinite(row.mean) for row in measured)
        inside = _inside(measured)
        law = scaling.fit(inside)
        words = label if law is None else f"{label}: slope {exponent(law.work)}"
        words += f" ({diverged} diverged)" if diverged else ""
        ends = np.array([min(r.work for r in inside), max(r.work for r in inside)]) if law else np.array([])
        axes.plot(ends, [law.at(end) for end in ends] if law else [], color=color, linewidth=1.2)
        axes.plot([], [], color=color, marker=shape, markersize=4.5, linewidth=1.5, label=words)
    axes.set(xscale="log", yscale="log", xlabel="gradients taken by all workers, m S K", ylabel="averaged metric")
    axes.set_title(study.title)
    _below(axes)


def _marks(axes: Axes, points: Sequence[tuple[float, float, bool]], color: str, shape: str) -> None:
    for wanted, face in ((True, color), (False, "none")):
        some = [(x, y) for x, y, inside in points if inside == wanted and np.isfinite(y)]
        x, y = zip(*some, strict=True) if some else ((), ())
        axes.scatter(x, y, s=22, marker=shape, facecolors=face, edgecolors=color, linewidths=1, zorder=3)


def _draw_rounds(axes: Axes, study: Study, lines: Measured) -> None:
    """The dotted lines fall as 1/m; they are left out where K changes with m. Arrows: at most so many rounds."""
    eps = study.target or scaling.reachable(lines)
    bounded = False
    for (label, measured), color, shape in zip(lines.items(), COLORS, SHAPES, strict=False):
        needed = scaling.rounds_to(measured, eps)
        steps = {row.K for row in measured}
        values = {m: need.rounds if need else np.nan for m, need in needed.items()}
        few = [m for m, need in needed.items() if need and need.at_most]
        exact = [(m, S, all(scaling.within(m, S, K) for K in steps)) for m, S in values.items() if m not in few]
        axes.plot(list(values), [np.nan if m in few else S for m, S in values.items()], color=color, linewidth=1.2)
        _marks(axes, exact, color, shape)
        axes.scatter(few, [values[m] for m in few], s=60, marker=r"$\downarrow$", color=color, linewidths=0.4, zorder=3)
        axes.plot([], [], marker=shape, color=color, markersize=4.5, linewidth=1.2, label=label)
        bounded = bounded or bool(few)
        reached = {m: S for m, S in values.items() if np.isfinite(S)}
        if reached and len(steps) == 1 and min(reached) not in few:
            _ideal(axes, reached, -1.0)
    if bounded:
        axes.plot([], [], linestyle="none", marker=r"$\downarrow$", color=MUTED, label="at most so many")
    _over_workers(axes, study, "rounds S", f"Rounds to a metric of {eps:.2g}", "as 1/m")


def _draw_workers(axes: Axes, study: Study, lines: Measured) -> None:
    """The metric after the same rounds; the dotted line falls as 1/√m."""
    for (label, measured), color, shape in zip(lines.items(), COLORS, SHAPES, strict=False):
        found = {row.m: row for row in sorted(measured) if study.fixed == row.S}
        axes.plot(list(found), [row.mean for row in found.values()], color=color, linewidth=1.2)
        _marks(axes, [(m, row.mean, row.inside()) for m, row in found.items()], color, shape)
        axes.plot([], [], marker=shape, color=color, markersize=4.5, linewidth=1.2, label=label)
        if found and label == next(iter(lines)):
            _ideal(axes, {m: row.mean for m, row in found.items()}, -0.5)
    _over_workers(axes, study, "averaged metric", f"After {study.fixed:,} rounds", "as 1/√m")


def _ideal(axes: Axes, found: Mapping[int, float], power: float) -> None:
    first = min(found)
    ideal = [found[first] * (m / first) ** power for m in found]
    axes.plot(list(found), ideal, color=MUTED, linestyle=(0, (1.2, 1.6)), linewidth=1, zorder=1)


def _over_workers(axes: Axes, study: Study, words: str, title: str, ideal: str) -> None:
    axes.plot([], [], color=MUTED, linestyle=(0, (1.2, 1.6)), linewidth=1, label=ideal)
    axes.set(xscale="log", yscale="log", xlabel="workers m", ylabel=words)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(sorted(study.workers), [str(m) for m in sorted(study.workers)])
    axes.set_title(title, color=INK)
    _below(axes)


def _below(axes: Axes) -> None:
    """The legend goes below the axes, where it covers no point."""
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(-0.02, -0.17))
    axes.tick_params(**TICKS)
