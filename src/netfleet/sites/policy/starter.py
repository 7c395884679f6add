"""A first policy for a site: every rule with its meaning, filled in so that the plan in the folder keeps it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from netfleet.errors import PolicyError
from netfleet.files import write_atomically

if TYPE_CHECKING:
    from netfleet.sites.policy.accountant import Budget
    from netfleet.sites.policy.rules import PlanFacts

_TEXT = """\
# What this site allows. The site owns this file; no plan can change it. A rule that is left out allows everything.
# netfleet policy check FOLDER shows what each rule says of the plan; docs/sites.md explains them.

[privacy]
required = {required:<21} # true: refuse every plan without differential privacy
{epsilon:<32} # the most that this site may spend in a plan
{delta}

[training]
methods = {methods}
compression = {compression}
least_batch = {batch}

[neighbours]
least = {least}                        # with one neighbour alone, that one can compute each of this site's gradients
names = {names}

# [neighbours.fingerprints]      # SHA-256 of their certificates, from netfleet pin FOLDER; left out: those pinned there
# {example} = ["…"]

[code]
approved = false                 # true: run only what netfleet approve FOLDER has shown to you

[data]
least_rows = 0                   # training rows of this site
least_classes = 0                # classes among them

[show]
scores_to_neighbours = false     # accuracy and losses in the status
scores_to_operator = true
sketches_to_operator = true      # random sums of y − g, with which the operator checks that all sites' sum is 0
model_to_joining = true          # a neighbour that joins or rejoins takes this site's model
metrics = true                   # netfleet node --metrics
scores_in_model = true           # the last scores, in model.safetensors
model_to_others = true           # netfleet evaluate: this site's joint model at other sites
alone_model_to_others = false    # and the model that it trained alone, on its own rows only
evaluation_to_operator = {evaluation:<8}# scores of all models on this site's test rows, for the table of all sites
least_test_rows = 10             # with fewer test rows these scores are not given
"""


@dataclass(frozen=True)
class Allowed:
    """What a first policy allows: only this method, with batches of this size or larger, and only these neighbours."""

    method: str
    names: tuple[str, ...]
    least: int
    batch: int = 0
    compression: bool = False
    budget: Budget | None = None


def starting_policy(plan: PlanFacts) -> str:
    """The text of a policy that the plan keeps."""
    names, compression = plan.neighbours, plan.compression is not None
    return policy_text(Allowed(plan.method, names, len(names), plan.batch or 0, compression, plan.budget))


def policy_text(allowed: Allowed) -> str:
    budget = allowed.budget
    return _TEXT.format(
        required="false" if budget is None else "true",
        epsilon="# epsilon = 8.0" if budget is None or budget.epsilon is None else f"epsilon = {budget.epsilon!r}",
        delta="# delta = 1e-5" if budget is None else f"delta = {budget.delta!r}",
        methods=_list([allowed.method]),
        compression="true" if allowed.compression else "false",
        batch=allowed.batch,
        evaluation="true" if budget is None else "false",
        least=allowed.least,
        names=_list(allowed.names),
        example=next(iter(allowed.names), "hospital-b"),
    )


def write_starting_policy(path: Path, plan: PlanFacts) -> None:
    """Write it to a file that does not exist yet."""
    if path.exists() or path.is_symlink():
        raise PolicyError(f"{path} already exists; edit it, or remove it first")
    write_atomically(path, lambda file: file.write(starting_policy(plan).encode()))


def _list(values: Iterable[str]) -> str:
    return json.dumps(list(values), ensure_ascii=False)
