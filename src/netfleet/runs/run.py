"""From an experiment to its histories and its report."""

import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import networkx as nx
import tomli_w
from rich.console import Console

from netfleet.algorithms import Algorithm
from netfleet.algorithms.build import make_algorithm
from netfleet.engines import Engine, make_engine
from netfleet.engines.collective import Collective, agreed
from netfleet.engines.job import Job, Start
from netfleet.errors import CheckpointError, ConfigError, DivergedError
from netfleet.files import make_folder, write_atomically, writing
from netfleet.problems import Problem
from netfleet.registry import Spec
from netfleet.runs import checkpoint
from netfleet.runs.build import Setting, Settings, build_job, build_problem, build_topology
from netfleet.runs.config import EngineConfig, Evaluation, Experiment, RunConfig, config_hash, make, make_engine_config
from netfleet.runs.divergence import divergence
from netfleet.runs.history import CONFIG_FILE, History, Record
from netfleet.runs.progress import Display, Live, Quiet
from netfleet.runs.recorder import RunRecorder
from netfleet.runs.resume import check_same, is_longer, lengthen, resumable
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
    settings: Settings | None = None,
) -> list[History]:
    """Run every algorithm with every seed and return the histories; runs are saved in `out` and can be resumed.

    A run that diverges (a value is not finite, or has blown up by the end: `runs/divergence.py`) is marked
    (`History.diverged`) and the others continue. On a cluster every rank calls this; `out` must be a folder that all of
    them see, and rank 0 has the histories.
    """
    runs, engine, setting = experiment.runs(), make_engine(experiment.engine.kind), settings or Settings(experiment)

    def build(run: RunConfig) -> Job:
        return build_job(run.config["algorithm"], run.seed, experiment, setting(run.seed))

    first = runs[: len(experiment.algorithms)]  # bad input is found before anything is written
    jobs = agreed(engine.collective, lambda: {run.folder: build(run) for run in first})
    if out is not None:
        engine.collective.first(lambda: _prepare(out, experiment, resume, overwrite))
        agreed(engine.collective, lambda: _check_seen(out))
    histories, make_run = [], partial(run_one, display=display or Quiet(), resume=resume, engine=engine)
    for run in runs:
        folder = None if out is None else out / run.folder
        label = run.label if len(experiment.seeds) == 1 else f"{run.label}, seed {run.seed}"
        job = partial(jobs.pop, run.folder) if run.folder in jobs else partial(build, run)
        histories.append(make_run(experiment, run, job, folder, label=label))
        jobs.pop(run.folder, None)
    return histories


def run_one(
    experiment: Experiment,
    run: RunConfig,
    job: Callable[[], Job],
    folder: Path | None,
    display: Display,
    *,
    label: str,
    resume: bool = True,
    stop: int | None = None,
    engine: Engine | None = None,
) -> History:
    """Make one run of an experiment, or resume it from its folder; `job` is called only if rounds are left.

    With `stop` the run ends after that round, as if it were interrupted there.
    """
    engine = engine or make_engine(experiment.engine.kind)
    history, start = open_run(run, folder, resume, engine.collective)
    if start is None or history.rounds < (stop or experiment.rounds) or not history.records:
        made = job()
        recorder = RunRecorder(history, made.algorithm, experiment, display, stop)
        made = replace(made, rounds=recorder.stop, recorder=recorder, start=start)
        _train(engine, made, history, display, label)
    else:
        display.skip(label)
    if history.diverged is None:
        done = [record for record in history if record["round"] <= (stop or experiment.rounds)]
        algorithm = make_algorithm(run.config["algorithm"])
        if words := engine.collective.first(lambda: divergence(done, algorithm)):
            history.mark_diverged(words, durable=stop is None and engine.collective.keeps_record)
    return history


def _train(engine: Engine, job: Job, history: History, display: Display, label: str) -> None:
    display.begin(label, history.resumed, job.rounds)
    try:
        history.final = engine.run(job)
    except DivergedError as error:
        history.mark_diverged(str(error), durable=engine.collective.keeps_record)
    finally:
        display.end()


def _prepare(out: Path, experiment: Experiment, resume: bool, overwrite: bool) -> None:
    """Create the folder; existing runs in it are changed only with `resume` or `overwrite`."""
    found = sorted(path.parent for path in out.glob(f"*/{CONFIG_FILE}"))
    if found and not resume and not overwrite:
        names = ", ".join([*(path.name for path in found[:3]), *["…"] * (len(found) > 3)])
        resumable(experiment.runs(), out)  # says how they differ, if they do
        advice = "add --resume to resume them, --overwrite to delete them and start again, or choose another --out"
        raise CheckpointError(f"{out} already holds runs ({names}); {advice}")
    for run, folder in resumable(experiment.runs(), out) if resume else []:
        if is_longer(run, History.load(folder)):
            lengthen(run, folder)
    for folder in found if overwrite else []:
        with writing(folder):
            shutil.rmtree(folder)
    make_folder(out)
    write_experiment(out / EXPERIMENT_FILE, experiment)


def _check_seen(out: Path) -> None:
    """On a cluster every process writes into one folder."""
    if not (file := out / EXPERIMENT_FILE).exists():
        advice = "--out must be a folder that all machines share"
        raise ConfigError(f"this process does not see {file}, which rank 0 has written; {advice}")


