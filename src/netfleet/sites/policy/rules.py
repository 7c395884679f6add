"""Compares a plan with a policy, rule by rule. Everything here is pure: facts come in, findings go out."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from netfleet.errors import PolicyError
from netfleet.privacy.settings import Privacy
from netfleet.problems.own_loop import OWN_LOOP
from netfleet.registry import split
from netfleet.runs.config import Table
from netfleet.runs.contract_check import DataFacts
from netfleet.sites.policy.accountant import Accountant, Budget, planned_budget
from netfleet.sites.policy.in_force import NO_POLICY, PolicyInForce
from netfleet.sites.policy.settings import NeighbourRules, Policy


class Finding(NamedTuple):
    """What a rule says of a plan."""

    rule: str  # its name in the policy: "training.least_batch"
    holds: bool
    has: str  # what the plan has
    allows: str  # what the policy allows
    remedy: str

    def __str__(self) -> str:
        return f"rule {self.rule}: the plan has {self.has}, the policy allows {self.allows}; {self.remedy}"


@dataclass(frozen=True)
class PlanFacts:
    """What the rules look at; `batch` is None where the experiment does not say it, 0 where it is all rows."""

    method: str
    compression: str | None
    batch: int | None
    own_loop: bool
    neighbours: tuple[str, ...]
    pinned: Mapping[str, frozenset[str]] = field(default_factory=dict)  # fingerprints of neighbours' certificates
    budget: Budget | None = None  # as far as the experiment says it; None: it has no differential privacy


@dataclass(frozen=True)
class Terms:
    """On what terms a site takes part: its policy, who counts its privacy, and whether its rows may have changed."""

    in_force: PolicyInForce = NO_POLICY
    accountant: Accountant = planned_budget
    data_changed: bool = False


#: Of a site that has said nothing.
NO_TERMS = Terms()


def plan_facts(
    experiment: Table, neighbours: Iterable[str], pinned: Mapping[str, frozenset[str]] | None = None
) -> PlanFacts:
    """The facts of an experiment file as it is, without importing anything that it names."""
    algorithms = experiment.get("algorithms", [{"kind": "net-fleet"}])
    method, settings = split(algorithms[0] if isinstance(algorithms, list) else algorithms, "algorithm")
    codec = settings.get("compress")
    problem = experiment.get("problem", {})
    batch = problem.get("batch")
    return PlanFacts(
        method,
        None if codec is None else split(codec, "compress")[0],
        batch if isinstance(batch, int) else None,
        problem.get("kind") == OWN_LOOP,
        tuple(neighbours),
        dict(pinned or {}),
        _budget(experiment.get("privacy")),
    )


def _budget(privacy: Table | None) -> Budget | None:
    if privacy is None or privacy.get("clip") is None:
        return None
    return Budget(privacy.get("epsilon"), privacy.get("delta", Privacy.delta))


def _method(policy: Policy, plan: PlanFacts) -> Iterator[Finding]:
    rules = policy.training
    if rules.methods is not None:
        allowed, remedy = ", ".join(rules.methods) or "none", "ask for a plan with one of these, or add it to methods"
        yield Finding("training.methods", rules.allows(plan.method), plan.method, allowed, remedy)


def _compression(policy: Policy, plan: PlanFacts) -> Iterator[Finding]:
    if not policy.training.compression:
        has = "no compression" if plan.compression is None else f"compress = {plan.compression!r}"
        remedy = "ask for a plan without compress, or set compression = true"
        yield Finding("training.compression", plan.compression is None, has, "none", remedy)


def _batch(policy: Policy, plan: PlanFacts) -> Iterator[Finding]:
    least = policy.training.least_batch
    if least and not plan.own_loop:  # a loop of the site's own chooses its batches itself
        has = {None: "a problem that does not say its batch", 0: "batches of all rows"}
        large = plan.batch is not None and (plan.batch == 0 or plan.batch >= least)
        words = has.get(plan.batch, f"batch = {plan.batch}")
        yield Finding("training.least_batch", large, words, f"{least} or more", "ask for a plan with larger batches")


def _least_neighbours(policy: Policy, plan: PlanFacts) -> Iterator[Finding]:
    if policy.neighbours.least:
        yield least_neighbours(policy.neighbours, plan.neighbours)


def least_neighbours(rules: NeighbourRules, names: Iterable[str]) -> Finding:
    """Whether these are enough neighbours."""
    found = list(names)
    has = f"{len(found)} ({', '.join(found)})" if found else "none"
    remedy = "ask for a graph with more links, so that no neighbour sees this site's messages alone"
    return Finding("neighbours.least", len(found) >= rules.least, has, f"{rules.least} or more", remedy)


def _names(policy: Policy, plan: PlanFacts) -> Iterator[Finding]:
    if policy.neighbours.names is not None:
        yield neighbour_names(policy.neighbours, plan.neighbours)


def neighbour_names(rules: NeighbourRules, names: Iterable[str]) -> Finding:
    """Whether all of these may be neighbours; where not, those that may not are named."""
    found = list(names)
    others = [name for name in found if not rules.allows(name)]
    has, allowed = ", ".join(others or found) or "none", ", ".join(rules.names or ()) or "none"
    remedy = f"add {others[0] if others else 'it'} to names if it may see what this site sends, or ask for another plan"
    return Finding("neighbours.names", not others, has, allowed, remedy)


def _fingerprints(policy: Policy, plan: PlanFacts) -> Iterator[Finding]:
    for name in plan.neighbours:
        allowed = policy.neighbours.certificates(name)
        if allowed is not None:
            pinned = plan.pinned.get(name, frozenset())
            has = f"{name} with the certificate {', '.join(sorted(pinned))}" if pinned else f"{name} without a pin"
            remedy = "compare it with the neighbour, then netfleet pin DIR ITS-CERTIFICATE.pem"
            holds = bool(pinned & allowed)
            yield Finding("neighbours.fingerprints", holds, has, ", ".join(sorted(allowed)), remedy)


#: The rules for what the plan alone says.
RULES: tuple[Callable[[Policy, PlanFacts], Iterator[Finding]], ...] = (
    _method,
    _compression,
    _batch,
    _least_neighbours,
    _names,
    _fingerprints,
)


def plan_findings(policy: Policy, plan: PlanFacts) -> list[Finding]:
    """What every rule that is set says of a plan."""
    return [finding for rule in RULES for finding in rule(policy, plan)]


def privacy_findings(policy: Policy, budget: Budget | None, final: bool = False) -> Iterator[Finding]:
    """What the rules say of privacy; `final` if nothing more will be known of the budget before the first message."""
    rules, remedy = policy.privacy, "ask for a plan with a [privacy] table, or set required = false"
    if rules.required:
        has = "no differential privacy" if budget is None else "differential privacy"
        yield Finding("privacy.required", budget is not None, has, "plans with it only", remedy)
    if budget is None:
        return
    if rules.epsilon is not None and (final or budget.epsilon is not None):
        known = budget.epsilon is not None
        has = f"ε = {budget.epsilon:.4g} at this site" if known else "an ε that nobody can count here"
        holds = budget.epsilon is not None and budget.epsilon <= rules.epsilon
        yield Finding("privacy.epsilon", holds, has, f"at most {rules.epsilon:g}", "ask for more noise or fewer rounds")
    if rules.delta is not None:
        words = f"δ = {budget.delta:.4g}", f"at most {rules.delta:g}", "ask for a plan with a smaller delta"
        yield Finding("privacy.delta", budget.delta <= rules.delta, *words)


def data_findings(policy: Policy, data: DataFacts) -> Iterator[Finding]:
    """What the rules say of the site's own data."""
    rules = policy.data
    if rules.least_rows:
        words = f"{data.rows} training rows of this site", f"{rules.least_rows} or more", "take part with more rows"
        yield Finding("data.least_rows", data.rows >= rules.least_rows, *words)
    if rules.least_classes and data.classes is not None:
        has, allows = f"{data.classes} classes among this site's training rows", f"{rules.least_classes} or more"
        remedy = "take part with rows of more classes"
        yield Finding("data.least_classes", data.classes >= rules.least_classes, has, allows, remedy)


def enforce(in_force: PolicyInForce, findings: Iterable[Finding]) -> None:
    """Raise for the first rule that is broken, and say how many more there are."""
    broken = [finding for finding in findings if not finding.holds]
    if broken:
        more = f" (and {len(broken) - 1} more: netfleet policy check shows all)" if len(broken) > 1 else ""
        raise PolicyError(f"policy {in_force.path}, {broken[0]}{more}")
