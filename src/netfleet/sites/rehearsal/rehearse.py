"""From a plan, and what is known of its sites, to a prediction."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from netfleet.algorithms.base import Algorithm
from netfleet.algorithms.build import make_algorithm
from netfleet.errors import DivergedError
from netfleet.runs.progress import Display
from netfleet.sites.costs.rounds import Rounds
from netfleet.sites.costs.sizes import sizes_of
from netfleet.sites.costs.speed import steps_in, timed
from netfleet.sites.rehearsal.federation import Federation
from netfleet.sites.rehearsal.gain import Gain, predict_gains
from netfleet.sites.rehearsal.inputs import Inputs, Known, gather
from netfleet.sites.rehearsal.pace import plans_of, predict_box, slow_site
from netfleet.sites.rehearsal.results import Rehearsal, SitePrediction
from netfleet.sites.rehearsal.timeline import Timeline, timeline


def rehearse(federation: Federation, known: Known, display: Display) -> Rehearsal:
    """Predict; the progress of trainings that are simulated goes to the display."""
    experiment = federation.experiment
    (run,) = experiment.runs()
    algorithm = make_algorithm(run.config["algorithm"])
    inputs = gather(federation, known, algorithm)
    steps = None if experiment.time_box is None else steps_in(experiment.time_box, algorithm, inputs.speeds)
    plans = plans_of(algorithm, inputs.size, experiment.rounds, steps, len(federation.names))
    times = timeline(plans, inputs.speeds, inputs.links, experiment.rounds, experiment.evaluation.every)
    gains, diverged = _gains(federation, algorithm, inputs, steps, display)
    path = times.path
    return Rehearsal(
        run=federation.run,
        name=experiment.name,
        method=run.label,
        rounds=experiment.rounds,
        seconds=times.seconds,
        round_seconds=times.pace,
        computing=sum(path.computing.values()) / path.total,
        saving=sum(path.saving.values()) / path.total,
        messages=sum(path.links.values()) / path.total,
        slow=slow_site(experiment, federation.names, inputs, plans),
        box=predict_box(experiment, algorithm, inputs),
        sites=_sites(federation, inputs, plans, times, gains),
        data="" if inputs.data is None or not any(gains) else inputs.data.source,
        assumptions=(*inputs.notes, *diverged),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _gains(
    federation: Federation, algorithm: Algorithm, inputs: Inputs, steps: Sequence[int] | None, display: Display
) -> tuple[Sequence[Gain | None], list[str]]:
    """The gain of each site, or why there is none."""
    none = [None] * len(federation.names)
    if inputs.data is None:
        return none, []
    box = federation.experiment.time_box
    simulated = replace(
        federation.experiment,
        time_box=None if box is None else timed(box, inputs.speeds),
        engine=replace(federation.experiment.engine, kind="simulator", device="cpu"),
    )
    try:
        return predict_gains(simulated, algorithm, inputs.data, federation.topology, steps, display), []
    except DivergedError as error:
        return none, [f"No gains: {error}"]


def _sites(
    federation: Federation,
    inputs: Inputs,
    plans: Sequence[Rounds],
    times: Timeline,
    gains: Sequence[Gain | None],
) -> tuple[SitePrediction, ...]:
    rounds, every = federation.experiment.rounds, federation.experiment.evaluation.every
    found = []
    for i, name in enumerate(federation.names):
        plan, speed, degree = plans[i], inputs.speeds[i], len(federation.topology.neighbours(i))
        works = [work for each in plan.cycle for work in each.work]
        exchanged = degree * sum(sum(plan.at(t).bytes) for t in range(-1, rounds))  # W is symmetric, so both ways
        found.append(
            SitePrediction(
                name=name,
                rows=inputs.rows[i],
                step_seconds=speed.step,
                steps=sum(work.steps for work in works) / len(plan.cycle),
                computing=speed.computing(plan),
                saving=speed.save + speed.evaluation / every,
                sent=exchanged,
                received=exchanged,
                disk=sizes_of(plan, degree, rounds, federation.keep).disk,
                pace=(times.path.computing.get(i, 0.0) + times.path.saving.get(i, 0.0)) / times.path.total,
                gain=gains[i],
            )
        )
    return tuple(found)
