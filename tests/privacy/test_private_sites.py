"""Private training between sites: they draw what the simulator draws, with its secret; and budgets end."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from netfleet.algorithms import KGT
from netfleet.engines.job import Snapshot
from netfleet.errors import ConfigError
from netfleet.privacy.account import ACCOUNT_FILE
from netfleet.privacy.receipts.report import FILES
from netfleet.privacy.settings import Privacy
from netfleet.runs.build import build_job, build_setting
from netfleet.runs.config import experiment
from netfleet.runs.history import History
from netfleet.runs.progress import Quiet
from netfleet.runs.run import run_experiment
from netfleet.sites.network.transport import MemoryNetwork
from netfleet.sites.operations.logs import Log
from netfleet.sites.planning.certificates import OPERATOR, load_identity
from netfleet.sites.planning.folders import load_site
from netfleet.sites.policy.in_force import NO_POLICY
from netfleet.sites.policy.rules import Terms
from netfleet.sites.policy.settings import Policy, PrivacyRules
from netfleet.sites.runtime.budget import site_budget
from netfleet.sites.runtime.data_check import check_site_data, site_problem
from netfleet.sites.runtime.runner import SiteRunner
from support.site_memory import give_simulated_secrets, run_planned
from support.site_processes import plan_sites
from support.site_settings import DIGITS, simulated

RING: dict[str, Any] = {
    **DIGITS,
    "rounds": 6,
    "topology": {"kind": "ring", "workers": 3},
    "privacy": {"clip": 1.0, "noise": 1.0},
}


def test_private_sites_end_where_the_simulator_does(tmp_path: Path) -> None:
    expected = simulated(RING)
    plan = plan_sites(tmp_path, RING, 3)
    give_simulated_secrets(plan, tmp_path)
    for i, history in enumerate(run_planned(plan, tmp_path)):
        assert history.final is not None
        assert (history.final.state.x[0] - expected[i]).abs().max() <= 1e-10
        assert history.records[-1]["epsilon"] > history.records[0]["epsilon"]


def test_a_site_draws_from_a_secret_of_its_own(tmp_path: Path) -> None:
    plan = plan_sites(tmp_path, RING, 3)
    histories = run_planned(plan, tmp_path)
    keys = {json.loads((tmp_path / "plan" / site.name / ACCOUNT_FILE).read_text())["key"] for site in plan.sites}
    assert len(keys) == 3
    different = [history.final.state.x[0] - row for history, row in zip(histories, simulated(RING), strict=True)]  # type: ignore[union-attr]
    assert all(row.abs().max() > 1e-3 for row in different)
    place = tmp_path / "plan" / "s0"  # the report for the data-protection officer lists all that a site leaves behind
    listed = {path for name, *_ in FILES for path in place.glob(name)}
    assert {path for path in place.rglob("*") if path.is_file() and not {path, *path.parents} & listed} == set()


def test_a_site_leaves_when_its_budget_allows_no_further_round(tmp_path: Path) -> None:
    """The smallest site spends most in a round; the others go on without it."""
    partition = {"kind": "dirichlet", "alpha": 1.0, "min_size": 20}
    table = {**RING, "rounds": 12, "evaluation": {"every": 1}, "problem": {**RING["problem"], "partition": partition}}
    settings = experiment(table)
    job = build_job(settings.algorithms[0], 0, settings, build_setting(settings, 0))
    assert job.problem.spending is not None
    most, middle, least = sorted(job.problem.spending.by_worker(12).values(), reverse=True)
    budget = (most + middle) / 2
    table["privacy"] = {**RING["privacy"], "epsilon": budget}
    histories = run_planned(plan_sites(tmp_path, table, 3), tmp_path)
    early, *others = sorted(history.rounds for history in histories)
    assert early < 12
    assert others == [12, 12]
    assert sorted(history.records[-1]["epsilon"] for history in histories)[:2] == pytest.approx([least, middle])
    assert all(history.records[-1]["epsilon"] <= budget for history in histories)
    logs = [(tmp_path / "plan" / f"s{i}" / "node.log").read_text() for i in range(3)]
    assert sum("the privacy budget allows no further round" in log for log in logs) == 1
    place = tmp_path / "plan" / f"s{[history.rounds for history in histories].index(early)}"
    assert run_alone(place).rounds == early  # started again it has left, and would tell whoever asks
    assert f"left round={early}" in (place / "node.log").read_text()
    with pytest.raises(ConfigError, match="after one more round epsilon would be"):
        run_alone(place, rejoin=True)
    assert "no neighbour" not in (place / "node.log").read_text()  # it did not ask anybody


def run_alone(place: Path, rejoin: bool = False) -> History:
    """A site that reaches nobody."""
    site, settings = load_site(place)
    with (place / "node.log").open("w") as file:
        parts = site, settings, load_identity(place, site.name), Log(site.name, file)
        return SiteRunner(place, *parts, 0.0, MemoryNetwork().transport(site.name)).run(Quiet(), rejoin)


@pytest.mark.parametrize(("allowed", "expected"), [(3.0, 3.0), (9.0, 5.0), (None, 5.0)])
def test_the_smaller_budget_of_plan_and_policy_holds(allowed: float | None, expected: float) -> None:
    both = site_budget(Privacy(clip=1.0, noise=1.0, epsilon=5.0), PrivacyRules(epsilon=allowed))
    alone = site_budget(Privacy(clip=1.0, noise=1.0), PrivacyRules(epsilon=allowed))
    assert both is not None
    assert alone is not None
    assert (both.epsilon, alone.epsilon) == (expected, allowed)
    assert site_budget(None, PrivacyRules(epsilon=allowed)) is None


def test_others_see_no_scores_of_a_private_site(tmp_path: Path) -> None:
    """Losses and accuracies are computed from rows, and are not private; what is spent may be seen."""
    place, network = planned_folder(tmp_path, RING), MemoryNetwork()
    site, settings = load_site(place)
    with (place / "node.log").open("w") as file:
        parts = site, settings, load_identity(place, site.name), Log(site.name, file)
        status = SiteRunner(place, *parts, transport=network.transport(site.name)).status
    state = KGT.State(*torch.zeros(3, 1, 2))
    status.note_round(Snapshot(1, state), {"round": 1, "loss": 0.5, "accuracy": 0.9, "epsilon": 2.0})
    seen = {name: status.status_for(name).record for name in (site.name, "s1", OPERATOR)}
    assert seen["s0"] == {"round": 1, "loss": 0.5, "accuracy": 0.9, "epsilon": 2.0}
    assert seen["s1"] == seen[OPERATOR] == {"round": 1, "epsilon": 2.0}


@pytest.mark.parametrize(("largest", "holds"), [(1.0, False), (50.0, True)])
def test_a_policy_counts_what_a_plan_would_spend(tmp_path: Path, largest: float, holds: bool) -> None:
    """The plan gives the noise; what it costs this site follows from its rows, before anything is sent."""
    site, settings = load_site(planned_folder(tmp_path, RING))
    problem = site_problem(site, settings)
    policy = Policy(privacy=PrivacyRules(required=True, epsilon=largest, delta=1e-3))
    terms = Terms(NO_POLICY._replace(policy=policy))
    findings = {finding.rule: finding for finding in check_site_data(site, settings, problem, terms)}
    assert findings["privacy.required"].holds
    assert findings["privacy.epsilon"].holds == holds
    spent = re.search(r"ε = (\S+)", findings["privacy.epsilon"].has)
    assert spent is not None
    history = simulated_history(RING)
    assert float(spent[1]) == pytest.approx(history.records[-1]["epsilon"], rel=0.01)


def planned_folder(folder: Path, table: dict[str, Any]) -> Path:
    plan_sites(folder, table, 3)
    return folder / "plan" / "s0"


def simulated_history(table: dict[str, Any]) -> History:
    (history,) = run_experiment(experiment(table))
    return history
