"""From an experiment to its histories and its report."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import networkx as nx
import tomli_w
import torch

from netfleet.algorithms import Algorithm
from netfleet.algorithms.build import make_algorithm
from netfleet.engines import ENGINES, Start, collective_of
from netfleet.engines.collective import Collective
from netfleet.errors import CheckpointError, ConfigError, DivergedError
from netfleet.files import write_atomically
from netfleet.problems import Problem
from netfleet.runs import checkpoint
from netfleet.runs.build import (
    Setting,
    build_problem,
    build_setting,
    build_topology,
    check_all,
    check_run,
    checked_device,
    network_for,
)
from netfleet.runs.config import EngineConfig, Evaluation, Experiment, RunConfig, config_hash, make
from netfleet.runs.history import CONFIG_FILE, History
from netfleet.runs.progress import Display, Live, Quiet
from netfleet.runs.recorder import RunRecorder
from netfleet.topology.faults import Faults
from netfleet.topology.topology import Topology, make_topology

EXPERIMENT_FILE = "experiment.toml"


def run_experiment(
    experiment: Experiment,
    out: Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    display: Display | None = None,
) -> list[History]:
    """Run every algorithm with every seed and return the histories; in `out`, runs are kept and can be resumed.

    A run that diverges is marked (`History.diverged`) and the others go on. On a cluster every rank calls this; `out`
    must be a folder that all of them see, and rank 0 has the histories.
    """
    runs, collective = experiment.runs(), collective_of(experiment.engine.kind)
    setting = functools.lru_cache(maxsize=1)(functools.partial(build_setting, experiment))
    check_all(experiment, setting(runs[0].seed))  # bad input is found before anything is written
    if out is not None:
        collective.first(lambda: _prepare(out, experiment, resume, overwrite))
        _check_seen(out, collective)
    histories = []
    for run in runs:
        folder = None if out is None else out / run.folder
        label = run.label if len(experiment.seeds) == 1 else f"{run.label}, seed {run.seed}"
        make = functools.partial(setting, run.seed)
        histories.append(run_one(experiment, run, make, folder, display or Quiet(), resume=resume, label=label))
    return histories


def run_one(
    experiment: Experiment,
    run: RunConfig,
    setting: Callable[[], Setting],
    folder: Path | None,
    display: Display,
    *,
    resume: bool = True,
    label: str,
    stop: int | None = None,
) -> History:
    """Make one run of an experiment, or go on with what its folder holds; `setting` is asked for only if needed.

    With `stop` it ends after so many rounds, as if interrupted there.
    """
    history, start = open_run(run, folder, resume, experiment.engine)
    if start is None or history.rounds < (stop or experiment.rounds) or not history.records:
        algorithm = make_algorithm(run.config["algorithm"])
        _train(setting(), algorithm, experiment, history, start, display, label, stop)
    return history


def _train(
    setting: Setting,
    algorithm: Algorithm,
    settings: Experiment,
    history: History,
    start: Start | None,
    display: Display,
    label: str,
    stop: int | None = None,
) -> None:
    check_run(algorithm, settings, setting)
    stop = stop or settings.rounds
    recorder = RunRecorder(
        history,
        algorithm,
        settings.rounds,
        settings.evaluation,
        settings.checkpoint_every,
        display,
        stop,
    )
    display.begin(label, 0 if start is None else history.resumed, stop)
    try:
        network = network_for(algorithm, setting.topology, history.seed, settings.network)
        history.final = ENGINES[settings.engine.kind](
            setting.problem, network, algorithm, stop, recorder, start, settings.engine.threads
        )
    except DivergedError as error:
        history.diverged = str(error)
    finally:
        display.end()


def _prepare(out: Path, experiment: Experiment, resume: bool, overwrite: bool) -> None:
    """Make the folder ready: nothing that another run left there is touched unless the user says so."""
    found = sorted(path.parent for path in out.glob(f"*/{CONFIG_FILE}"))
    if found and not resume and not overwrite:
        raise CheckpointError(
            f"{out} already holds runs ({', '.join(p.name for p in found[:3])}{', …' if len(found) > 3 else ''}); "
            f"add --resume to go on with them, --overwrite to start again, or choose another --out"
        )
    for run in experiment.runs() if resume else []:
        if (out / run.folder / CONFIG_FILE).exists():
            _check_same(run, out / run.folder)
    for folder in found if overwrite else []:
        shutil.rmtree(folder)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to {out}: {error}; choose another --out") from None
    write_experiment(out / EXPERIMENT_FILE, experiment)


def _check_seen(out: Path, collective: Collective) -> None:
    """On a cluster every process writes into one folder."""
    unseen = int(collective.total(torch.tensor([0 if (out / EXPERIMENT_FILE).exists() else 1])))
    if unseen:
        error = ConfigError(
            f"{unseen} of the processes do not see {out / EXPERIMENT_FILE}, which rank 0 has written; --out must be a "
            f"folder that all machines share"
        )
        error.shared = True
        raise error


def write_experiment(path: Path, experiment: Experiment) -> None:
    """Write an experiment, every default written out, as a file that `netfleet run` takes."""
    text = tomli_w.dumps(without_none(experiment.to_table()))
    write_atomically(path, lambda file: file.write(text.encode()))


def _check_same(run: RunConfig, folder: Path) -> History:
    """The history in the folder, which must be of this run."""
    history = History.load(folder)
    if history.hash != run.hash:
        raise CheckpointError(
            f"{folder} holds run {history.hash[:12]}, but the experiment now asks for {run.hash[:12]}; resume with "
            f"the experiment it was begun with ({folder.parent / 'experiment.toml'}), or choose another --out"
        )
    return history


def open_run(run: RunConfig, folder: Path | None, resume: bool, engine: EngineConfig) -> tuple[History, Start | None]:
    """A run's history, and what to go on from where there is something; the host that keeps the record looks."""
    history = History(run.config, run.hash, run.label, run.seed, folder=folder)
    if folder is None:
        return history, None
    found = collective_of(engine.kind).first(functools.partial(_look, run, history, folder, resume))
    if found is None:
        return history, None
    history.records, history.resumed = found["records"], found["t"]
    state_type = make_algorithm(run.config["algorithm"]).State
    device = torch.device(checked_device(engine.device))
    return history, functools.partial(checkpoint.load, folder, run.hash, state_type, device)


