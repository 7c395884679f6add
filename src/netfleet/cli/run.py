"""Run an experiment file and write a report; without a file, run the demo."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from netfleet.cli.shared import add_device, add_experiment, interrupted, output_folder, resumable, say_wrote
from netfleet.cli.watch import HOST, PORT
from netfleet.environment import need_packages, speaks
from netfleet.errors import ConfigError
from netfleet.registry import make_importable

if TYPE_CHECKING:
    from rich.console import Console

#: --watch without a port.
NO_PORT = -1


def add(parser: argparse.ArgumentParser) -> None:
    add_experiment(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the results (default: runs/NAME-HASH)")
    parser.add_argument("--resume", action="store_true", help="resume the runs in --out; more rounds lengthen them")
    parser.add_argument("--overwrite", action="store_true", help="delete the runs in --out and start again")
    words = '"simulator" (all workers in one process), "threads" (a thread per worker) or "distributed" (torchrun)'
    parser.add_argument("--engine", help=words)
    words = (
        "serve a page of the runs at this port of this machine (default: 8400 or any that is free); see netfleet watch"
    )
    parser.add_argument("--watch", nargs="?", type=int, const=NO_PORT, metavar="PORT", help=words)
    words = "write down the workers one by one too, for netfleet watch (--watch does so)"
    parser.add_argument("--record-workers", action="store_true", help=words)
    add_device(parser)


def run(options: argparse.Namespace) -> int:
    make_importable(options.file)
    from rich.console import Console

    from netfleet.engines import processes
    from netfleet.report import print_summary
    from netfleet.runs.build import Settings
    from netfleet.runs.config import load_experiment
    from netfleet.runs.progress import Live
    from netfleet.runs.run import run_experiment, write_report_files

    shortcuts = {"kind": options.engine, "device": options.device, "threads": options.threads}
    overrides = options.set + [f"engine.{key}={value}" for key, value in shortcuts.items() if value is not None]
    experiment = load_experiment(options.file, overrides)
    engine, out = experiment.engine, output_folder(options.out, experiment)
    if engine.kind != "distributed" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        cause = f"torchrun started {os.environ['WORLD_SIZE']} processes, but engine {engine.kind!r} is one"
        raise ConfigError(f"{cause}; add --engine distributed, or start it without torchrun")
    console, watched = Console(quiet=not speaks()), options.watch is not None
    page = _page(options.watch, out, console) if watched and speaks() else contextlib.nullcontext()
    again = ["netfleet", "run", *([options.file] if options.file else [])]
    again += [word for override in overrides for word in ("--set", override)]
    resume = f"Resume with: {shlex.join([*again, '--out', str(out), '--resume'])}"
    try:
        with (
            resumable(resume),
            processes(engine.kind, engine.device),
            page,
            Live(console, len(experiment.runs())) as live,
        ):
            settings, known = Settings(experiment), {"resume": options.resume, "overwrite": options.overwrite}
            known["record_workers"] = options.record_workers or watched
            histories = run_experiment(experiment, out, display=live, settings=settings, **known)
    except KeyboardInterrupt:
        return interrupted(f"the results so far are in {out}. {resume}") if speaks() else 130
    if speaks():
        print_summary(histories, console)
        with resumable(resume):
            for path in write_report_files(experiment, histories, settings, out):
                say_wrote(console, path)
        for history in histories:
            if history.diverged:
                print(f"netfleet: {history.diverged}", file=sys.stderr)
    return int(any(history.diverged for history in histories))


def _page(port: int, out: Path, console: Console) -> contextlib.AbstractContextManager[None]:
    """The page of --watch, beside the runs."""
    need_packages("bokeh", extra="watch")
    from netfleet.watch.beside import listen, page_beside, url

    listening = listen(HOST, None if port == NO_PORT else port, PORT)
    console.print(f"the page of these runs: {url(listening)}", markup=False, highlight=False, soft_wrap=True)
    return page_beside(out, listening)
