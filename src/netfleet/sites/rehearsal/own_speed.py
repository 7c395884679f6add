"""What `netfleet rehearse SITE --measure` finds out, at the site."""

from pathlib import Path

import numpy as np

from netfleet.algorithms.build import make_algorithm
from netfleet.data.sites import as_site
from netfleet.data.tensors import leaves
from netfleet.errors import ConfigError
from netfleet.problems.module import ModuleProblem
from netfleet.sites.costs.rounds import rounds_of, size_of
from netfleet.sites.costs.speed import Speed, measure_saving, measure_speed
from netfleet.sites.evaluation.bootstrap import strata_of
from netfleet.sites.policy.start import OpenedSite
from netfleet.sites.rehearsal.done import read_done
from netfleet.sites.rehearsal.exchange_cost import measure_exchange
from netfleet.sites.rehearsal.measurement import Measurement
from netfleet.sites.runtime.alone import alone_problem


def measure_site(folder: Path, opened: OpenedSite, classes: bool) -> Measurement:
    """Speed and number of rows; of each class only if asked for. No row, no score and no value of a column."""
    site, experiment, _ = opened
    with as_site(site.name):
        problem = alone_problem(site, experiment)
        (run,) = experiment.runs()
        algorithm = make_algorithm(run.config["algorithm"])
        made = rounds_of(algorithm, size_of(problem), experiment.rounds)
        besides = Speed(0.0, measure_saving(made, len(site.neighbours), folder), exchange=measure_exchange(folder))
        speed = measure_speed(problem, algorithm, made, experiment.evaluation, besides)
    done = read_done(folder)
    if not isinstance(problem, ModuleProblem):
        return Measurement(site.name, speed, done=done)
    counts = _counts(problem, site.number) if classes else ()
    return Measurement(site.name, speed, len(problem.parts[site.number]), counts, done=done)


def _counts(problem: ModuleProblem, worker: int) -> tuple[int, ...]:
    known = problem.label_counts()
    if known is not None:
        return tuple(int(count) for count in known[worker])
    y = problem.data.train_y
    labels = strata_of(y, len(leaves(y)[0]))[problem.parts[worker]]
    if problem.task.outputs != "labels":
        raise ConfigError("--classes: the targets of this plan are no classes; leave it out")
    return tuple(int(count) for count in np.bincount(labels, minlength=2))
