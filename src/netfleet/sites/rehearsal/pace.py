"""What sets the pace of the rounds, and what rounds of limited time change."""

from collections.abc import Sequence
from dataclasses import dataclass

from netfleet.algorithms.base import Algorithm
from netfleet.errors import ConfigError
from netfleet.runs.config import Experiment
from netfleet.runs.requirements import check_time_box
from netfleet.runs.time_box import TimeBox
from netfleet.sites.costs.rounds import ModelSize, Rounds, rounds_of
from netfleet.sites.costs.speed import Speed, steps_in
from netfleet.sites.rehearsal.inputs import Inputs
from netfleet.sites.rehearsal.timeline import timeline

#: How much slower than the next one a site must be to be named, and than the fastest to propose a time box.
_SLOWER = 1.2
#: Rounds from which another pace is read.
_TRIAL = 60


@dataclass(frozen=True)
class SlowSite:
    """The site that sets the pace, and the seconds of a round if it were as fast as the next slowest."""

    name: str
    otherwise: float


@dataclass(frozen=True)
class BoxPrediction:
    """Rounds with and without `[time_box]`: the plan's, or one in which half of the sites take all their steps."""

    seconds: float  # of the box
    planned: bool  # whether the plan has it
    round: float  # seconds of a round with it
    without: float
    steps: tuple[int, ...]  # of each site in a round with it


def plans_of(algorithm: Algorithm, size: ModelSize, rounds: int, steps: Sequence[int] | None, m: int) -> list[Rounds]:
    """The rounds of each site, with its number of local steps."""
    counts: Sequence[int | None] = [None] * m if steps is None else steps
    made = {count: rounds_of(algorithm, size, rounds, count) for count in dict.fromkeys(counts)}
    return [made[count] for count in counts]


def slow_site(experiment: Experiment, names: Sequence[str], inputs: Inputs, plans: Sequence[Rounds]) -> SlowSite | None:
    """The site that alone is slower than all others, if there is one that matters."""
    works = [speed.computing(plan) + speed.save for plan, speed in zip(plans, inputs.speeds, strict=True)]
    order = sorted(range(len(names)), key=lambda i: -works[i])
    if len(order) < 2 or works[order[0]] < _SLOWER * works[order[1]]:
        return None
    slowest, following = order[:2]
    speeds = [inputs.speeds[following if i == slowest else i] for i in range(len(names))]
    same = [plans[following if i == slowest else i] for i in range(len(names))]
    before, after = (_pace(experiment, inputs, made, given) for made, given in ((plans, inputs.speeds), (same, speeds)))
    return SlowSite(names[slowest], after) if after < 0.95 * before else None


def _pace(experiment: Experiment, inputs: Inputs, plans: Sequence[Rounds], speeds: Sequence[Speed]) -> float:
    rounds = min(experiment.rounds, _TRIAL)
    return timeline(plans, speeds, inputs.links, rounds, experiment.evaluation.every).pace


def predict_box(experiment: Experiment, algorithm: Algorithm, inputs: Inputs) -> BoxPrediction | None:
    """What the plan's time box changes, or one that it could have; None: there is nothing to gain, or no box."""
    box, m = experiment.time_box or _possible(algorithm, inputs.speeds), len(inputs.speeds)
    if box is None:
        return None
    steps = steps_in(box, algorithm, inputs.speeds)
    boxed, free = (
        _pace(experiment, inputs, plans_of(algorithm, inputs.size, experiment.rounds, counts, m), inputs.speeds)
        for counts in (steps, None)
    )
    if experiment.time_box is None and boxed > 0.9 * free:
        return None
    return BoxPrediction(box.seconds, experiment.time_box is not None, boxed, free, steps)


def _possible(algorithm: Algorithm, speeds: Sequence[Speed]) -> TimeBox | None:
    """A box in which half of the sites take all K steps, where sites are unequal and the method can have one."""
    times = sorted(speed.step for speed in speeds)
    if times[-1] < _SLOWER * times[0]:
        return None
    try:
        K = check_time_box(algorithm, TimeBox(seconds=1.0), len(speeds), by_clock=True)
    except ConfigError:
        return None
    return TimeBox(seconds=float(f"{1.05 * K * times[(len(times) - 1) // 2]:.2g}"))
