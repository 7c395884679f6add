"""The baseline: a site trains without its neighbours, with the budget that the plan gives it.

It is the plan's method on a network of one site: the same initial model, step sizes, local optimizer, mini-batches and
number of local steps, but an average over the neighbourhood is the site's own vector. Corrections and tracked gradients
then are the site's own gradient, so NET-FLEET, for example, makes rounds × K steps of SGD. Weights of sites and privacy
are left out: nothing leaves the site. With `[time_box]` a round has as many steps as it had in the joint training.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array
from torch import Tensor

from netfleet.algorithms.build import make_algorithm
from netfleet.algorithms.compression import Packed
from netfleet.compute.threads import one_intra_op_thread
from netfleet.data.sites import as_site
from netfleet.engines.collective import SingleHost, SingleSite
from netfleet.engines.host import Host
from netfleet.engines.job import Job, Snapshot
from netfleet.engines.loop import train
from netfleet.errors import ConfigError, DivergedError
from netfleet.files import locked, make_folder
from netfleet.problems.base import Problem
from netfleet.problems.module import ModuleProblem
from netfleet.problems.own_loop import OWN_LOOP
from netfleet.runs.config import Experiment
from netfleet.runs.contract_check import check_contract, data_facts
from netfleet.runs.divergence import divergence
from netfleet.runs.history import History
from netfleet.runs.progress import Display
from netfleet.runs.recorder import RunRecorder
from netfleet.runs.run import open_run
from netfleet.sites.planning.folders import ALONE_FOLDER, RUN_FOLDER, Site
from netfleet.sites.policy.in_force import NO_POLICY, PolicyInForce
from netfleet.sites.runtime.data_check import check_same_rows, rows_digest, site_problem
from netfleet.sites.runtime.models import ModelWriter
from netfleet.sites.runtime.step_record import StepRecord
from netfleet.topology.network import Network


class OneSite(Network):
    """A network of a site without neighbours."""

    m, varying = 1, False

    def W(self, t: int = 0) -> csr_array:
        return csr_array(np.eye(1))

    def sends(self, i: int, t: int = 0) -> int:
        return 0

    def messages(self, t: int = 0) -> int:
        return 0


class AloneHost(Host):
    """The host of a site without neighbours: an average over its neighbourhood is its own vector."""

    decides_alone = True

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, OneSite(), SingleSite(), threads=1)

    def _average_of(self, t: int) -> Callable[[Sequence[Packed]], list[Tensor]]:
        return lambda packed: [p.values.clone() for p in packed]

    def _messages(self, t: int) -> int:
        return 0


class RecordedSteps:
    """As many local steps in each round as the joint training took; all, where it says nothing."""

    def __init__(self, record: StepRecord) -> None:
        self._record, self._count = record, 0

    def begin(self, t: int) -> None:
        self._count = self._record.read(t) or 0

    def takes(self, k: int) -> bool:
        return not self._count or k <= self._count


class AloneRecorder(RunRecorder):
    """Keeps the best model beside the history."""

    def __init__(self, models: ModelWriter, history: History, *settings: object) -> None:
        super().__init__(history, *settings)  # type: ignore[arg-type]
        self._models = models

    def record(self, snapshot: Snapshot, host: Host) -> None:
        super().record(snapshot, host)
        self._models.keep_best(host.problem, snapshot, self.history.records)


def train_alone(
    folder: Path,
    site: Site,
    experiment: Experiment,
    display: Display,
    in_force: PolicyInForce = NO_POLICY,
    data_changed: bool = False,
) -> Path:
    """Train, or resume, without neighbours; returns the model's file. Nothing is sent, and no port is opened."""
    make_folder(folder / ALONE_FOLDER)
    if experiment.time_box is not None:
        _check_joint_is_over(folder, site)
    with as_site(site.name), locked(folder / ALONE_FOLDER) as mine:
        if not mine:
            raise ConfigError(f"another process trains {site.name} alone; wait for it, or stop it")
        problem = alone_problem(site, experiment)
        _check_rows(folder, site, experiment, problem, data_changed)
        models = ModelWriter(folder, site, experiment, "alone", in_force.policy.show.scores_in_model)
        _train(models, problem, display)
        return models.path


def _check_joint_is_over(folder: Path, site: Site) -> None:
    """Raise while the joint training runs: its rounds are not all known yet, and their file is being written."""
    with locked(folder) as mine:
        if not mine:
            raise ConfigError(
                f"[time_box]: {site.name} is training, and alone it takes as many steps; wait for its end"
            )


def alone_problem(site: Site, experiment: Experiment) -> Problem:
    """The site's own objective, which counts fully."""
    if experiment.problem["kind"] == OWN_LOOP:
        advice = "let that program train without netfleet.optim, with as many steps"
        raise ConfigError(f"{site.name} trains with a loop of its own, which netfleet cannot run alone; {advice}")
    table = {key: value for key, value in experiment.problem.items() if key != "weights"}
    return site_problem(site, replace(experiment, problem=table))


def _check_rows(folder: Path, site: Site, experiment: Experiment, problem: Problem, accepted: bool) -> None:
    """Raise if the rows break the contract, or are not those of the joint training."""
    check_contract(experiment.contract, problem, [site.number])
    if isinstance(problem, ModuleProblem) and (facts := data_facts(problem, site.number)) is not None:
        rows = rows_digest(problem, site.number)
        check_same_rows(folder / RUN_FOLDER, rows, facts.rows, accepted, remember=False)


def _train(models: ModelWriter, problem: Problem, display: Display) -> None:
    experiment = models.experiment
    (run,) = experiment.runs()
    algorithm = make_algorithm(run.config["algorithm"])
    history, start = open_run(run, models.folder / ALONE_FOLDER, True, SingleHost())
    recorder = AloneRecorder(models, history, algorithm, experiment, display)
    host, taken = AloneHost(problem), StepRecord(models.folder / RUN_FOLDER)
    steps = None if experiment.time_box is None else lambda workers: RecordedSteps(taken)
    job = Job(problem, host.network, algorithm, experiment.rounds, recorder, start, steps=steps)
    display.begin(f"{models.site.name}, alone", history.resumed, experiment.rounds)
    try:
        with one_intra_op_thread():
            final = train(host, job)
    finally:
        display.end()
    if words := divergence(history.records, algorithm):
        raise DivergedError(words)
    models.write_last(problem, final, history.records)
