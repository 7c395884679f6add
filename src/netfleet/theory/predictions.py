"""What the theorems say of an experiment's methods, and what a run measured, as the same quantity."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netfleet.algorithms.base import Algorithm
from netfleet.algorithms.build import make_algorithm
from netfleet.algorithms.dsgd import DSGD
from netfleet.algorithms.fedavg import FedAvg
from netfleet.algorithms.generalized_fedavg import GeneralizedFedAvg
from netfleet.algorithms.gt_sgd import GTSGD
from netfleet.algorithms.net_fleet import NetFleet
from netfleet.algorithms.wrapper import Wrapper
from netfleet.runs.build import Setting, network_for
from netfleet.runs.config import Experiment
from netfleet.runs.history import Band, History, Record, band
from netfleet.theory.bounds import Bound, Constants
from netfleet.theory.estimates import Survey, survey
from netfleet.theory.theorems import METRIC, Quantity, Theorem, dsgd, fedavg, theorem_1
from netfleet.topology.topology import Topology

EVALUATIONS = 400  # of a run, at least, where it has so many rounds
Floats = npt.NDArray[np.float64]


class Prediction(NamedTuple):
    """What a theorem says of one method; where its step size is not admissible, of the best that is."""

    label: str
    K: int
    eta: float
    size: int  # bytes that all workers send in a round, where there is a theorem
    theorem: Theorem | None = None
    why: str = ""  # there is no theorem

    @property
    def admissible(self) -> bool:
        return self.theorem is not None and self.theorem.bound(self.eta, 1) is not None

    @property
    def quantity(self) -> Quantity:
        return self.theorem.quantity if self.theorem else METRIC

    def promise(self, S: int) -> Bound | None:
        return self.theorem.promise(S, self.eta if self.admissible else None) if self.theorem else None

    def values(self, rounds: Sequence[int]) -> dict[int, float]:
        return {S: terms.total for S in rounds if (terms := self.promise(S)) is not None}

    @property
    def sentence(self) -> str:
        if self.theorem is None:
            return f"{self.label}: no theorem for this: {self.why}"
        name, largest, binds = self.theorem.name, self.theorem.largest, self.theorem.binds
        verb = "does not exceed" if self.admissible else f"is {times(self.eta / largest)}"
        limit = f"the largest that {name} admits, {largest:.3g}, which {binds} binds"
        return f"{self.label}: η = {self.eta:.4g} {verb} {limit}"


def times(factor: float) -> str:
    """A factor above 1 in words that do not round it to 1."""
    if f"{factor:.3g}" == "1":
        return "just above"
    return f"{factor:,.0f} times" if factor >= 100 else f"{factor:.3g} times"


class Explained(NamedTuple):
    experiment: Experiment  # evaluated as often as the comparison needs
    topology: Topology
    survey: Survey
    L: float
    predictions: list[Prediction]


def explain(experiment: Experiment, setting: Setting) -> Explained:
    """Estimate the constants of an experiment's first seed and apply the theorems to its methods."""
    topology, found = setting.topology, survey(setting.problem)
    c = found.constants(topology.m, 0.0 if topology.varying else topology.lam)
    predictions = []
    for run in experiment.runs()[: len(experiment.algorithms)]:
        algorithm = make_algorithm(run.config["algorithm"])
        theorem, why = theorem_for(algorithm, c, topology, experiment)
        vectors = theorem.vectors * network_for(algorithm, topology, 0).messages() if theorem else 0
        size = vectors * setting.problem.d * setting.problem.dtype.itemsize
        K, eta = getattr(algorithm, "K", 1), algorithm.step_size(0)
        predictions.append(Prediction(run.label, K, eta, size, theorem, why))
    return Explained(watched(experiment, predictions, c.L), topology, found, c.L, predictions)


def theorem_for(
    algorithm: Algorithm, c: Constants, topology: Topology, experiment: Experiment
) -> tuple[Theorem | None, str]:
    """The theorem of a method's paper, or why there is none here."""
    if why := _obstacle(algorithm, topology, experiment):
        return None, why
    if isinstance(algorithm, NetFleet | GTSGD):
        return theorem_1(c, getattr(algorithm, "K", 1)), ""
    if isinstance(algorithm, DSGD):
        return dsgd(c), ""
    if isinstance(algorithm, FedAvg | GeneralizedFedAvg):
        return fedavg(c, algorithm.K, getattr(algorithm, "eta_g", 1.0)), ""
    return None, "netfleet has none for the method"


def _obstacle(algorithm: Algorithm, topology: Topology, experiment: Experiment) -> str:
    """What no theorem here allows for."""
    if isinstance(algorithm, Wrapper):
        return "netfleet has none for a local optimizer, an outer step or compressed messages"
    steps = {algorithm.step_size(t) for t in range(experiment.rounds)}
    if experiment.network is not None:
        return "messages or workers fail"
    if len(steps) > 1 or min(steps) <= 0:
        return "the step size changes from round to round"
    if algorithm.server:
        return "" if getattr(algorithm, "participation", 1.0) == 1 else "not everyone takes part in every round"
    if topology.varying:
        return "W changes from round to round"
    return "" if topology.weight_sequence.symmetric else "W is not symmetric"


def watched(experiment: Experiment, predictions: Sequence[Prediction], L: float) -> Experiment:
    """The experiment, evaluated often enough for a mean over all rounds.

    Between two evaluations the metric is taken to be linear, which overstates what falls as an exponential does. With
    an admissible step size it is looked at every 1/(ηLK) rounds at least, in which nothing falls by more than about e².
    """
    asked = experiment.evaluation
    often = [experiment.rounds // EVALUATIONS] + [int(1 / (L * p.eta * p.K)) for p in predictions if p.admissible]
    if asked.gradient:
        often.append(asked.full_every or asked.every)
    return replace(experiment, evaluation=replace(asked, every=max(1, min(often)), full_every=0, gradient=True))


def measured(histories: Sequence[History], quantity: Quantity, L: float, K: int) -> Band:
    """What the runs of a method had of a theorem's quantity after each evaluation, over seeds."""
    weight = L**2 if quantity.consensus else 0.0

    def summed(r: Record) -> Record:
        return {"round": r["round"], "quantity": r["grad_norm2"] + weight * r["consensus_error"]}

    known = [[summed(r) for r in history if r.get("grad_norm2") is not None] for history in histories]
    found = band([History({}, records=records) for records in known], "quantity")

    # The mean is (1/(SK)) Σₛ Σₖ of values that are linear in between: the trapezoid rule, with half of the first step
    # instead of half of the last, for a theorem's sum begins at x⁰ and ends before the last model.
    def running(values: Floats) -> Floats:
        if quantity.least:
            return np.asarray(np.minimum.accumulate(values)[:-1])
        areas = np.diff(found.x) * (values[1:] + values[:-1]) / 2
        return np.asarray((areas.cumsum() + (values[:1] - values[1:]) / (2 * K)) / found.x[1:])

    return Band(found.x[1:], *(running(values) for values in (found.mean, found.low, found.high)))
