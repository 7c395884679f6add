"""An experiment beside its theory: constants, admissible step sizes, and what was measured against the bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from netfleet import theory
from netfleet.algorithms.dsgd import DSGD
from netfleet.algorithms.fedavg import FedAvg
from netfleet.algorithms.generalized_fedavg import GeneralizedFedAvg
from netfleet.algorithms.gt_sgd import GTSGD
from netfleet.algorithms.net_fleet import NetFleet
from netfleet.compression import make_algorithm
from netfleet.estimates import Estimate, Survey, survey
from netfleet.experiment import build_setting
from netfleet.report.plots import DPI, STYLE, TICKS, band, group, looks
from netfleet.theory import Constants

if TYPE_CHECKING:
    from rich.console import Console

    from netfleet.algorithms import Algorithm
    from netfleet.config import Experiment
    from netfleet.history import History

PLACES = 60  # points of a predicted curve


class Prediction(NamedTuple):
    """What a theorem says of one method; without an admissible step size, of the best that it admits."""

    label: str
    K: int
    eta: float
    theorem: str = ""  # none: there is none here
    largest: float | None = None  # the largest admissible step size, where the theorem has one in closed form
    binds: str = ""
    admissible: bool = False
    values: Mapping[int, float] = {}

    @property
    def sentence(self) -> str:
        """The step size beside the theorem's condition."""
        if not self.theorem:
            return f"{self.label}: netfleet has no theorem for it"
        if self.largest is None:
            words = "meets" if self.admissible else "is too large for"
            return f"{self.label}: η = {self.eta:.4g} {words} the conditions of {self.theorem}"
        limit = f"the largest that {self.theorem} admits, {self.largest:.3g}, which {self.binds} binds"
        if self.admissible:
            return f"{self.label}: η = {self.eta:.4g} is below {limit}"
        return f"{self.label}: η = {self.eta:.4g} is {self.eta / self.largest:,.0f} times {limit}"


def explain(experiment: Experiment, console: Console) -> tuple[Constants, list[Prediction]]:
    """Find the constants of an experiment's first seed and print what the theorems say of its methods."""
    setting = build_setting(experiment, experiment.seeds[0])
    with console.status("estimating L, σ² and ζ²"):
        found = survey(setting.problem)
    c, rounds = found.constants(setting.topology.m, setting.topology.lam), experiment.rounds
    runs = experiment.runs()[: len(experiment.algorithms)]
    predictions = [predict(run.label, make_algorithm(run.config["algorithm"]), c, rounds) for run in runs]
    console.print(constants_table(found, c))
    console.print(predictions_table(predictions, rounds))
    for sentence, warning in notes(predictions, c.m, rounds):
        console.print(sentence, style="yellow" if warning else "", highlight=False, soft_wrap=True)
    return c, predictions


def predict(label: str, algorithm: Algorithm, c: Constants, rounds: int) -> Prediction:
    """The bound of a method's paper over the rounds, at the first round's step size where the theorem admits it."""
    K, eta = getattr(algorithm, "K", 1), algorithm.step_size(0)
    places = sorted({int(S) for S in np.geomspace(1, rounds, PLACES).round()})
    if isinstance(algorithm, NetFleet | GTSGD):
        largest, binds = theory.largest_step(c, K)
        steps = {S: eta if eta <= largest else theory.best_step(c, K, S) for S in places}
        values = {S: theory.bound(c, step, K, S).total for S, step in steps.items()}
        return Prediction(label, K, eta, f"Theorem 1 (K = {K})", largest, binds, eta <= largest, values)
    if isinstance(algorithm, DSGD):
        found = {S: theory.dsgd_bound(c, eta, S) for S in places}
        name = "Lian et al. 2017, Theorem 1"
    elif isinstance(algorithm, FedAvg | GeneralizedFedAvg) and algorithm.participation == 1:
        found = {S: theory.fedavg_bound(c, eta, K, S, getattr(algorithm, "eta_g", 1.0)) for S in places}
        name = "Yang, Fang, Liu 2021, Theorem 1"
    else:
        return Prediction(label, K, eta)
    known = {S: value for S, value in found.items() if value is not None}
    return Prediction(label, K, eta, name, admissible=bool(known), values=known)


