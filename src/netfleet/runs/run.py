"""From an experiment to its histories and its report."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from netfleet.algorithms import Algorithm
from netfleet.algorithms.build import make_algorithm
from netfleet.engines import Engine, make_engine
from netfleet.engines.collective import Collective, agreed
from netfleet.engines.job import Job, Start
from netfleet.errors import CheckpointError, ConfigError, DivergedError, Interrupted
from netfleet.files import make_folder, write_atomically, writing
from netfleet.runs import checkpoint
from netfleet.runs.build import Settings, build_job
from netfleet.runs.config import Experiment, RunConfig, without_none
from netfleet.runs.divergence import divergence
from netfleet.runs.history import CONFIG_FILE, History, Record
from netfleet.runs.process_file import process_file
from netfleet.runs.progress import Display, Quiet
from netfleet.runs.recorder import RunRecorder
from netfleet.runs.resume import check_same, is_longer, lengthen, resumable
from netfleet.runs.scores import read_scores
from netfleet.track import Tracker
from netfleet.track.following import NO_TRACKING, Tracking, make_tracking

EXPERIMENT_FILE = "experiment.toml"


def run_experiment(
    experiment: Experiment,
    out: Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    display: Display | None = None,
    settings: Settings | None = None,
    trackers: Sequence[Tracker] = (),
    record_workers: bool = False,
) -> list[History]:
    """Run every algorithm with every seed and return the histories; runs are saved in `out` and can be resumed.

    A run that diverges (a value is not finite, or has blown up by the end: `runs/divergence.py`) is marked
    (`History.diverged`) and the others continue. Ctrl-C raises `Interrupted` with the histories so far. On a cluster
    every rank calls this; `out` must be a folder that all of them see, and rank 0 has the histories. `trackers` follow
    the runs besides those of `[track]`. With `record_workers` a run's folder also gets the workers one by one.
    """
    runs, engine, setting = experiment.runs(), make_engine(experiment.engine.kind), settings or Settings(experiment)

    def build(run: RunConfig) -> Job:
        return build_job(setting.algorithm(run), run.seed, experiment, setting(run.seed))

    first = runs[: len(experiment.algorithms)]  # bad input is found before anything is written
    jobs = agreed(engine.collective, lambda: {run.folder: build(run) for run in first})
    tracking = agreed(engine.collective, lambda: _tracking(experiment, trackers, engine.collective))
    if out is not None:
        file = None if setting.objects.any else out / EXPERIMENT_FILE
        engine.collective.first(lambda: _prepare(out, experiment, file, resume, overwrite))
        agreed(engine.collective, lambda: _check_seen(file or out))
    histories, shown, writer = list[History](), display or Quiet(), out if engine.collective.keeps_record else None
    make_run = partial(run_one, display=shown, resume=resume, engine=engine, tracking=tracking)
    make_run = partial(make_run, record_workers=record_workers)
    with process_file(writer):
        for run in runs:
            folder = None if out is None else out / run.folder
            label = run.label if len(experiment.seeds) == 1 else f"{run.label}, seed {run.seed}"
            job = partial(jobs.pop, run.folder) if run.folder in jobs else partial(build, run)
            try:
                made = make_run(experiment, run, job, folder, label=label, algorithm=partial(setting.algorithm, run))
            except Interrupted as stopped:
                raise Interrupted([*histories, *stopped.histories]) from None
            histories.append(made)
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
    algorithm: Callable[[], Algorithm] | None = None,
    tracking: Tracking = NO_TRACKING,
    record_workers: bool = False,
) -> History:
    """Make one run of an experiment, or resume it from its folder; `job` is called only if rounds are left.

    With `stop` the run ends after that round, as if it were interrupted there. `algorithm` makes the run's method, if
    the config alone does not.
    """
    engine = engine or make_engine(experiment.engine.kind)
    history, start = open_run(run, folder, resume, engine.collective)
    with tracking.of(history) as follow:
        if start is None or history.rounds < (stop or experiment.rounds) or not history.records:
            with _reachable(history):
                made = job()
                method = made.algorithm
                settings = replace(experiment, rounds=made.rounds)  # a privacy budget may allow fewer
                last = stop and min(stop, made.rounds)
                recorder = RunRecorder(history, method, settings, display, last, follow, record_workers)
                made = replace(made, rounds=recorder.stop, recorder=recorder, start=start)
                _train(engine, made, history, display, label)
        else:
            display.skip(label)
            method = algorithm() if algorithm else make_algorithm(run.config["algorithm"])
        if history.diverged is None:
            done = [record for record in history if record["round"] <= (stop or experiment.rounds)]
            if words := engine.collective.first(lambda: divergence(done, method)):
                history.mark_diverged(words, durable=stop is None and engine.collective.keeps_record)
    return history


@contextmanager
def _reachable(history: History) -> Iterator[None]:
    """Within the context, Ctrl-C raises an exception that has the history."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted([history]) from None


