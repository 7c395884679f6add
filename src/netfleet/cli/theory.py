"""Compare an experiment with the convergence theorems for its methods."""

import argparse
from functools import partial
from pathlib import Path

from netfleet.cli.shared import add_experiment, interrupted, load_local, output_folder, resumable, say_wrote


def add(parser: argparse.ArgumentParser) -> None:
    add_experiment(parser)
    parser.add_argument("--only", action="store_true", help="print what the theorems say and train nothing")
    words = "folder for runs and theory.png, resumed if it exists (default: runs/theory-NAME-HASH)"
    parser.add_argument("--out", type=Path, metavar="DIR", help=words)


def run(options: argparse.Namespace) -> int:
    experiment = load_local(options, "theory")
    from rich.console import Console

    from netfleet.files import write_atomically
    from netfleet.report.theory import draw_theory, notes, tables
    from netfleet.runs.build import build_setting
    from netfleet.runs.progress import Live
    from netfleet.runs.run import run_experiment
    from netfleet.theory.predictions import explain

    console = Console()
    with console.status("estimating L, σ² and ζ²"):
        explained = explain(experiment, build_setting(experiment, experiment.seeds[0]))
    for table in tables(explained):
        console.print(table)
    for sentence, warning in notes(explained):
        console.print(sentence, style="yellow" if warning else "", highlight=False, soft_wrap=True)
    if options.only:
        return 0
    experiment = explained.experiment  # evaluated as often as the comparison needs
    out = output_folder(options.out, experiment, "theory-")
    resume = f"the same command with --out {out} resumes"
    try:
        with resumable(f"Then {resume}"), Live(console, len(experiment.runs())) as live:
            histories = run_experiment(experiment, out, resume=True, display=live)
    except KeyboardInterrupt:
        return interrupted(resume)
    write_atomically(out / "theory.png", partial(draw_theory(histories, explained).savefig, format="png"))
    say_wrote(console, out / "theory.png")
    return int(any(history.diverged for history in histories))
