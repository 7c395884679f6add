"""An experiment beside its theory: constants, admissible step sizes, and what was measured against the bounds."""

from collections.abc import Iterator, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from netfleet.errors import ConfigError
from netfleet.report.looks import looks
from netfleet.report.plots import DPI, STYLE, TICKS, label_powers
from netfleet.runs.history import History, group
from netfleet.theory.bounds import corollary
from netfleet.theory.predictions import Explained, Prediction, measured
from netfleet.theory.theorems import MOST_ROUNDS, Theorem

TARGETS = (1.0, 0.1, 0.01)  # of ‖∇f(x⁰)‖²
TERMS = {"start": "start", "noise": "noise", "graph": "graph", "local": "local", "heterogeneity": "ζ² at x⁰"}
PLACES = 60  # points of a predicted curve


def tables(explained: Explained) -> Iterator[Table]:
    predictions, rounds = explained.predictions, explained.experiment.rounds
    yield constants_table(explained)
    yield from conditions_tables(predictions)
    yield steps_table(predictions)
    yield terms_table(predictions, rounds)
    yield curve_table(predictions, rounds)
    yield targets_table(predictions, explained.survey.slope.value)


def constants_table(explained: Explained) -> Table:
    table = Table("constant", "value", "how it is known", header_style="bold")
    topology, found = explained.topology, explained.survey
    unknown = ("–", "W changes from round to round, for which there is no theorem here")
    table.add_row("m", str(topology.m), "")
    table.add_row("λ", *(unknown if topology.varying else (f"{topology.lam:.4g}", "of W; 1 − λ is the spectral gap")))
    names = ("L, of every worker", "L of f", "σ², of a gradient", "ζ² at x⁰, heterogeneity", "‖∇f(x⁰)‖²")
    estimates = (found.L, found.L_mean, found.variance, found.heterogeneity, found.slope)
    for name, estimate in zip(names, estimates, strict=True):
        error = f" ± {estimate.error:.1g}" if estimate.error else ""
        table.add_row(name, f"{estimate.value:.4g}{error}", estimate.how)
    low = f"{found.gap.value - found.gap.error:.4g} to " if found.gap.error else ""
    table.add_row("f(x⁰) − f*", f"{low}{found.gap.value:.4g}", found.gap.how)
    return table


def conditions_tables(predictions: Sequence[Prediction]) -> Iterator[Table]:
    """Every upper limit on η, a table for the methods whose theorems have the same; the one that binds is marked."""
    alike: dict[tuple[str, ...], dict[str, Theorem]] = {}
    for p in predictions:
        if p.theorem:
            alike.setdefault(tuple(p.theorem.conditions), {})[f"{p.label} (K = {p.K})"] = p.theorem
    for conditions, theorems in alike.items():
        table = Table("η is at most", *theorems, header_style="bold")
        for name in conditions:
            limits = [(f"{theorem.conditions[name]:.3g}", name == theorem.binds) for theorem in theorems.values()]
            table.add_row(name, *(f"[bold]{limit} binds[/bold]" if binds else limit for limit, binds in limits))
        yield table


def steps_table(predictions: Sequence[Prediction]) -> Table:
    table = Table("method", "K", "η", "largest admissible η", "bounded", header_style="bold")
    for p in predictions:
        known = (f"{p.theorem.largest:.3g}", p.quantity.words) if p.theorem else ("–", "–")
        table.add_row(p.label, str(p.K), f"{p.eta:.4g}", *known)
    return table


def terms_table(predictions: Sequence[Prediction], rounds: int) -> Table:
    """The bounds after all rounds, term by term; where the step size is not admissible, with the best that is."""
    known = [(p, p.theorem, terms) for p in predictions if p.theorem and (terms := p.promise(rounds))]
    table = Table(f"bound after {rounds:,} rounds", *(p.label for p, _, _ in known), header_style="bold")
    steps = (p.eta if p.admissible else theorem.best_step(rounds) for p, theorem, _ in known)
    table.add_row("with η", *(f"{eta:.3g}" for eta in steps), end_section=True)
    parts = [terms._asdict() for _, _, terms in known]
    for name, words in TERMS.items():
        table.add_row(words, *("" if part[name] is None else f"{part[name]:.3g}" for part in parts))
    table.add_row("sum", *(f"{terms.total:.3g}" for _, _, terms in known))
    return table


