"""What Python calls: `run`, `simulate` and `load_runs`; `run_experiment` makes all runs, as on the command line."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from netfleet.engines import processes
from netfleet.environment import speaks
from netfleet.errors import ConfigError, DivergedError
from netfleet.registry import make_importable, shown
from netfleet.runs import checkpoint, config
from netfleet.runs.arguments import (
    EnginePart,
    EvaluationPart,
    Method,
    Methods,
    NetworkPart,
    Parts,
    PrivacyPart,
    ProblemPart,
    TimeBoxPart,
    TopologyPart,
    make_experiment,
    unnamed_metrics,
)
from netfleet.runs.build import Objects, Settings
from netfleet.runs.compare import load_histories
from netfleet.runs.config import Experiment
from netfleet.runs.history import History, to_dataframe
from netfleet.runs.progress import progress_display
from netfleet.runs.results import Results
from netfleet.runs.run import run_experiment, write_report_files
from netfleet.track import Tracker
from netfleet.track.following import TrackPart, divide, resolve_trackers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pandas

FolderPath = str | os.PathLike[str]


def run(
    algorithms: Methods | Experiment | FolderPath = "net-fleet",
    *,
    topology: TopologyPart | None = None,
    problem: ProblemPart | None = None,
    workers: int | None = None,
    rounds: int | None = None,
    seeds: int | Iterable[int] | None = None,
    evaluation: EvaluationPart | None = None,
    engine: EnginePart | None = None,
    network: NetworkPart | None = None,
    privacy: PrivacyPart | None = None,
    time_box: TimeBoxPart | None = None,
    checkpoint_every: int | None = None,
    out: FolderPath | None = None,
    resume: bool = False,
    overwrite: bool = False,
    track: TrackPart | Iterable[TrackPart] | None = None,
    progress: bool | None = None,
) -> Results:
    """Run several methods with several seeds, as `netfleet run` does, and return their histories as `Results`.

    First come the methods (one or a list), an `Experiment`, or the path of an experiment file (.toml). Each part is an
    object, a name, or a table as in an experiment file; what is left out is as in `simulate`. Methods of one name are
    told apart by what differs: "NET-FLEET, K = 5".

        >>> results = run(["net-fleet", {"kind": "dsgd", "eta": 0.05}], topology="ring", workers=4,
        ...               problem="quadratics", rounds=5, seeds=2)
        >>> [history.label for history in results]
        ['NET-FLEET', 'DSGD', 'NET-FLEET', 'DSGD']

    `seeds` is how many there are, from 0 on, or a list of them. A seed determines a graph, split, initial model and
    mini-batches that are given by name or table. A `Problem` is the same for all seeds, its mini-batches too, so
    several seeds need a function that makes it: `problem=lambda seed: nf.make_problem(…, seed=seed)`. It is called with
    those of `workers`, `seed`, `dtype`, `device`, `threads` and `gradients` that it names.

    - `out` is a folder for the runs, `curves.png`, `report.html`, and `experiment.toml` if all parts are names, tables
      or objects that a file can say. Runs that are there already are completed with `resume`, or deleted with
      `overwrite`. A resumed run gives bit-identical results, and may have more rounds. All else must be as it was:
      a `Topology` is recognised by its W, a `Problem` by its public attributes, a function by its name alone.
    - A run that diverges is marked (`history.diverged`) and the others continue.
    - Ctrl-C raises a KeyboardInterrupt whose `histories` are the runs so far.
    - `track` gives every record to a tracker too: `"tensorboard"`, `"mlflow"`, `"wandb"` (offline), a table, an object
      with `begin`, `record` and `end` (`netfleet.track.Tracker`), a function of (run, round, values), or a list.
    - `progress` shows a bar on stderr or in the notebook; by default in a terminal and in a notebook only.
    """
    folder = _folder(out, resume, overwrite)
    parts: dict[str, Any] = {"topology": topology, "problem": problem, "workers": workers, "rounds": rounds}
    parts |= {"seeds": seeds, "evaluation": evaluation, "engine": engine, "network": network}
    parts |= {"privacy": privacy, "time_box": time_box, "checkpoint_every": checkpoint_every}
    given = {name: part for name, part in parts.items() if part is not None}
    if isinstance(algorithms, Experiment | os.PathLike) or _is_file(algorithms):
        experiment = _known_experiment(algorithms, given)
        objects = Objects(metrics=unnamed_metrics(experiment.evaluation))
    else:
        experiment, objects = make_experiment(Parts(algorithms, **given), _name(folder))
    experiment, trackers = _tracked(experiment, track)
    results = _make(experiment, objects, folder, resume, overwrite, progress, trackers)
    if folder is not None and speaks():
        write_report_files(experiment, results.histories, results.settings, folder)
    return results


def simulate(
    algorithm: Method = "net-fleet",
    *,
    topology: TopologyPart = "erdos-renyi",
    problem: ProblemPart = "classification",
    workers: int | None = None,
    rounds: int = 100,
    seed: int = 0,
    evaluation: EvaluationPart | None = None,
    engine: EnginePart | None = None,
    network: NetworkPart | None = None,
    privacy: PrivacyPart | None = None,
    time_box: TimeBoxPart | None = None,
    checkpoint_every: int = 50,
    out: FolderPath | None = None,
    resume: bool = False,
    overwrite: bool = False,
    track: TrackPart | Iterable[TrackPart] | None = None,
    progress: bool | None = None,
) -> History:
    """Train once and return the History. Each part is an object, a name, or a table as in an experiment file.

    `history.final.state.x` are the workers' models `[m, d]`, and a `ModuleProblem`'s `module(x)` makes one of them an
    `nn.Module` again. There are 20 workers unless the topology, the problem or `workers` says otherwise.

        >>> history = simulate("net-fleet", topology="ring", workers=4, problem="quadratics", rounds=5)
        >>> history.last["round"]
        5

    This is `run` with one method and one seed, and without a report: `out`, `resume`, `overwrite`, `track` and
    `progress` are the same. It raises `DivergedError` at the first non-finite value, and at the end if values have
    blown up (`runs/divergence.py`). This error, like the KeyboardInterrupt of Ctrl-C, has a `history`: the records so
    far, and in the simulator as `history.final` the last good state.
    """
    folder = _folder(out, resume, overwrite)
    settings = (workers, rounds, [seed], evaluation, engine, network, privacy, time_box, checkpoint_every)
    experiment, objects = make_experiment(Parts([algorithm], topology, problem, *settings), _name(folder))
    experiment, trackers = _tracked(experiment, track)
    (history,) = _make(experiment, objects, folder, resume, overwrite, progress, trackers)
    if history.diverged:
        raise DivergedError(history.diverged, history)
    return history


def load_runs(*folders: FolderPath) -> pandas.DataFrame:
    """All runs in one or more folders and below them as one tidy frame (needs `pip install netfleet[pandas]`).

    A row is an evaluation: the method's `kind` and `label`, the `seed`, the `round`, every measured column, and the
    `folder` of the run. The folders are those of `run` or `netfleet run`, `sweep` or `tune`, or of single runs.
    """
    if not folders:
        raise ConfigError('load_runs() got no folder; give one or more, such as load_runs("runs/ring")')
    return to_dataframe(load_histories([_path(folder, "a folder of runs") for folder in folders]))


def _tracked(experiment: Experiment, given: TrackPart | Iterable[TrackPart] | None) -> tuple[Experiment, list[Tracker]]:
    """The experiment with the trackers that a file could name, and the others; None: those of the experiment."""
    if given is None:
        return experiment, []
    specs, objects = divide(given)
    return replace(experiment, track=resolve_trackers(specs)), objects


def _make(
    experiment: Experiment,
    objects: Objects,
    out: Path | None,
    resume: bool,
    overwrite: bool,
    show: bool | None,
    trackers: Sequence[Tracker],
) -> Results:
    settings, runs, engine = Settings(experiment, objects=objects), experiment.runs(), experiment.engine
    with processes(engine.kind, engine.device), progress_display(show, len(runs)) as display:
        options = {"resume": resume, "overwrite": overwrite}
        histories = run_experiment(experiment, out, display=display, settings=settings, trackers=trackers, **options)
    if engine.kind != "distributed":
        for history, each in zip(histories, runs, strict=True):
            if history.final is None and history.folder is not None and checkpoint.exists(history.folder):
                state = settings.algorithm(each).State  # the run was complete already
                history.final = checkpoint.load(history.folder, history.hash, state, torch.device(engine.device))
    return Results(histories, experiment, settings)


def _is_file(given: object) -> bool:
    return isinstance(given, str) and given.endswith(".toml")


def _known_experiment(given: object, parts: Mapping[str, object]) -> Experiment:
    """An experiment that is complete: its file, or the object."""
    if parts:
        advice = 'leave that out, or change the experiment: nf.load_experiment("my.toml", ["rounds=50"])'
        raise ConfigError(f"the experiment has its own {', '.join(parts)}; {advice}")
    if isinstance(given, Experiment):
        checked = config.experiment(config.without_none(given.to_table()))
        return replace(checked, evaluation=given.evaluation)  # whose metrics may be functions
    path = _path(given, "an experiment file")
    make_importable(str(path))
    return config.load_experiment(path)


def _folder(out: object, resume: bool, overwrite: bool) -> Path | None:
    """The folder of `out`, and whether it goes with the other options."""
    if resume and overwrite:
        raise ConfigError("resume=True completes the runs in the folder and overwrite=True deletes them; give one")
    if out is None:
        if resume or overwrite:
            name = "resume" if resume else "overwrite"
            raise ConfigError(f'{name}=True is about the runs in a folder, and out is not given; add out="runs/…"')
        return None
    path = _path(out, "out, the folder of the runs,")
    if path.exists() and not path.is_dir():
        raise ConfigError(f"out must be a folder, and {str(path)!r} is a file; choose another name")
    return path


def _path(given: object, what: str) -> Path:
    if not isinstance(given, str | os.PathLike) or not str(given):
        raise ConfigError(f'{what} must be a path, got {shown(given)}; give a text such as "runs/ring"')
    return Path(given)


def _name(folder: Path | None) -> str:
    return "experiment" if folder is None else folder.resolve().name or "experiment"
