"""The numbers behind a report's curves, for the script in the page: the same bands that the figures show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from netfleet.report.intervals import interval
from netfleet.report.looks import Look, looks
from netfleet.report.plots import QUANTITIES, TRACKING, Metric, XName, curve_metrics
from netfleet.runs.history import LARGEST_DRAWN, Floats, History, band, group, has

#: Points of a curve: as many as a figure in a page can show.
POINTS = 250
_DECADES = 100.0

Values = list[float | None]


@dataclass(frozen=True)
class Curve:
    """A metric of a method after each of its rounds: mean, least and greatest seed; and the difference to the first.

    The differences are those between runs of one seed, with half their 95 % interval; empty where seeds are not shared.
    """

    mean: Values
    low: Values
    high: Values
    gap: Values
    half: Values


@dataclass(frozen=True)
class Method:
    """How a method looks, its rounds with what they cost, and its curves in the order of the metrics."""

    label: str
    color: str
    dashes: str
    width: float
    xs: Mapping[XName, Values]
    curves: list[Curve]
    lost: bool  # a run that diverged, which leaves the axes alone


@dataclass(frozen=True)
class Panel:
    title: str
    words: str
    log: bool
    percent: bool


@dataclass(frozen=True)
class LiveCurves:
    """All that the script draws. `first` is the method to which the others' differences are."""

    quantities: Sequence[tuple[XName, str]]
    panels: list[Panel]
    methods: list[Method]
    first: str


def live_curves(histories: Sequence[History], first: str) -> LiveCurves:
    """The curves of some histories, thinned to what can be seen; the differences are to the method called `first`."""
    metrics = [*curve_metrics(histories), *([TRACKING] if has(histories, TRACKING.column) else [])]
    units = {x: _unit(histories, x) for x in QUANTITIES if has(histories, x)}
    styles, sound = looks(history.label for history in histories), [h for h in histories if not h.diverged]
    groups, methods = group(sound), list[Method]()
    for label, runs in groups.items():
        curves = [_curve(runs, [] if label == first else groups.get(first, []), metric.column) for metric in metrics]
        methods.append(_method(label, styles[label], runs, units, curves))
    for run in (history for history in histories if history.diverged):
        look, label = styles[run.label]._replace(width=1.0), f"{run.label}, seed {run.seed}, diverged"
        curves = [_curve([run], [], metric.column) for metric in metrics]
        methods.append(_method(label, look, [run], units, curves, lost=True))
    panels = [_panel(metric, sound or histories) for metric in metrics]
    quantities = [(x, QUANTITIES[x].words.format(name)) for x, (_, name) in units.items()]
    return LiveCurves(quantities, panels, methods, first)


def _method(
    label: str,
    look: Look,
    runs: Sequence[History],
    units: Mapping[XName, tuple[float, str]],
    curves: list[Curve],
    lost: bool = False,
) -> Method:
    costs, rounds = {x: band(runs, x) for x in units}, _rounds(runs)
    xs = {x: _on(rounds, found.x, found.mean / units[x][0]) for x, found in costs.items()}
    dashes = " ".join(f"{dash * look.width:g}" for dash in look.dashes)
    return Method(label, look.color, dashes, look.width, xs, curves, lost)


def _unit(histories: Sequence[History], x: XName) -> tuple[float, str]:
    """The largest unit of a quantity in which the most that any run has is 1 or more."""
    largest = max(record[x] for history in histories for record in history if record.get(x) is not None)
    units = QUANTITIES[x].units
    return next((unit for unit in reversed(units) if unit[0] <= largest), units[0])


def _panel(metric: Metric, histories: Sequence[History]) -> Panel:
    means = np.concatenate([band(runs, metric.column).mean for runs in group(histories).values()] or [np.zeros(0)])
    positive = means[means > 0]
    wide = bool(len(positive) == len(means) > 0 and positive.max() > _DECADES * positive.min())
    log = metric.scale == "log" or (metric.scale == "auto" and wide)
    return Panel(metric.title, metric.label, log and len(positive) > 0, metric.scale == "percent")


def _curve(runs: Sequence[History], others: Sequence[History], column: str) -> Curve:
    found, several, rounds = band(runs, column), len(runs) > 1, _rounds(runs)
    low, high = (_on(rounds, found.x, part) if several else [] for part in (found.low, found.high))
    mine, theirs = _by_seed(runs, column), _by_seed(others, column)
    pairs = [(mine[seed], theirs[seed]) for seed in mine if seed in theirs]
    gaps = [_gap(pairs, t) for t in rounds] if pairs else []
    shared = any(gap is not None for gap, _ in gaps)
    gap, half = ([pair[i] for pair in gaps] if shared else [] for i in (0, 1))
    return Curve(_on(rounds, found.x, found.mean), low, high, gap, half)


def _by_seed(runs: Sequence[History], column: str) -> dict[int, dict[int, float]]:
    """The values of each seed's run by round."""
    return {
        run.seed: {r["round"]: r[column] for r in run if r.get(column) is not None and abs(r[column]) < LARGEST_DRAWN}
        for run in runs
    }


def _gap(pairs: Sequence[tuple[dict[int, float], dict[int, float]]], t: int) -> tuple[float | None, float | None]:
    """Mean difference after round t over the seeds that both have, and half its interval."""
    values = [a[t] - b[t] for a, b in pairs if t in a and t in b]
    if len(values) < 2:
        return None, None
    found = interval(values)
    return _short(found.mean), _short((found.high - found.low) / 2)


def _rounds(runs: Sequence[History]) -> list[int]:
    """The rounds of which the page has values: all that were evaluated, or as many as a figure can show."""
    rounds = sorted({record["round"] for run in runs for record in run})
    places = np.unique(np.linspace(0, len(rounds) - 1, min(POINTS, len(rounds))).astype(int))
    return [rounds[i] for i in places]


def _on(rounds: Sequence[int], x: Floats, values: Floats) -> Values:
    """Values by round, on these rounds."""
    known = dict(zip(x.tolist(), values.tolist(), strict=True))
    return [_short(known.get(float(t))) for t in rounds]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
