"""What a rehearsal starts from: what sites measured and the operator says; for the rest this machine, and assumptions.

Each assumption is a note that the prediction shows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from netfleet.algorithms.base import Algorithm
from netfleet.compute.threads import available_threads
from netfleet.errors import ConfigError
from netfleet.problems.base import Problem
from netfleet.problems.own_loop import OWN_LOOP
from netfleet.runs.build import build_problem
from netfleet.sites.costs.rounds import ModelSize, rounds_of, size_of
from netfleet.sites.costs.speed import Speed, measure_saving, measure_speed
from netfleet.sites.rehearsal.data import RehearsalData, own_data, stand_in, trial_data
from netfleet.sites.rehearsal.exchange_cost import measure_exchange
from netfleet.sites.rehearsal.federation import Federation
from netfleet.sites.rehearsal.measurement import Measurement
from netfleet.sites.rehearsal.stand_in import Rows
from netfleet.sites.rehearsal.timeline import Link

#: Links that nobody measured: 100 Mbit/s with 20 ms for a request, and those between processes of one machine,
#: whose requests are in the measured cost of an exchange.
FAR, NEAR = Link(0.02, 100e6 / 8), Link(0.0, 300e6)


@dataclass(frozen=True)
class Known:
    """What is known beside the plan."""

    measured: Mapping[str, Measurement] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    step_seconds: Mapping[str, float] = field(default_factory=dict)
    link: Link = FAR  # where none was measured
    local: Link = NEAR  # the same between processes of one machine
    data: Path | None = None  # rows in place of the sites'
    parameters: int | None = None  # of the model, in loops of the sites' own
    gains: bool = True


@dataclass(frozen=True)
class Inputs:
    """All that a prediction is computed from."""

    size: ModelSize
    speeds: tuple[Speed, ...]
    links: Mapping[tuple[int, int], Link]
    rows: tuple[int | None, ...]
    data: RehearsalData | None  # None: gains are not predicted
    notes: tuple[str, ...]


def gather(federation: Federation, known: Known, algorithm: Algorithm) -> Inputs:
    rows, notes = _rows(federation, known), list[str]()
    data = _data(federation, known, rows, notes)
    problem = _problem(federation, data)
    size = _size(federation, known, problem)
    speeds = _speeds(federation, known, algorithm, problem, size, notes)
    links = _links(federation, known, notes)
    counts = [len(part) for part in data.problem.parts] if data is not None and data.source == "own" else []
    told = tuple(rows[name].count if name in rows else None for name in federation.names)
    return Inputs(size, speeds, links, tuple(counts) or told, data if known.gains else None, tuple(notes))


def _rows(federation: Federation, known: Known) -> dict[str, Rows]:
    """Training rows by site: as given, else as measured, else as planned."""
    found = {}
    for name in federation.names:
        measured = known.measured.get(name)
        count = known.rows.get(name) or (measured and measured.rows) or federation.rows.get(name)
        if count:
            found[name] = Rows(name, count, () if measured is None else measured.classes)
    return found


def _data(federation: Federation, known: Known, rows: Mapping[str, Rows], notes: list[str]) -> RehearsalData | None:
    """The rows to train on; a note says what they are, or why there are none."""
    experiment, names = federation.experiment, federation.names
    if experiment.problem["kind"] == OWN_LOOP:
        notes.append("No gains: the sites train with loops of their own, whose data and model are not known here.")
        return None
    if "data" not in experiment.problem:
        notes.append(f"No gains: problem.kind = {experiment.problem['kind']!r} has no rows.")
        return None
    found = own_data(experiment, names) if known.data is None else f"{known.data.name} is to be used"
    if isinstance(found, str):
        found = stand_in(experiment, names, rows, known.data, found)
    if isinstance(found, str):
        notes.append(f"No gains: {found}.")
        return None
    notes += [found.words] if known.gains else []
    return found


def _problem(federation: Federation, data: RehearsalData | None) -> Problem | None:
    """A problem of the right size and speed; None: nothing is known of it."""
    experiment, m = federation.experiment, len(federation.names)
    if data is not None:
        return data.problem
    if experiment.problem["kind"] == OWN_LOOP:
        return None
    if "data" in experiment.problem:
        return trial_data(experiment, federation.names)
    return build_problem(experiment.problem, m, experiment.seeds[0], experiment.engine)


def _size(federation: Federation, known: Known, problem: Problem | None) -> ModelSize:
    if problem is not None:
        return size_of(problem)
    if known.parameters is None:
        raise ConfigError("how large the sites' model is, is not known here; add --parameters N")
    return ModelSize((torch.Size((known.parameters,)),), dtype=getattr(torch, federation.experiment.engine.dtype))


def _speeds(
    federation: Federation,
    known: Known,
    algorithm: Algorithm,
    problem: Problem | None,
    size: ModelSize,
    notes: list[str],
) -> tuple[Speed, ...]:
    """Of each site: as given, else as measured there, else as here."""
    own = {name: each.speed for name, each in known.measured.items() if each.speed is not None}
    others = [name for name in federation.names if name not in own]
    here = _speed_here(federation, known, algorithm, problem, size, others) if others else None
    if here is not None:
        where = "Nobody" if len(others) == len(federation.names) else f"None of {', '.join(others)}"
        step = f"a local step {_ms(here.step)}, " if here.step else ""
        notes.append(
            f"{where} has measured speeds; those of this machine: {step}in a round {_ms(here.save)} for "
            f"writing and {_ms(here.exchange)} for each neighbour."
        )
    factor = _sharing(federation, notes)
    found = []
    for name in federation.names:
        speed = own.get(name, here)
        assert speed is not None
        slower = Speed(*(factor * seconds for seconds in asdict(speed).values()))
        found.append(replace(slower, step=known.step_seconds.get(name, slower.step)))
    return tuple(found)


def _speed_here(
    federation: Federation,
    known: Known,
    algorithm: Algorithm,
    problem: Problem | None,
    size: ModelSize,
    names: Sequence[str],
) -> Speed:
    degree = max(len(federation.topology.neighbours(i)) for i in range(len(federation.names)))
    folder, made = federation.folder, rounds_of(algorithm, size, federation.experiment.rounds)
    besides = Speed(0.0, measure_saving(made, degree, folder), exchange=measure_exchange(folder))
    if problem is not None:
        return measure_speed(problem.at([0]), algorithm, made, federation.experiment.evaluation, besides)
    if unknown := [name for name in names if name not in known.step_seconds]:
        raise ConfigError(f"how long a local step takes at {unknown[0]} is not known here; add --step-seconds S")
    return besides


def _sharing(federation: Federation, notes: list[str]) -> float:
    """How much slower each process is in a trial, where all sites share this machine's cores and disk."""
    m, cores = len(federation.names), available_threads()
    if not federation.on_one_machine or m <= cores:
        return 1.0
    notes.append(f"All sites are on this machine: {m} processes share {cores} cores and a disk.")
    return m / cores


def _links(federation: Federation, known: Known, notes: list[str]) -> dict[tuple[int, int], Link]:
    """Both ends may have measured a link; the slower of the two counts."""
    default, found, missing = known.local if federation.on_one_machine else known.link, dict[tuple[int, int], Link](), 0
    for i, j in federation.links:
        ends = [(federation.names[i], federation.names[j]), (federation.names[j], federation.names[i])]
        seen = [known.measured[a].links[b] for a, b in ends if a in known.measured and b in known.measured[a].links]
        missing += not seen
        found[i, j] = Link(max(link.latency for link in seen), min(link.rate for link in seen)) if seen else default
    if missing:
        request = f", and {_ms(default.latency)} for a request" if default.latency else ""
        assumed = f"{8e-6 * default.rate:.4g} Mbit/s{request}"
        notes.append(f"Assumed for {missing} of {len(found)} links, which nobody measured: {assumed}.")
    return found


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
