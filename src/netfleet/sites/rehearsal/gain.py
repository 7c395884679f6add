"""What training together brings each site: the joint training in the simulator, against each site alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from netfleet.algorithms.base import Algorithm
from netfleet.compute.threads import one_intra_op_thread
from netfleet.data.tensors import take
from netfleet.engines.job import Job, Recorder, Snapshot
from netfleet.engines.loop import train
from netfleet.engines.simulator import run_simulator
from netfleet.engines.time_box import FixedSteps
from netfleet.errors import DivergedError
from netfleet.prediction.model import forward
from netfleet.problems.module import ModuleProblem
from netfleet.runs.build import Setting, build_job
from netfleet.runs.config import Experiment
from netfleet.runs.progress import Display
from netfleet.sites.evaluation.bootstrap import interval
from netfleet.sites.evaluation.evaluate import TestRows, comparison_of, main_metric, measured_on, tests_of
from netfleet.sites.evaluation.results import Interval, Verdict
from netfleet.sites.rehearsal.data import RehearsalData
from netfleet.sites.runtime.alone import AloneHost
from netfleet.topology.topology import Topology


@dataclass(frozen=True)
class Gain:
    """The joint model and the one trained alone on a site's test rows."""

    metric: str
    rows: int  # test rows
    joint: Interval
    alone: Interval
    better: Interval
    verdict: Verdict


def predict_gains(
    experiment: Experiment,
    algorithm: Algorithm,
    data: RehearsalData,
    topology: Topology,
    steps: Sequence[int] | None,
    display: Display,
) -> list[Gain | None]:
    """The gain of each site; None where its test rows do not have the metric. `steps`: of each site in a round."""
    plain, weights = data.problem, experiment.problem.get("weights", "equal")
    job = build_job(algorithm, experiment.seeds[0], experiment, Setting(topology, plain.weighted(weights)))
    together = _shown(run_simulator, job, display, "together")
    host = AloneHost(plain)  # of all sites at once
    taken = None if steps is None else lambda workers: FixedSteps(torch.tensor([steps[i] for i in workers]))
    lone = Job(plain, host.network, algorithm, experiment.rounds, steps=taken)
    with one_intra_op_thread():
        alone = _shown(lambda job: train(host, job), lone, display, "each alone")
        return [_gain(experiment, data, together, alone, i) for i in range(plain.m)]


class _Shown(Recorder):
    """Shows the rounds, and keeps nothing."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def progress(self, t: int) -> None:
        self._display.round(t)


def _shown(run: Callable[[Job], Snapshot], job: Job, display: Display, label: str) -> Snapshot:
    display.begin(label, 0, job.rounds)
    try:
        return run(replace(job, recorder=_Shown(display)))
    finally:
        display.end()


def _gain(experiment: Experiment, data: RehearsalData, joint: Snapshot, alone: Snapshot, i: int) -> Gain | None:
    tests = tests_of(data.tested, i, experiment)
    outputs = {"joint": _outputs(data.problem, joint, tests, i), "alone": _outputs(data.problem, alone, tests, i)}
    metric = main_metric(tests, outputs["joint"])
    found = {name: measured_on(each, tests, metric) for name, each in outputs.items()}
    compared = comparison_of(found, metric, tests)
    if compared is None:
        return None
    together, own = (interval(*found[name][metric]) for name in ("joint", "alone"))
    return Gain(metric, len(tests.rows), together, own, compared.better, compared.verdict)


def _outputs(problem: ModuleProblem, at: Snapshot, tests: TestRows, i: int) -> torch.Tensor:
    x = at.state.x[i]
    if not bool(torch.isfinite(x).all()):
        raise DivergedError("the training diverges in the rehearsal: a model is not finite; use a smaller step size")
    statistics = problem.statistics(at.state.x, problem.workers, at.buffers)
    module = problem.module(x, None if statistics is None else statistics[i]).cpu()
    return forward(module, take(tests.problem.data.test_x, tests.rows), tests.problem.dtype)
