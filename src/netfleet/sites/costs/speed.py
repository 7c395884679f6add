"""How long a site takes for a round: measured on this machine, with the plan's method on the site's problem."""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import mean

import torch

from netfleet.algorithms.base import Algorithm
from netfleet.compute.threads import one_intra_op_thread
from netfleet.engines.job import Job, Snapshot
from netfleet.engines.loop import train
from netfleet.errors import DivergedError
from netfleet.files import append_line
from netfleet.problems.base import Problem
from netfleet.runs import checkpoint
from netfleet.runs.config import Evaluation
from netfleet.runs.metrics import measure
from netfleet.runs.requirements import check_time_box
from netfleet.runs.time_box import TimeBox
from netfleet.sites.costs.rounds import Rounds
from netfleet.sites.costs.sizes import sizes_of
from netfleet.sites.runtime.alone import AloneHost

#: Seconds that a measurement of one thing takes at least, unless so many repeats are faster.
SPAN, REPEATS = 0.5, 50
#: The largest checkpoint that is written to measure the disk; a larger one takes in proportion.
_MOST = 64 << 20


@dataclass(frozen=True)
class Speed:
    """How long things take at a site, in seconds."""

    step: float  # a local step: the gradient of a mini-batch, and the method's own arithmetic
    save: float = 0.0  # writing the state and the record, every round
    evaluation: float = 0.0
    whole: float = 0.0  # a gradient over all rows, for methods that need it
    exchange: float = 0.0  # of an exchange, for each neighbour: signatures, checks, TLS, the record

    def seconds(self, steps: int, passes: int) -> float:
        return steps * self.step + passes * self.whole

    def computing(self, rounds: Rounds) -> float:
        """Of a round, in the mean."""
        return sum(self.seconds(*work) for made in rounds.cycle for work in made.work) / len(rounds.cycle)


def timed(box: TimeBox, speeds: Sequence[Speed]) -> TimeBox:
    """The time box with the sites' speeds, as the simulator needs it."""
    return replace(box, step_seconds=tuple(speed.step for speed in speeds))


def steps_in(box: TimeBox, algorithm: Algorithm, speeds: Sequence[Speed]) -> tuple[int, ...]:
    """The local steps of each site in a round of limited time."""
    known = timed(box, speeds)
    K = check_time_box(algorithm, known, len(speeds))
    return tuple(known.steps(i, K) for i in range(len(speeds)))


def measure_speed(
    problem: Problem, algorithm: Algorithm, rounds: Rounds, evaluation: Evaluation, besides: Speed
) -> Speed:
    """The speed of one site's problem here; `besides` has what does not depend on the problem."""
    host = AloneHost(problem)
    with one_intra_op_thread():
        final = _train(host, algorithm, 0)
        evaluated = _seconds(lambda: measure(final, host, evaluation))
    step, whole = measure_steps(problem, algorithm, rounds)
    return replace(besides, step=step, evaluation=evaluated, whole=whole)


def measure_steps(problem: Problem, algorithm: Algorithm, rounds: Rounds, span: float = SPAN) -> tuple[float, float]:
    """Seconds of a local step, and of a gradient over all rows (0: the method needs none). Nothing is kept of them."""
    works, x = [work for each in rounds.cycle for work in each.work], problem.start()[None]
    with one_intra_op_thread():
        whole = _seconds(lambda: problem.full_grad(x), span) if any(work.passes for work in works) else 0.0
        gradient = _seconds(lambda: problem.grad(x, problem.sample(0, 1)), span)
        if gradient * sum(work.steps for work in works) > span * len(rounds.cycle):
            return gradient, whole  # of such a model, and in a round that is so long, that is nearly all
        return _seconds_per_step(AloneHost(problem), algorithm, rounds, whole, span) or gradient, whole


def measure_saving(rounds: Rounds, neighbours: int, folder: Path) -> float:
    """What a site writes in a round, on the disk of this folder: its checkpoint and the lines of its record."""
    sizes = sizes_of(rounds, neighbours, 1, 1)
    part, line = torch.zeros(min(sizes.checkpoint, _MOST), dtype=torch.uint8), "0" * sizes.record
    with tempfile.TemporaryDirectory(prefix=".rehearsal-", dir=folder) as place:
        numbers = count()

        def save() -> None:
            for _ in range(2):  # what is sent, and what came
                append_line(Path(place) / "record", line[: len(line) // 2])
            number = next(numbers)
            checkpoint.write_tensors(Path(place) / f"{number % 2}.safetensors", {"state": part}, {})
            checkpoint.write_tensors(Path(place) / "manifest", {"state": part[:1]}, {})

        return _seconds(save) * max(sizes.checkpoint / _MOST, 1.0)


def _train(host: AloneHost, algorithm: Algorithm, rounds: int) -> Snapshot:
    return train(host, Job(host.problem, host.network, algorithm, rounds))


def _seconds_per_step(host: AloneHost, algorithm: Algorithm, rounds: Rounds, whole: float, span: float) -> float | None:
    """From rounds of the training loop, so the method's own arithmetic is in it; None: its first rounds diverge."""
    done, taken = 1, list[tuple[int, float]]()
    try:
        while done < 1 << 16 and (not taken or taken[-1][1] < span):
            taken.append((done, _train(host, algorithm, done).seconds))
            done *= 2
    except DivergedError:  # with the model of one site
        pass
    if not taken:
        return None
    done, seconds = taken[-1]
    works = [work for t in range(done) for work in rounds.at(t).work]
    steps, passes = sum(work.steps for work in works), sum(work.passes for work in works)
    return max((seconds - passes * whole) / max(steps, 1), 1e-9)


def _seconds(act: Callable[[], object], span: float = SPAN) -> float:
    """The mean of some repeats, after one that does not count."""
    act()
    taken = list[float]()
    while not taken or (sum(taken) < span and len(taken) < REPEATS):
        began = time.perf_counter()
        act()
        taken.append(time.perf_counter() - began)
    return mean(taken)