def constants_table(survey: Survey, c: Constants) -> Table:
    """What was taken for the constants, and how it is known."""
    table = Table("constant", "value", "how it is known", header_style="bold")
    rows = {
        "L, of every worker": survey.L,
        "L of f": survey.L_mean,
        "σ², of a gradient": survey.variance,
        "ζ², heterogeneity": survey.heterogeneity,
        "f(x⁰) − f*": survey.gap,
    }
    table.add_row("m", str(c.m), "")
    table.add_row("λ", f"{c.lam:.4g}", "of W; 1 − λ is the spectral gap")
    for name, estimate in rows.items():
        table.add_row(name, _shown(estimate), estimate.how)
    return table


def _shown(estimate: Estimate) -> str:
    return f"{estimate.value:.4g}" + (f" ± {estimate.error:.1g}" if estimate.error else "")


def predictions_table(predictions: Sequence[Prediction], rounds: int) -> Table:
    """Each method's step size, what its theorem admits, and what it promises."""
    table = Table("method", "K", "η", "largest admissible η", f"promised after {rounds:,} rounds", header_style="bold")
    for p in predictions:
        value = f"{p.values[max(p.values)]:.3g}" if p.values else "–"
        if p.values and not p.admissible:
            value += " (with an admissible η)"
        largest = "–" if p.largest is None else f"{p.largest:.3g}"
        table.add_row(p.label, str(p.K), f"{p.eta:.4g}", largest, value)
    return table


def notes(predictions: Sequence[Prediction], m: int, rounds: int) -> list[tuple[str, bool]]:
    """Sentences for below the tables, and which of them are warnings."""
    K, root = theory.corollary(m, rounds)
    speedup = (
        f"Corollary 2, for m = {m} and {rounds:,} rounds: K = S^⅓/m, here {K}, and η = O(√(m/(SK))), here O({root:.3g})"
    )
    return [(p.sentence, bool(p.theorem) and not p.admissible) for p in predictions] + [(speedup, False)]


def averaged(history: History, L: float) -> dict[int, float]:
    """The running mean over a run's evaluations of ‖∇f(x̄)‖² + (L²/m) Σᵢ‖xᵢ − x̄‖², by round.

    The theorem averages over all steps; here are the evaluations at the end of rounds that measured the gradient.
    """
    seen = [r for r in history if r.get("grad_norm2") is not None]
    metric = np.array([r["grad_norm2"] + L**2 * r["consensus_error"] for r in seen])
    means = metric.cumsum() / np.arange(1, len(metric) + 1)
    return {r["round"]: float(mean) for r, mean in zip(seen, means, strict=True)}


def draw_theory(histories: Sequence[History], predictions: Sequence[Prediction], L: float) -> Figure:
    """Measured averages, solid with a band over seeds, and what each theorem promises, dotted."""
    groups = group(_as_column(history, averaged(history, L)) for history in histories)
    styles = looks([p.label for p in predictions])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 4.4), dpi=DPI, layout="constrained")
        axes = figure.add_subplot()
        for p in predictions:
            color = styles[p.label].color
            measured = band(groups.get(p.label, []), "averaged")
            rounds = np.maximum(measured.x, 1)
            axes.plot(rounds, measured.mean, color=color, label=p.label)
            axes.fill_between(rounds, measured.low, measured.high, color=color, alpha=0.15, linewidth=0)
            if p.values:
                at = "promised" if p.admissible else "promised, with an admissible η"
                words = f"{p.label}, {at}"
                axes.plot(list(p.values), list(p.values.values()), color=color, linestyle=(0, (1.2, 1.6)), label=words)
        axes.set(xscale="log", yscale="log", xlabel="communication rounds")
        axes.set_ylabel("running mean of the metric")
        axes.set_title("‖∇f(x̄)‖² + (L²/m) Σᵢ‖xᵢ − x̄‖², measured and promised")
        axes.tick_params(**TICKS)
        figure.legend(loc="outside right upper", frameon=False)
    return figure


def _as_column(history: History, values: Mapping[int, float]) -> History:
    from netfleet.history import History

    records = [{"round": t, "averaged": value} for t, value in values.items()]
    return History(history.config, history.hash, history.label, history.seed, records, history.diverged)
