"""What a site checks before it starts, in the order in which it can be trusted: its policy, then the plan.

The plan's rules are checked on the files as they are. Only then `load_site` imports what the experiment names.
"""

from pathlib import Path
from typing import NamedTuple

from netfleet.errors import PolicyError
from netfleet.runs.config import Experiment, read_toml
from netfleet.sites.planning.certificates import fingerprint, read_certificate
from netfleet.sites.planning.folders import EXPERIMENT_FILE, Site, load_site, names_of_neighbours
from netfleet.sites.planning.module_places import make_site_importable
from netfleet.sites.policy.accountant import Accountant, planned_budget
from netfleet.sites.policy.approval import code_finding
from netfleet.sites.policy.in_force import PolicyInForce, find_policy
from netfleet.sites.policy.pins import Pins
from netfleet.sites.policy.rules import (
    Finding,
    PlanFacts,
    enforce,
    plan_facts,
    plan_findings,
    privacy_findings,
)


class OpenedSite(NamedTuple):
    """A site's folder that its policy allows to start."""

    site: Site
    experiment: Experiment
    in_force: PolicyInForce


def open_site(folder: Path, given: Path | None = None, accountant: Accountant = planned_budget) -> OpenedSite:
    """Read a site's folder if the policy in force allows the plan; `given` is that of --policy."""
    in_force = find_policy(folder, given)
    make_site_importable(folder)
    enforce(in_force, findings_before_import(folder, in_force))
    site, experiment = load_site(folder)
    enforce(in_force, privacy_findings(in_force.policy, accountant(experiment, None)))
    return OpenedSite(site, experiment, in_force)


def findings_before_import(folder: Path, in_force: PolicyInForce) -> list[Finding]:
    """What the rules say of the files as they are."""
    code = code_finding(folder, in_force)
    return plan_findings(in_force.policy, folder_facts(folder)) + ([] if code is None else [code])


def folder_facts(folder: Path) -> PlanFacts:
    """What a folder's plan asks for, with the neighbours that were admitted since."""
    names = names_of_neighbours(folder)
    pins = Pins(folder, read_certificate(folder / "ca.pem"))
    pinned = {name: frozenset(map(fingerprint, pins.of(name))) for name in names}
    return plan_facts(read_toml(folder / EXPERIMENT_FILE), names, pinned)


def check_metrics(in_force: PolicyInForce, address: str | None) -> None:
    """Raise if numbers for Prometheus are asked for and the policy forbids them."""
    if address is not None and not in_force.policy.show.metrics:
        advice = "start without it, or set metrics = true"
        raise PolicyError(f"policy {in_force.path}, rule show.metrics: --metrics {address} is not allowed; {advice}")
