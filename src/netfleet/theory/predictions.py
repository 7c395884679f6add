"""What the theorems say of an experiment's methods, and what a run measured, as the same quantity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from netfleet.algorithms.dsgd import DSGD
from netfleet.algorithms.fedavg import FedAvg
from netfleet.algorithms.generalized_fedavg import GeneralizedFedAvg
from netfleet.algorithms.gt_sgd import GTSGD
from netfleet.algorithms.net_fleet import NetFleet
from netfleet.report.plots import Band, band
from netfleet.runs.history import History
from netfleet.theory import bounds as theory
from netfleet.theory.bounds import Constants

if TYPE_CHECKING:
    from netfleet.algorithms import Algorithm
    from netfleet.runs.config import Experiment
    from netfleet.topology.topology import Topology

PLACES = 60  # points of a predicted curve
EVALUATIONS = 400  # of a run, at least, where it has so many rounds
Floats = npt.NDArray[np.float64]


class Terms(Protocol):
    """A right-hand side, term by term: a NamedTuple with its total."""

    @property
    def total(self) -> float: ...
    def _asdict(self) -> dict[str, float]: ...


class Quantity(NamedTuple):
    """What a theorem bounds."""

    words: str
    consensus: bool = False  # whether (L²/m) Σᵢ‖xᵢ − x̄‖² is added to ‖∇f(x̄)‖²
    least: bool = False  # the least over rounds rather than the mean


METRIC = Quantity("mean of ‖∇f(x̄)‖² + (L²/m) Σᵢ‖xᵢ − x̄‖²", consensus=True)
GRADIENT = Quantity("mean of ‖∇f(x̄)‖²")
LEAST_GRADIENT = Quantity("least ‖∇f(x̄)‖² of all rounds", least=True)


class Theorem(NamedTuple):
    """A convergence theorem with an experiment's constants and a method's K filled in."""

    name: str
    quantity: Quantity
    conditions: Mapping[str, float]  # upper limits on η by their formulas
    bound: Callable[[float, int], Terms | None]  # by η and S; None where η is not admissible
    best_step: Callable[[int], float]  # by S
    rounds_to: Callable[[float], int]
    vectors: int = 1  # that a message carries
    heterogeneity: bool = True  # whether ζ² is in the bound

    @property
    def binds(self) -> str:
        return min(self.conditions, key=self.conditions.__getitem__)

    @property
    def largest(self) -> float:
        return self.conditions[self.binds]

    def promise(self, S: int, eta: float | None = None) -> Terms | None:
        """The bound after S rounds, at the best admissible η unless one is given; None if it needs no step."""
        eta = self.best_step(S) if eta is None else eta
        return self.bound(eta, S) if eta > 0 else None


class Prediction(NamedTuple):
    """What a theorem says of one method; where its step size is not admissible, of the best that is."""

    label: str
    K: int
    eta: float
    theorem: Theorem | None = None
    why: str = ""  # there is no theorem

    @property
    def admissible(self) -> bool:
        return self.theorem is not None and self.theorem.bound(self.eta, 1) is not None

    @property
    def quantity(self) -> Quantity:
        return self.theorem.quantity if self.theorem else METRIC

    def promise(self, S: int) -> Terms | None:
        """The bound after S rounds, term by term."""
        return self.theorem.promise(S, self.eta if self.admissible else None) if self.theorem else None

    def values(self, rounds: Sequence[int]) -> dict[int, float]:
        """The bound after each of these numbers of rounds."""
        found = {S: self.promise(S) for S in rounds}
        return {S: terms.total for S, terms in found.items() if terms is not None}

    @property
    def sentence(self) -> str:
        """The step size beside the theorem's condition."""
        if self.theorem is None:
            return f"{self.label}: no theorem for this: {self.why}"
        limit = (
            f"the largest that {self.theorem.name} admits, {self.theorem.largest:.3g}, which {self.theorem.binds} binds"
        )
        if self.admissible:
            return f"{self.label}: η = {self.eta:.4g} does not exceed {limit}"
        return f"{self.label}: η = {self.eta:.4g} is {times(self.eta / self.theorem.largest)} {limit}"


def times(factor: float) -> str:
    """A factor above 1 in words that do not round it to 1."""
    if f"{factor:.3g}" == "1":
        return "just above"
    return f"{factor:,.0f} times" if factor >= 100 else f"{factor:.3g} times"


def predict(label: str, algorithm: Algorithm, c: Constants, topology: Topology, experiment: Experiment) -> Prediction:
    """The theorem for a method on a network, at its step size, or why there is none."""
    K, steps = getattr(algorithm, "K", 1), {algorithm.step_size(t) for t in range(experiment.rounds)}
    why, eta = _obstacle(algorithm, topology, experiment, steps), algorithm.step_size(0)
    theorem = None if why else theorem_for(algorithm, c)
    return Prediction(label, K, eta, theorem, why or ("" if theorem else "netfleet has none for the method"))


