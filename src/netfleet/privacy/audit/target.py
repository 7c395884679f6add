"""What `netfleet audit` is given: an experiment file, a plan's folder, or a site's own folder."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from netfleet.data.sites import SITE_VARIABLE, holds_own_data
from netfleet.errors import ConfigError
from netfleet.problems.own_loop import OWN_LOOP
from netfleet.registry import parameters
from netfleet.runs.config import Experiment, Table, load_experiment, resolve_method
from netfleet.sites.planning.certificates import OPERATOR
from netfleet.sites.planning.folders import EXPERIMENT_FILE, PLAN_FILE, SITE_FILE, load_plan, load_site
from netfleet.sites.planning.module_places import make_site_importable


@dataclass(frozen=True)
class AuditTarget:
    """An experiment, and where its results belong."""

    experiment: Experiment
    victim: int | None = None  # the site whose folder it is
    folder: Path | None = None  # of the plan or the site
    own_data: bool = False  # whether each site has rows of its own


def find_target(path: str | None, overrides: Sequence[str] = ()) -> AuditTarget:
    """The experiment of a file or a folder that `netfleet plan` made; None: the embedded demo."""
    given = None if path is None else Path(path)
    if given is None or not given.is_dir():
        return _checked(AuditTarget(load_experiment(path, overrides)))
    if (given / SITE_FILE).is_file():
        return _checked(_site(given, overrides))
    operator = given if (given / PLAN_FILE).is_file() else given / OPERATOR
    if not (operator / PLAN_FILE).is_file():
        raise ConfigError(
            f"{given} is neither a plan nor a site's folder: it has no {OPERATOR}/{PLAN_FILE} and no {SITE_FILE}; give "
            f"an experiment file, or a folder made by netfleet plan"
        )
    load_plan(operator)  # raises if it was changed
    return _checked(AuditTarget(_experiment(operator, overrides), folder=given))


def _site(folder: Path, overrides: Sequence[str]) -> AuditTarget:
    make_site_importable(folder)
    site, experiment = load_site(folder)
    if not site.planned:
        raise ConfigError(f"{site.name} has joined after the plan was made, so its links are not in it; audit the plan")
    experiment = _experiment(folder, overrides) if overrides else experiment
    if "data" in experiment.problem and holds_own_data(experiment.problem["data"]):
        os.environ[SITE_VARIABLE] = site.name  # its own rows and nobody else's
    return AuditTarget(experiment, site.number, folder)


def _experiment(folder: Path, overrides: Sequence[str]) -> Experiment:
    return load_experiment(folder / EXPERIMENT_FILE, overrides)


def _checked(target: AuditTarget) -> AuditTarget:
    problem = target.experiment.problem
    if problem["kind"] == OWN_LOOP:
        raise ConfigError(
            "the sites train with loops of their own, so netfleet knows neither their model nor their rows; audit an "
            "experiment with the same model on data"
        )
    own = "data" in problem and holds_own_data(problem["data"])
    return AuditTarget(target.experiment, target.victim, target.folder, own)


def methods_by_name(text: str, experiment: Experiment) -> list[Table]:
    """Other methods, separated by commas, with the step size and the local steps of the experiment's first."""
    from netfleet.algorithms import ALGORITHMS

    first, found = experiment.algorithms[0], []
    for name in filter(None, (word.strip() for word in text.split(","))):
        hints = parameters(ALGORITHMS[name])
        taken = {key: first[key] for key in ("eta", "K") if key in first and key in hints}
        found.append(resolve_method({"kind": name, **taken}))
    if not found:
        raise ConfigError(f"--methods names no method: {text!r}; give some, such as net-fleet,k-gt,ld-sgd")
    return found
