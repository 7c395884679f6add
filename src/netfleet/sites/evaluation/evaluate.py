"""Evaluates models on a site's own test rows, at the site."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from netfleet.compute.threads import one_intra_op_thread
from netfleet.data.sites import as_site
from netfleet.data.tensors import Tensors, take
from netfleet.errors import ConfigError
from netfleet.prediction.model import forward, with_tensors
from netfleet.prediction.model_file import ModelFile
from netfleet.problems.module import ModuleProblem
from netfleet.problems.own_loop import OWN_LOOP
from netfleet.problems.scoring import Metric, make_metric, make_metrics
from netfleet.runs.config import Experiment
from netfleet.runs.contract_check import data_facts
from netfleet.runs.history import higher_is_better
from netfleet.runs.score_table import core_metrics
from netfleet.sites.evaluation.baseline import BASELINES, constant_outputs
from netfleet.sites.evaluation.bootstrap import draw_rows, interval, paired, resampled, strata_of
from netfleet.sites.evaluation.candidates import Candidate, given_models, models_beside, own_models
from netfleet.sites.evaluation.results import Comparison, Interval, ModelScores, SiteEvaluation
from netfleet.sites.evaluation.verdict import compare
from netfleet.sites.planning.folders import RUN_FOLDER, Site
from netfleet.sites.policy.settings import ShowRules
from netfleet.sites.policy.start import OpenedSite
from netfleet.sites.runtime.data_check import check_same_rows, rows_digest, site_problem
from netfleet.sites.runtime.models import is_private

#: What is measured beside the loss, the accuracy and the experiment's own metrics, by what the outputs are.
_METRICS = {
    "classes": ("auroc", "balanced_accuracy"),
    "labels": ("auroc", "balanced_accuracy"),
    "numbers": ("rmse", "mae", "r2"),
    "risk": ("concordance",),
    "tokens": ("perplexity",),
}


@dataclass(frozen=True)
class TestRows:
    """The test rows of a site as models see them, and how they are drawn again."""

    problem: ModuleProblem
    rows: Tensor
    targets: Tensors
    metrics: tuple[Metric, ...]
    draws: Tensor


class Measured(NamedTuple):
    """A metric of one model: its value, and its values on the draws."""

    value: float | None
    again: Sequence[float | None]


def evaluate_site(
    folder: Path, opened: OpenedSite, beside: Sequence[Path] = (), data_changed: bool = False
) -> SiteEvaluation:
    """All models that the site may see, on its own test rows; `beside` are folders of other sites of the plan."""
    site, experiment, _ = opened
    with as_site(site.name), one_intra_op_thread():
        tests = _test_rows(folder, site, experiment, data_changed)
        return _evaluated(folder, opened, beside, tests)


def _evaluated(folder: Path, opened: OpenedSite, beside: Sequence[Path], tests: TestRows) -> SiteEvaluation:
    site, experiment, in_force = opened
    candidates = _unique([*own_models(folder, site), *given_models(folder, site), *models_beside(beside, site)])
    outputs, left_out = _outputs(candidates, tests)
    if "joint" not in outputs:
        why = left_out.get("joint", "there is no model.safetensors yet")
        raise ConfigError(f"{site.name} has no joint model to evaluate: {why}; train it first, with netfleet node")
    baseline = constant_outputs(tests.problem, site.number, len(tests.rows))
    if baseline is not None:
        outputs[BASELINES[str(tests.problem.task.outputs)]] = baseline
    about = {each.name: each.model for each in candidates}
    metric = main_metric(tests, outputs["joint"])
    found = {
        name: measured_on(each, tests, None if _is_own(about.get(name), site) else metric)
        for name, each in outputs.items()
    }
    return SiteEvaluation(
        site.run,
        site.name,
        len(tests.rows),
        metric,
        tuple(_scores(name, about.get(name), values) for name, values in found.items()),
        comparison_of(found, metric, tests),
        left_out,
        tuple(_notes(site, tests, found)),
        why_withheld(in_force.policy.show, experiment, len(tests.rows)),
    )


def why_withheld(show: ShowRules, experiment: Experiment, rows: int) -> str:
    """Why others do not get the scores; empty: they do."""
    if show.evaluation_to_operator is False:
        return "the site's policy does not give them (show.evaluation_to_operator)"
    if show.evaluation_to_operator is None and is_private(experiment):
        return "the plan has privacy, which does not cover scores; show.evaluation_to_operator = true gives them"
    if rows < show.least_test_rows:
        return f"the site has fewer than {show.least_test_rows} test rows (show.least_test_rows)"
    return ""


# ---- rows and outputs ----


def _test_rows(folder: Path, site: Site, experiment: Experiment, data_changed: bool) -> TestRows:
    if experiment.problem["kind"] == OWN_LOOP:
        raise ConfigError(
            f"{site.name} trains with a loop of its own, whose data netfleet does not know; evaluate there"
        )
    problem = site_problem(site, experiment)
    if not isinstance(problem, ModuleProblem):
        kind = experiment.problem["kind"]
        raise ConfigError(f"problem.kind = {kind!r} has no test rows; netfleet evaluate is for models on data")
    facts = data_facts(problem, site.number)
    assert facts is not None
    check_same_rows(folder / RUN_FOLDER, rows_digest(problem, site.number), facts.rows, data_changed, remember=False)
    if experiment.problem.get("validation"):  # which takes the place of the test rows while a site trains
        table = {**experiment.problem, "validation": 0.0}
        tested = site_problem(site, replace(experiment, problem=table))
        assert isinstance(tested, ModuleProblem)
        problem = tested
    return tests_of(problem, site.number, experiment)


def tests_of(problem: ModuleProblem, worker: int, experiment: Experiment) -> TestRows:
    """The test rows of a worker: its own, if the data says whose they are."""
    own = None if problem.test_parts is None else problem.test_parts[worker]
    rows = torch.arange(problem.data.tests) if own is None else torch.from_numpy(own)
    targets = take(problem.test_targets, rows)
    draws = draw_rows(strata_of(targets, len(rows)), problem.seed)
    return TestRows(problem, rows, targets, _metrics(problem, experiment), draws)


def _metrics(problem: ModuleProblem, experiment: Experiment) -> tuple[Metric, ...]:
    """By name: what the experiment asks for comes first, then what the task has."""
    asked = [make_metric(spec) for spec in experiment.evaluation.metrics]
    usual = [make_metric(name) for name in _METRICS.get(str(problem.task.outputs), ())]
    named = {metric.name: metric for metric in (*asked, *usual)}
    rest = {metric.name: metric for metric in core_metrics(problem) if metric.name not in named}
    return (*make_metrics(tuple(named.values()), problem.task), *rest.values())


def _unique(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The first of each name."""
    return list({each.name: each for each in reversed(list(candidates))}.values())[::-1]