def _obstacle(algorithm: Algorithm, topology: Topology, experiment: Experiment, steps: set[float]) -> str:
    """What no theorem here allows for."""
    if experiment.network is not None:
        return "messages or workers fail"
    if len(steps) > 1 or min(steps) <= 0:
        return "the step size changes from round to round"
    if algorithm.server:
        return "" if getattr(algorithm, "participation", 1.0) == 1 else "not everyone takes part in every round"
    if topology.varying:
        return "W changes from round to round"
    return "" if topology.weight_sequence.symmetric else "W is not symmetric"


def theorem_for(algorithm: Algorithm, c: Constants) -> Theorem | None:
    """The theorem of a method's paper, where netfleet has it."""
    if isinstance(algorithm, NetFleet | GTSGD):
        return theorem_1(c, getattr(algorithm, "K", 1))
    if isinstance(algorithm, DSGD):
        return Theorem(
            "Lian et al. 2017, Theorem 1,",
            GRADIENT,
            {"(1−λ)/(6L√m)": theory.dsgd_largest_step(c)},
            partial(theory.dsgd_bound, c),
            partial(theory.dsgd_best_step, c),
            partial(theory.dsgd_rounds_to, c),
        )
    if isinstance(algorithm, FedAvg | GeneralizedFedAvg):
        return fedavg(c, algorithm.K, getattr(algorithm, "eta_g", 1.0))
    return None


def theorem_1(c: Constants, K: int) -> Theorem:
    """NET-FLEET's, of which GT-SGD is the case K = 1."""
    largest, _ = theory.largest_step(c, K)
    return Theorem(
        f"Theorem 1 (K = {K})",
        METRIC,
        theory.conditions(c, K),
        lambda eta, S: theory.bound(c, eta, K, S) if eta <= largest else None,
        lambda S: theory.best_step(c, K, S),
        lambda eps: theory.rounds_to(c, eps, K),
        vectors=2,
        heterogeneity=False,
    )


def fedavg(c: Constants, K: int, eta_g: float) -> Theorem:
    """That of Yang, Fang, Liu."""
    return Theorem(
        "Yang, Fang, Liu 2021, Theorem 1,",
        LEAST_GRADIENT,
        theory.fedavg_conditions(c, K, eta_g),
        lambda eta, S: theory.fedavg_bound(c, eta, K, S, eta_g),
        lambda S: theory.fedavg_best_step(c, K, S, eta_g),
        lambda eps: theory.fedavg_rounds_to(c, eps, K, eta_g),
    )


def places(rounds: int) -> list[int]:
    """Numbers of rounds that a predicted curve is drawn through."""
    return sorted({int(S) for S in np.geomspace(1, rounds, PLACES).round()})


def watched(experiment: Experiment, predictions: Sequence[Prediction], L: float) -> Experiment:
    """The experiment, evaluated often enough for a mean over all rounds.

    Between two evaluations the metric is taken to be linear, which overstates what falls as an exponential does. With
    an admissible step size it is looked at every 1/(ηLK) rounds at least, in which nothing falls by more than about e².
    """
    said = experiment.evaluation
    often = [experiment.rounds // EVALUATIONS] + [int(1 / (L * p.eta * p.K)) for p in predictions if p.admissible]
    if said.gradient:
        often.append(said.full_every or said.every)
    return replace(experiment, evaluation=replace(said, every=max(1, min(often)), full_every=0, gradient=True))


def measured(histories: Sequence[History], quantity: Quantity, L: float, K: int) -> Band:
    """What the runs of a method had of a theorem's quantity after each evaluation, over seeds."""
    found = band([_with_quantity(history, quantity, L) for history in histories], "quantity")
    after = [running(found.x, values, quantity, K) for values in (found.mean, found.low, found.high)]
    return Band(found.x[1:], *after)


def running(rounds: Floats, values: Floats, quantity: Quantity, K: int) -> Floats:
    """Mean or least over the rounds before each but the first of some rounds, from the values in those rounds.

    The mean is (1/(SK)) Σₛ Σₖ of values that are linear in between: the trapezoid rule, with half of the first step
    instead of half of the last, for a theorem's sum begins at x⁰ and ends before the last model.
    """
    if quantity.least:
        return np.asarray(np.minimum.accumulate(values)[:-1])
    areas = np.diff(rounds) * (values[1:] + values[:-1]) / 2
    return np.asarray((areas.cumsum() + (values[:1] - values[1:]) / (2 * K)) / rounds[1:])


def _with_quantity(history: History, quantity: Quantity, L: float) -> History:
    """A history of ‖∇f(x̄)‖², with the consensus error if the theorem has it, where it was measured."""
    weight = L**2 if quantity.consensus else 0.0
    records = [
        {"round": r["round"], "quantity": r["grad_norm2"] + weight * r["consensus_error"]}
        for r in history
        if r.get("grad_norm2") is not None
    ]
    return History(history.config, history.hash, history.label, history.seed, records, history.diverged)
