"""On which rows a rehearsal trains: the sites' own where all are on this machine, else a stand-in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from netfleet.data import Dataset, load_dataset
from netfleet.data.sites import holds_own_data
from netfleet.errors import DataError, NetfleetError
from netfleet.problems.module import ModuleProblem
from netfleet.registry import Spec, split
from netfleet.runs.build import build_problem
from netfleet.runs.config import Experiment
from netfleet.sites.rehearsal.stand_in import AUROC, NEEDED, Rows, can_stand_in, dealt_out, made_up

#: Training rows of each site where only the model's size and speed matter.
_TRIAL_ROWS = 100
Source = Literal["own", "file", "made up"]


@dataclass(frozen=True)
class RehearsalData:
    """The problem of all sites without weights, with a validation part and without one, and what it rests on."""

    problem: ModuleProblem
    tested: ModuleProblem  # whose test rows are the plan's
    source: Source
    words: str


def own_data(experiment: Experiment, names: Sequence[str]) -> RehearsalData | str:
    """The sites' own rows, or why they are not here."""
    spec, each = experiment.problem["data"], False
    try:
        each = ":" in split(spec, "data source")[0] and holds_own_data(spec)
        dataset = _loaded(spec, names if each else None)
    except NetfleetError as error:
        return f"the sites' own rows are not on this machine: {str(error).split(';')[0]}"
    partition = "sites" if each else experiment.problem["partition"]
    words = "The sites' own rows are on this machine, and gains are of these."
    return _built(experiment, len(names), dataset, "own", words, partition)


def stand_in(
    experiment: Experiment, names: Sequence[str], rows: Mapping[str, Rows], file: Path | None, why: str
) -> RehearsalData | str:
    """Rows of a file, or made-up ones, or why there are none; `why` says why they are not the sites' own."""
    if file is None and not can_stand_in(experiment):
        return f"{why}, and the plan does not say how to make rows up: it needs declared columns, or {NEEDED}"
    if missing := [name for name in names if name not in rows]:
        return f"{why}, and how many rows {', '.join(missing)} have is not known; add --rows {missing[0]}=N"
    sites, seed = [rows[name] for name in names], experiment.seeds[0]
    if file is None:
        dataset = made_up(experiment, sites, seed)
        words = (
            f"Gains are of made-up rows ({why}). One relation holds at all sites, by which two classes could be told "
            f"apart with an AUROC of {AUROC}. So they show what the numbers of rows are worth, and nothing of the "
            f"sites' real data."
        )
        return _built(experiment, len(names), dataset, "made up", words)
    dataset = dealt_out(experiment, file, sites, seed)
    words = f"Gains are of the rows of {file.name}, dealt out at random: how the sites' data differ is not in them."
    if dataset.rows < 0.95 * sum(site.count for site in sites):
        words += f" It has {dataset.rows} training rows, fewer than the sites, so each site has its share of these."
    return _built(experiment, len(names), dataset, "file", words)


def trial_data(experiment: Experiment, names: Sequence[str]) -> ModuleProblem | None:
    """A problem of the right size and speed for rows that nobody has told the number of; None: it cannot be made."""
    if not can_stand_in(experiment):
        return None
    dataset = made_up(experiment, [Rows(name, _TRIAL_ROWS) for name in names], experiment.seeds[0])
    return _built(experiment, len(names), dataset, "made up", "").problem


def _loaded(spec: Spec, names: Sequence[str] | None) -> Dataset:
    """The rows that a source has; with names, what a function of somebody's returns at each of these sites."""
    try:
        return load_dataset(spec, None if names is None else {"kind": "sites", "names": list(names)})
    except NetfleetError:
        raise
    except Exception as error:  # a function on a machine for which it was not written
        raise DataError(f"{split(spec, 'data source')[0]}: {type(error).__name__}: {error}") from None


def _built(
    experiment: Experiment, workers: int, dataset: Dataset, source: Source, words: str, partition: Spec = "sites"
) -> RehearsalData:
    table = {**experiment.problem, "weights": "equal", "data": dataset, "partition": partition}
    engine, seed = replace(experiment.engine, device="cpu"), experiment.seeds[0]
    problem = tested = build_problem(table, workers, seed, engine)
    if experiment.problem.get("validation"):  # which takes the place of the test rows
        tested = build_problem({**table, "validation": 0.0}, workers, seed, engine)
    assert isinstance(problem, ModuleProblem)
    assert isinstance(tested, ModuleProblem)
    return RehearsalData(problem, tested, source, words)
