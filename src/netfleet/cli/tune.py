"""Try every method of an experiment on the same grid of step sizes."""

import argparse
from functools import partial
from pathlib import Path

from netfleet.cli.shared import add_experiment, interrupted, load_local, output_folder, resumable, say_wrote


def add(parser: argparse.ArgumentParser) -> None:
    add_experiment(parser)
    option = parser.add_argument
    words = "values of a parameter (default: eta=0.001,0.003,0.01,0.03,0.1,0.3); repeat it for other parameters"
    option("--grid", action="append", default=[], metavar="NAME=A,B,…", help=words)
    words = "successive halving: a few rounds for all points, three times as many for the better third, and so on"
    option("--halving", action="store_true", help=words)
    words = "rank by fewest rounds to this accuracy (or loss, where there is no accuracy), not by the final value"
    option("--target", type=float, metavar="A", help=words)
    words = "folder for runs and results, resumed if it exists (default: runs/tune-NAME-HASH)"
    option("--out", type=Path, metavar="DIR", help=words)


def run(options: argparse.Namespace) -> int:
    experiment = load_local(options, "tune")
    from rich.console import Console

    from netfleet.files import write_atomically
    from netfleet.report.tuning import draw_tuning, edge_notes, tuning_table
    from netfleet.runs.progress import Live
    from netfleet.runs.run import write_experiment
    from netfleet.runs.tuning import best, parse_grid, starts, tune, validated

    grid, out, console = parse_grid(options.grid), output_folder(options.out, experiment, "tune-"), Console()
    resume = f"the same command with --out {out} resumes"
    try:
        with resumable(f"Then {resume}"), Live(console, starts(experiment, grid, halving=options.halving)) as live:
            results = tune(experiment, grid, out, halving=options.halving, target=options.target, display=live)
    except KeyboardInterrupt:
        return interrupted(resume)
    console.print(tuning_table(results, experiment.rounds))
    if share := validated(experiment).problem.get("validation"):
        words = f"scored on {share:.0%} of the training rows, which were held out; the test rows were not used"
        console.print(words.replace("%", " %"), style="dim", highlight=False, soft_wrap=True)
    for note in edge_notes(results, grid):
        console.print(note, style="yellow", highlight=False, soft_wrap=True)
    for name in grid:
        path = out / f"tuned-{name}.png"
        write_atomically(path, partial(draw_tuning(results, name).savefig, format="png"))
        say_wrote(console, path)
    chosen = best(experiment, results)
    if chosen.algorithms:
        write_experiment(out / "tuned.toml", chosen)
        say_wrote(console, out / "tuned.toml")
        console.print(f"netfleet run {out / 'tuned.toml'} compares them at their best", markup=False, soft_wrap=True)
    return int(len(chosen.algorithms) < len(experiment.algorithms))