def _outputs(candidates: Sequence[Candidate], tests: TestRows) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What each model makes of the test rows, and why others were left out."""
    made, left_out = dict[str, Tensor](), dict[str, str]()
    for name, model, why in candidates:
        try:
            if model is None:
                left_out[name] = why
            else:
                made[name] = _of_model(model, tests)
        except (RuntimeError, ValueError) as error:
            left_out[name] = f"it is not a model of this plan ({str(error).splitlines()[-1].strip()})"
    return made, left_out


def _of_model(model: ModelFile, tests: TestRows) -> Tensor:
    """The architecture is that of the site's own plan, whatever the file says."""
    problem = tests.problem
    module = problem.module(problem.start()).cpu()
    with_tensors(module, model.tensors)
    return forward(module, take(problem.data.test_x, tests.rows), problem.dtype)


# ---- scores ----


def _is_own(model: ModelFile | None, site: Site) -> bool:
    """Whether a model is the site's own, or its baseline."""
    return model is None or model.info.origin.site == site.name


def measured_on(outputs: Tensor, tests: TestRows, only: str | None) -> dict[str, Measured]:
    """All metrics; with intervals for all of them, or for one only, since drawing again takes time."""
    found = {}
    for metric in tests.metrics:
        draws = tests.draws if only in (None, metric.name) else tests.draws[:0]
        again = resampled(metric, outputs, tests.targets, draws)
        found[metric.name] = Measured(metric(outputs, tests.targets), again)
    return found


def _scores(name: str, model: ModelFile | None, found: Mapping[str, Measured]) -> ModelScores:
    scores: dict[str, Interval] = {metric: interval(*values) for metric, values in found.items()}
    if model is None:
        return ModelScores(name, "", "baseline", scores)
    origin = model.info.origin
    return ModelScores(name, origin.site, origin.kind, scores, origin.round, origin.best)


def main_metric(tests: TestRows, joint: Tensor) -> str:
    """What models are compared by: the first of these that the test rows have."""
    task, known = tests.problem.task, {metric.name: metric for metric in tests.metrics}
    yes_no = task.outputs == "labels" or (task.outputs == "classes" and task.width(tests.problem.data) == 2)
    wanted = [*(("auroc",) if yes_no else ("rmse", "concordance")), "accuracy"]
    return next((name for name in wanted if name in known and known[name](joint, tests.targets) is not None), "loss")


def comparison_of(found: Mapping[str, Mapping[str, Measured]], metric: str, tests: TestRows) -> Comparison | None:
    if "alone" not in found:
        return None
    joint, alone = found["joint"][metric], found["alone"][metric]
    if joint.value is None or alone.value is None:
        return None
    sign = 1 if higher_is_better(metric) else -1
    better = paired((joint.value, joint.again), (alone.value, alone.again), sign)
    classes = np.unique(strata_of(tests.targets, len(tests.rows)), return_counts=True)[1]
    return compare(metric, better, len(tests.rows), int(classes.min()) if tests.problem.task.right else None)


def _notes(site: Site, tests: TestRows, found: Mapping[str, object]) -> Iterator[str]:
    if tests.problem.test_parts is None:
        yield "The plan's data does not say whose the test rows are: these are the same at all sites."
    if "alone" not in found:
        yield f"Whether it helped {site.name} is open without a model that it trained alone: netfleet node DIR --alone."