def curve_table(predictions: Sequence[Prediction], rounds: int) -> Table:
    """What is promised after 1, 10, 100, … rounds and after all of them."""
    at = sorted({10**e for e in range(len(str(rounds)))} | {rounds})
    table = Table("promised after rounds", *(f"{S:,}" for S in at), header_style="bold")
    for label, values in [(p.label, p.values(at)) for p in predictions if p.theorem]:
        table.add_row(label, *(f"{values.get(S, 0.0):.3g}" for S in at))
    return table


def targets_table(predictions: Sequence[Prediction], slope: float) -> Table:
    """Rounds, and bytes of all workers, until a theorem promises shares of ‖∇f(x⁰)‖², with the best admissible η."""
    targets = {share: share * slope for share in TARGETS if slope > 0}
    heads = (f"{eps:.3g} = {share:g} ‖∇f(x⁰)‖²" for share, eps in targets.items())
    table = Table("rounds and bytes until it promises", *heads, header_style="bold")
    for p in predictions:
        if p.theorem:
            table.add_row(p.label, *(_reached(p.theorem, p.size, eps) for eps in targets.values()))
    return table


def _reached(theorem: Theorem, size: int, eps: float) -> str:
    try:
        rounds = theorem.rounds_to(eps)
    except ConfigError:
        return f"more than {MOST_ROUNDS:.0e} rounds"
    sent, units = rounds * size, ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    return f"{rounds:,}, " + next((f"{sent / u:.3g} {name}" for u, name in units if sent >= u), f"{sent:.0f} bytes")


def notes(explained: Explained) -> list[tuple[str, bool]]:
    """Sentences for below the tables, and whether each is a warning."""
    m, rounds, seeds = explained.topology.m, explained.experiment.rounds, explained.experiment.seeds
    K, root = corollary(m, rounds)
    values = f"K = S^⅓/m, here {K}, and η = O(√(m/(SK))), here O({root:.3g})"
    found = [(p.sentence, p.theorem is not None and not p.admissible) for p in explained.predictions]
    found.append((f"Corollary 2, for m = {m} and {rounds:,} rounds: {values}", False))
    if len(seeds) > 1:
        found.append((f"The constants are those of seed {seeds[0]}; other seeds may have other graphs and data", True))
    return found


def draw_theory(histories: Sequence[History], explained: Explained) -> Figure:
    """What was measured, solid with a band over seeds, and what each theorem promises of the same quantity, dotted."""
    groups, predictions = group(histories), explained.predictions
    styles, seeds = looks([p.label for p in predictions]), explained.experiment.seeds
    places = sorted({int(S) for S in np.geomspace(1, explained.experiment.rounds, PLACES).round()})
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11.2, 4.4), dpi=DPI, layout="constrained")
        axes = figure.add_subplot()
        for p in predictions:
            color = styles[p.label].color
            seen = measured(groups.get(p.label, []), p.quantity, explained.L, p.K)
            axes.plot(seen.x, seen.mean, color=color, label=f"{p.label}: {p.quantity.words}")
            axes.fill_between(seen.x, seen.low, seen.high, color=color, alpha=0.15, linewidth=0)
            if values := p.values(places):
                terms, words = p.promise(1), f"{p.label}, promised" + ("" if p.admissible else ", with an admissible η")
                words += " (ζ² at x⁰)" if terms and terms.heterogeneity is not None else ""
                axes.plot(list(values), list(values.values()), color=color, linestyle=(0, (1.2, 1.6)), label=words)
        axes.set(xscale="log", yscale="log", xlabel="communication rounds", ylabel="over the rounds so far")
        label_powers(axes.xaxis)
        label_powers(axes.yaxis)
        whose = f" (with the constants of seed {seeds[0]})" if len(seeds) > 1 else ""
        axes.set_title(f"What the theorems bound, measured and promised{whose}")
        axes.tick_params(**TICKS)
        figure.legend(loc="outside right upper", frameon=False)
    return figure