def _look(run: RunConfig, fresh: History, folder: Path, resume: bool) -> dict[str, Any] | None:
    """The round that a folder's checkpoint has and the records up to it; without one the run begins."""
    known = resume and (folder / CONFIG_FILE).exists()
    history = _check_same(run, folder) if known else fresh
    if not known or not checkpoint.exists(folder):
        fresh.write_config()
        return None
    t = checkpoint.reached(folder)
    history.keep_until(t)
    return {"t": t, "records": history.records}


def write_report_files(experiment: Experiment, histories: list[History], out: Path) -> list[Path]:
    """Write `curves.png` and `report.html` for the histories, and return their paths."""
    from netfleet.report import draw_overview, write_report

    setting = build_setting(experiment, experiment.seeds[0])
    curves, page = out / "curves.png", out / "report.html"
    picture = draw_overview(histories)
    write_atomically(curves, lambda file: picture.savefig(file, format="png"))
    table = without_none(experiment.to_table())
    write_report(
        page,
        histories=histories,
        topology=setting.topology,
        label_counts=setting.problem.label_counts(),
        config=table,
        config_text=tomli_w.dumps(table),
        title=experiment.name,
    )
    return [curves, page]


def without_none(value: Any) -> Any:
    """Nested tables without their None entries, which TOML cannot say."""
    if isinstance(value, Mapping):
        return {key: without_none(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [without_none(inner) for inner in value]
    return value


def simulate(
    algorithm: Algorithm | str | Mapping[str, Any] = "net-fleet",
    *,
    topology: Topology | nx.Graph | str | Mapping[str, Any] = "erdos-renyi",
    problem: Problem | str | Mapping[str, Any] = "classification",
    workers: int | None = None,
    rounds: int = 100,
    seed: int = 0,
    evaluation: Evaluation | None = None,
    engine: EngineConfig | None = None,
    network: Faults | Mapping[str, Any] | None = None,
    progress: bool = False,
) -> History:
    """Train once and return the History. Each part is an object, a name, or a table as in an experiment file.

    `history.final.state.x` are the workers' models `[m, d]`, and a `ModuleProblem`'s `module(x)` makes one of them an
    `nn.Module` again. Raises `DivergedError` at the first non-finite value.

        >>> history = simulate("net-fleet", topology="ring", workers=4, problem="quadratics", rounds=5)
        >>> history.last["round"]
        5
    """
    engine, evaluation = engine or EngineConfig(), evaluation or Evaluation()
    if rounds < 1:
        raise ConfigError(f"rounds must be at least 1, got {rounds}")
    named = {"algorithm": algorithm, "topology": topology, "problem": problem, "workers": workers}
    if isinstance(topology, str):
        topology = {"kind": topology, "workers": _count(workers, problem)}
    if isinstance(topology, Mapping):
        topology = build_topology(topology, seed, workers)
    elif isinstance(topology, nx.Graph):
        topology = make_topology(topology)
    if not isinstance(problem, Problem):
        problem = build_problem(problem, topology.m, seed, engine)
    if problem.m != topology.m or workers not in (None, topology.m):
        raise ConfigError(
            f"the problem has {problem.m} workers, the topology {topology.m}"
            + ("" if workers is None else f", and workers = {workers}")
            + "; make them agree"
        )
    if not isinstance(algorithm, Algorithm):
        algorithm = make_algorithm(algorithm)
    faults = make(Faults, network, "network") if isinstance(network, Mapping) else network
    faults = faults if faults is not None and faults.any else None
    settings = Experiment({}, {}, (), rounds, evaluation=evaluation, engine=engine, network=faults)
    described = {key: value if isinstance(value, str | int | Mapping) else repr(value) for key, value in named.items()}
    if faults is not None:
        described["network"] = asdict(faults)
    config = described | {"rounds": rounds, "seed": seed, "evaluation": asdict(evaluation), "dtype": engine.dtype}
    history = History(config, config_hash(config), algorithm.title, seed)
    setting = Setting(topology, problem)
    if progress:
        from rich.console import Console

        with Live(Console(stderr=True)) as live:
            _train(setting, algorithm, settings, history, None, live, algorithm.title)
    else:
        _train(setting, algorithm, settings, history, None, Quiet(), algorithm.title)
    if history.diverged:
        raise DivergedError(history.diverged)
    return history


def _count(workers: int | None, problem: Any) -> int:
    """How many workers a topology by name should have."""
    if workers is not None:
        return workers
    return problem.m if isinstance(problem, Problem) else 20
