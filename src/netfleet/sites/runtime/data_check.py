"""What a site finds out about its own data before round 0, and whether the rows are still those of the last start."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import torch

from netfleet.data.sites import as_site
from netfleet.data.tensors import take
from netfleet.errors import CheckpointError, DataError
from netfleet.files import make_folder, write_atomically
from netfleet.problems.base import Problem
from netfleet.problems.module import ModuleProblem
from netfleet.problems.own_loop import OWN_LOOP
from netfleet.runs.build import build_problem
from netfleet.runs.config import Experiment
from netfleet.runs.contract_check import DataFacts, check_contract, data_facts
from netfleet.runs.identity import digest
from netfleet.sites.planning.folders import RUN_FOLDER, Site
from netfleet.sites.policy.accountant import planned_budget
from netfleet.sites.policy.in_force import PolicyInForce
from netfleet.sites.policy.rules import Finding, Terms, data_findings, privacy_findings

ROWS_FILE = "rows.json"
#: Training rows below which a site says much about each.
FEW = 20


def site_problem(site: Site, experiment: Experiment) -> Problem:
    """The problem of a site, with its own data."""
    workers = max(site.workers, site.number + 1)
    engine = replace(experiment.engine, device=site.device or experiment.engine.device)
    (run,) = experiment.runs()
    return build_problem(experiment.problem, workers, run.seed, engine).at([site.number])


def check_site_data(site: Site, experiment: Experiment, problem: Problem, terms: Terms) -> list[Finding]:
    """What the policy says of the site's data and of the privacy that it spends; raises if the contract is broken."""
    facts, policy = data_facts(problem, site.number), terms.in_force.policy
    check_contract(experiment.contract, problem, [site.number])
    budget = terms.accountant(experiment, None if facts is None else facts.rows)
    own = [] if facts is None else data_findings(policy, facts)
    return [*own, *privacy_findings(policy, budget, final=True)]


class OwnData(NamedTuple):
    """A site's data, and what the policy and the checks of a start say of it."""

    problem: Problem | None  # None: a loop of the site's own has the data
    rules: list[Finding]
    facts: DataFacts | None
    doubts: list[str]


def inspect_data(site: Site, experiment: Experiment, in_force: PolicyInForce) -> OwnData:
    """All that a start checks of the data; raises if it breaks the contract. Nothing is written."""
    if experiment.problem["kind"] == OWN_LOOP:
        budget = planned_budget(experiment, None)
        return OwnData(None, list(privacy_findings(in_force.policy, budget, final=True)), None, [])
    with as_site(site.name):
        problem = site_problem(site, experiment)
        rules = check_site_data(site, experiment, problem, Terms(in_force))
    facts = data_facts(problem, site.number)
    doubts = [] if facts is None else list(warnings_about(facts, experiment.problem.get("batch", 0)))
    return OwnData(problem, rules, facts, doubts)


def check_rows_of(folder: Path, site: Site, data: OwnData) -> None:
    """Raise if the rows are not those of the last start."""
    if isinstance(data.problem, ModuleProblem) and data.facts is not None:
        found = rows_digest(data.problem, site.number)
        check_same_rows(folder / RUN_FOLDER, found, data.facts.rows, False, remember=False)


def warnings_about(facts: DataFacts, batch: int) -> Iterator[str]:
    """What makes training with such data doubtful, though not wrong."""
    if facts.rows < FEW:
        yield f"this site has {facts.rows} training rows; what it sends says much about each of them"
    if batch > facts.rows:
        yield f"a mini-batch has {batch} rows and this site {facts.rows}, so rows are drawn several times"
    if facts.classes == 1:
        yield "all training rows of this site have the same class"


def rows_digest(problem: ModuleProblem, worker: int) -> str:
    """Names the rows of a worker: another value, order, type or number of them has another digest."""
    data = problem.data
    if data.site is not None:  # all rows are the site's own
        return digest([data.train_x, data.train_y, data.test_x, data.test_y])
    part = torch.from_numpy(problem.parts[worker])
    tests = torch.arange(data.tests) if problem.test_parts is None else torch.from_numpy(problem.test_parts[worker])
    trained, tested = ([take(x, part) for x in (data.train_x, data.train_y)], (data.test_x, data.test_y))
    return digest([*trained, *(take(x, tests) for x in tested)])


def check_same_rows(folder: Path, found: str, rows: int, accepted: bool, remember: bool = True) -> str | None:
    """Compare the rows with those of the last start, and remember them; a sentence if others were accepted."""
    path, before = folder / ROWS_FILE, _last(folder / ROWS_FILE)
    if before is not None and before[0] != found and not accepted:
        raise DataError(
            f"the rows of this site are not those of its last start on {before[2]} (training rows: {before[1]} then, "
            f"{rows} now), so the training would not be the same; restore them, or add --data-changed"
        )
    if remember and (before is None or before[0] != found):
        table = {"digest": found, "rows": rows, "time": datetime.now(UTC).isoformat(timespec="seconds")}
        make_folder(folder)
        write_atomically(path, lambda file: file.write(json.dumps(table).encode()))
    if before is None or before[0] == found:
        return None
    return f"the rows are not those of the start on {before[2]} (training rows: {before[1]} then, {rows} now); accepted"


def _last(path: Path) -> tuple[str, int, str] | None:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        return str(table["digest"]), int(table["rows"]), str(table["time"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"cannot read {path} ({error}); restore it, or remove it if the rows are right") from None
