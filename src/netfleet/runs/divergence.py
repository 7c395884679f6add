"""When a run that stayed finite has diverged all the same: its last evaluation is far from where it started.

The rule: the loss of x̄ or the consensus error is, in the last evaluation, above FACTOR times the run's unit. The unit
is the largest of 1, the loss of x̄ and ‖x̄ − x*‖² before the first round, so a problem in large units is not mistaken
for a diverging run; the consensus error itself starts at 0 and gives no unit.

Only the end counts. Large steps can throw the workers far apart before they contract again, and such a run may still
learn: what it ends with is its result. Runs that `reproduce/` stores as sound end 70 times below the limit or lower.
"""

from collections.abc import Sequence

from netfleet.algorithms import Algorithm
from netfleet.runs.history import Record

FACTOR = 1e6
JUDGED = {"loss": "the loss of x̄", "consensus_error": "the consensus error"}


def divergence(records: Sequence[Record], algorithm: Algorithm) -> str | None:
    """What to say of a run whose values have blown up by its last record; None if they have not."""
    if not records:
        return None
    first, last = records[0], records[-1]
    limit = FACTOR * max(1.0, *(abs(first.get(name) or 0.0) for name in ("loss", "distance2")))
    for name, words in JUDGED.items():
        if (value := last.get(name) or 0.0) > limit:
            t = last["round"]
            eta = algorithm.step_size(max(t - 1, 0))
            return (
                f"{algorithm.title} diverged: {words} is {value:.1e} after round {t} with step size {eta:g}, "
                f"above {limit:.1e}, {FACTOR:g} times what the run started with. {algorithm.remedy_if_diverged}"
            )
    return None