def _train(engine: Engine, job: Job, history: History, display: Display, label: str) -> None:
    display.begin(label, history.resumed, job.rounds)
    try:
        history.final = engine.run(job)
    except DivergedError as error:
        history.mark_diverged(str(error), durable=engine.collective.keeps_record)
    finally:
        display.end()


def _tracking(experiment: Experiment, trackers: Sequence[Tracker], collective: Collective) -> Tracking:
    """The trackers, where the record is kept."""
    return make_tracking(experiment.name, experiment.track, trackers) if collective.keeps_record else NO_TRACKING


def _prepare(out: Path, experiment: Experiment, file: Path | None, resume: bool, overwrite: bool) -> None:
    """Create the folder; existing runs in it are changed only with `resume` or `overwrite`.

    `file` is where the experiment is written, if a file can say it.
    """
    found = sorted(path.parent for path in out.glob(f"*/{CONFIG_FILE}"))
    if found and not resume and not overwrite:
        names = ", ".join([*(path.name for path in found[:3]), *["…"] * (len(found) > 3)])
        resumable(experiment.runs(), out)  # says how they differ, if they do
        advice = "add --resume (in Python resume=True) to resume them, --overwrite (overwrite=True) to delete them and "
        advice += "start again, or choose another folder"
        raise CheckpointError(f"{out} already holds runs ({names}); {advice}")
    for run, folder in resumable(experiment.runs(), out) if resume else []:
        if is_longer(run, History.load(folder)):
            lengthen(run, folder)
    for folder in found if overwrite else []:
        with writing(folder):
            shutil.rmtree(folder)
    make_folder(out)
    if file is not None:
        write_experiment(file, experiment)
    else:
        (out / EXPERIMENT_FILE).unlink(missing_ok=True)  # of another experiment


def _check_seen(file: Path) -> None:
    """On a cluster every process writes into one folder."""
    if not file.exists():
        advice = "the folder of the results must be one that all machines share"
        raise ConfigError(f"this process does not see {file}, which rank 0 has written; {advice}")


def write_experiment(path: Path, experiment: Experiment) -> None:
    """Write an experiment, every default written out, as a file that `netfleet run` takes."""
    write_atomically(path, lambda file: file.write(experiment.to_toml().encode()))


def open_run(run: RunConfig, folder: Path | None, resume: bool, collective: Collective) -> tuple[History, Start | None]:
    """A run's history, and the start from which it is resumed if its folder has a checkpoint."""
    history = History(run.config, run.hash, run.label, run.seed, folder=folder)
    if folder is None:
        return history, None
    found = collective.first(lambda: _open_folder(run, history, folder, resume))
    if found is None:
        return history, None
    (history.resumed, history.records), history.scores = found, read_scores(folder)
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
    from netfleet.report import draw_overview

    curves, page = out / "curves.png", out / "report.html"
    write_atomically(curves, partial(draw_overview(histories).savefig, format="png"))
    write_page(page, experiment, histories, settings)
    return [curves, page]


def write_page(path: Path, experiment: Experiment, histories: Sequence[History], settings: Settings) -> None:
    """Write the HTML report of the histories."""
    from netfleet.report import write_report

    write = partial(write_report, path, topology=settings.topology, label_counts=settings.label_counts)
    text, table = experiment.to_toml(), without_none(experiment.to_table())
    write(histories=histories, config=table, config_text=text, title=experiment.name)