def write_experiment(path: Path, experiment: Experiment) -> None:
    """Write an experiment, every default written out, as a file that `netfleet run` takes."""
    text = tomli_w.dumps(without_none(experiment.to_table()))
    write_atomically(path, lambda file: file.write(text.encode()))


def open_run(run: RunConfig, folder: Path | None, resume: bool, collective: Collective) -> tuple[History, Start | None]:
    """A run's history, and the start from which it is resumed if its folder has a checkpoint."""
    history = History(run.config, run.hash, run.label, run.seed, folder=folder)
    if folder is None:
        return history, None
    found = collective.first(lambda: _open_folder(run, history, folder, resume))
    if found is None:
        return history, None
    history.resumed, history.records = found
    return history, partial(checkpoint.load, folder, run.hash)


def _open_folder(run: RunConfig, fresh: History, folder: Path, resume: bool) -> tuple[int, list[Record]] | None:
    """The round of a folder's checkpoint and the records up to it; None if the run starts from scratch."""
    known = resume and (folder / CONFIG_FILE).exists()
    history = check_same(run, folder) if known else fresh
    if not known or not checkpoint.exists(folder):
        fresh.write_config()
        return None
    t = checkpoint.reached(folder)
    history.keep_until(t)
    return t, history.records


def write_report_files(experiment: Experiment, histories: list[History], settings: Settings, out: Path) -> list[Path]:
    """Write `curves.png` and `report.html` for the histories, and return their paths; `settings` made the runs."""
    from netfleet.report import draw_overview, write_report

    curves, page, table = out / "curves.png", out / "report.html", without_none(experiment.to_table())
    write_atomically(curves, partial(draw_overview(histories).savefig, format="png"))
    write = partial(write_report, page, topology=settings.topology, label_counts=settings.label_counts)
    write(histories=histories, config=table, config_text=tomli_w.dumps(table), title=experiment.name)
    return [curves, page]


def without_none(value: Any) -> Any:
    """Nested tables without their None entries, which TOML cannot express."""
    if isinstance(value, Mapping):
        return {key: without_none(inner) for key, inner in value.items() if inner is not None}
    return [without_none(inner) for inner in value] if isinstance(value, list | tuple) else value


def simulate(
    algorithm: Algorithm | Spec = "net-fleet",
    *,
    topology: Topology | nx.Graph | Spec = "erdos-renyi",
    problem: Problem | Spec = "classification",
    workers: int | None = None,
    rounds: int = 100,
    seed: int = 0,
    evaluation: Evaluation | Mapping[str, Any] | None = None,
    engine: EngineConfig | Mapping[str, Any] | None = None,
    network: Faults | Mapping[str, Any] | None = None,
    progress: bool = False,
) -> History:
    """Train once and return the History. Each part is an object, a name, or a table as in an experiment file.

    `history.final.state.x` are the workers' models `[m, d]`, and a `ModuleProblem`'s `module(x)` makes one of them an
    `nn.Module` again. Raises `DivergedError` at the first non-finite value, and at the end if values have
    blown up (`runs/divergence.py`).

        >>> history = simulate("net-fleet", topology="ring", workers=4, problem="quadratics", rounds=5)
        >>> history.last["round"]
        5
    """
    if rounds < 1:
        raise ConfigError(f"rounds must be at least 1, got {rounds}")
    named = {"algorithm": algorithm, "topology": topology, "problem": problem, "workers": workers}
    evaluation = evaluation if isinstance(evaluation, Evaluation) else make(Evaluation, evaluation or {}, "evaluation")
    engine = engine if isinstance(engine, EngineConfig) else make_engine_config(engine or {}, "engine")
    faults = network if isinstance(network, Faults) else make(Faults, network or {}, "network")
    unreliable = faults if faults.any else None
    settings = Experiment({}, {}, (), rounds, evaluation=evaluation, engine=engine, network=unreliable)
    job = build_job(algorithm, seed, settings, _setting(topology, problem, workers, seed, engine))
    config = {key: value if isinstance(value, str | int | Mapping) else repr(value) for key, value in named.items()}
    if faults.any:
        config["network"] = asdict(faults)
    config |= {"rounds": rounds, "seed": seed, "evaluation": evaluation.to_table(), "dtype": engine.dtype}
    history = History(config, config_hash(config), job.algorithm.title, seed)
    with Live(Console(stderr=True)) if progress else nullcontext(Quiet()) as display:
        recorder = RunRecorder(history, job.algorithm, settings, display)
        _train(make_engine(engine.kind), replace(job, recorder=recorder), history, display, history.label)
    if words := history.diverged or divergence(history.records, job.algorithm):
        raise DivergedError(words)
    return history


def _setting(
    topology: Topology | nx.Graph | Spec, problem: Problem | Spec, workers: int | None, seed: int, engine: EngineConfig
) -> Setting:
    if isinstance(topology, str):
        count = workers if workers is not None else problem.m if isinstance(problem, Problem) else 20
        topology = {"kind": topology, "workers": count}
    if isinstance(topology, Mapping):
        topology = build_topology(topology, seed, workers)
    elif isinstance(topology, nx.Graph):
        topology = make_topology(topology)
    if not isinstance(problem, Problem):
        problem = build_problem(problem, topology.m, seed, engine)
    if problem.m != topology.m or workers not in (None, topology.m):
        asked = "" if workers is None else f", and workers = {workers}"
        raise ConfigError(f"the problem has {problem.m} workers, the topology {topology.m}{asked}; make them agree")
    return Setting(topology, problem)
