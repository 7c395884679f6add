"""What tuning found: a table, and how good each method is over its step sizes."""

import math
from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from rich.table import Table

from netfleet.report.looks import looks
from netfleet.report.plots import DPI, STYLE, TICKS, label_powers
from netfleet.runs.tuning import Grid, Outcome, at_the_edge

Results = Mapping[str, Sequence[Outcome]]


def tuning_table(results: Results, rounds: int) -> Table:
    """Every point that was tried, the best of each method first."""
    aimed = any(outcome.reached is not None for outcomes in results.values() for outcome in outcomes)
    target = ["target after"] if aimed else []
    table = Table("method", "parameters", "score", "rounds", *target, "", header_style="bold")
    for method, outcomes in results.items():
        for place, outcome in enumerate(outcomes):
            point = ", ".join(f"{name} = {value:g}" for name, value in outcome.trial.point)
            first = place == 0 and math.isfinite(outcome.score)
            words = "best" if first else "" if outcome.rounds == rounds else "left behind"
            style = "bold" if first else ""
            after = ["–" if outcome.reached is None else f"{outcome.reached:.0f}"] if aimed else []
            table.add_row(method, point, show_score(outcome.score), str(outcome.rounds), *after, words, style=style)
        table.add_section()
    return table


def show_score(score: float) -> str:
    if not math.isfinite(score):
        return "diverged"
    return f"{100 * score:.2f} %" if score >= 0 else f"loss {-score:.4g}"


def edge_notes(results: Results, grid: Grid) -> list[str]:
    """What should be tried further, a sentence each."""
    lost = [method for method, outcomes in results.items() if not math.isfinite(outcomes[0].score)]
    notes = [f"{method} diverged at every point; try a smaller eta" for method in lost]
    for method, outcomes in results.items():
        edges = at_the_edge(outcomes, grid)
        notes += [f"{method}: the best {name} is at the edge of the grid; try values beyond it" for name in edges]
    return notes


def draw_tuning(results: Results, name: str) -> Figure:
    """Scores over one parameter, a line per method; of several other parameters the best point counts.

    A hollow mark is a point that was left behind before the end.
    """
    outcomes = [o for many in results.values() for o in many if math.isfinite(o.score) and name in dict(o.trial.point)]
    most, styles = max((o.rounds for o in outcomes), default=0), looks(results)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.2), dpi=DPI, layout="constrained")
        axes = figure.add_subplot()
        for method in results:
            tried = [(dict(o.trial.point)[name], o) for o in outcomes if o.trial.method == method]
            points = dict(sorted(tried, key=lambda pair: (pair[0], pair[1].rounds, pair[1].score)))  # the best of each
            look = styles[method]
            axes.plot(list(points), [o.score for o in points.values()], label=method, **look.line())
            for value, outcome in points.items():
                inside = look.color if outcome.rounds == most else "white"
                axes.plot(value, outcome.score, look.marker, color=look.color, markerfacecolor=inside, zorder=5)
        values = [dict(o.trial.point)[name] for o in outcomes]
        if values and min(values) > 0 and max(values) > 9 * min(values):
            axes.set_xscale("log")
            label_powers(axes.xaxis)
        labelled = all(o.score >= 0 for o in outcomes)
        if labelled:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        early = ", hollow: left behind early" if any(o.rounds < most for o in outcomes) else ""
        axes.set(xlabel=name, ylabel=f"{'accuracy' if labelled else '−loss'} of x̄ at the end{early}")
        axes.set_title("Tuned on one grid")
        axes.tick_params(**TICKS)
        figure.legend(loc="outside lower center", ncols=min(4, len(results)), frameon=False)
    return figure
