"""How long a site may train: its privacy budget is the smaller one of the plan's and of its policy's."""

from dataclasses import replace

from netfleet.privacy.build import rounds_allowed
from netfleet.privacy.settings import Privacy
from netfleet.problems.base import Problem
from netfleet.sites.policy.settings import PrivacyRules


def site_budget(privacy: Privacy | None, rules: PrivacyRules) -> Privacy | None:
    """The plan's privacy with the ε that this site may spend.

    What a plan would spend was held against the policy before. This is for what comes on top: a training from scratch
    and a return are counted with all that the site has spent in earlier ones.
    """
    if privacy is None or privacy.clip is None or rules.epsilon is None:
        return privacy
    return replace(privacy, epsilon=min(rules.epsilon, privacy.epsilon or rules.epsilon))


def last_round(problem: Problem, privacy: Privacy | None, rounds: int, first: int) -> int:
    """The round after which the budget ends, `rounds` if it does not; raises if it allows no round at all.

    A site that has begun does not fail, but leaves: its neighbours wait for it.
    """
    if first == 0 or privacy is None or privacy.epsilon is None:
        return rounds_allowed(problem, privacy, rounds)
    assert problem.spending is not None
    return max(first, problem.spending.rounds_within(privacy.epsilon, first))
