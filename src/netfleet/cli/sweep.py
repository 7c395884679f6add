"""Run an experiment for every combination of values of some keys of its file."""

import argparse
from pathlib import Path

from netfleet.cli.shared import add_experiment, add_metric, default_folder, interrupted, parse_at, resumable, say_wrote
from netfleet.errors import ConfigError
from netfleet.registry import make_importable


def add(parser: argparse.ArgumentParser) -> None:
    add_experiment(parser)
    words = "values of a key, written as for --set; repeat it for other keys: every combination is run"
    parser.add_argument("--over", action="append", default=[], metavar="KEY=A,B,…", help=words)
    add_metric(parser)
    words = "folder for the points, sweep.csv and sweep.png; resumed if it exists (default: runs/sweep-NAME-HASH)"
    parser.add_argument("--out", type=Path, metavar="DIR", help=words)


def run(options: argparse.Namespace) -> int:
    make_importable(options.file)
    from rich.console import Console

    from netfleet.report.export import print_sheet, write_figure, write_sheet
    from netfleet.report.sweep import best, draw_sweep, grid, notes, sheet
    from netfleet.runs.config import config_hash, read_experiment
    from netfleet.runs.progress import Overall
    from netfleet.runs.sweep import parse_axes, points, sweep

    axes, at, table = parse_axes(options.over), parse_at(options.at), read_experiment(options.file, options.set)
    out = options.out or default_folder(str(table.get("name", "experiment")), config_hash(table), "sweep-")
    found, console = points(table, axes), Console()
    made = [point.experiment for point in found if point.experiment is not None]
    if any(experiment.engine.kind == "distributed" for experiment in made):
        cause = 'netfleet sweep runs in one process, but the file says engine.kind = "distributed"'
        raise ConfigError(f"{cause}; add --set engine.kind=simulator")
    resume = f"the same command with --out {out} resumes"
    try:
        with resumable(f"Then {resume}"), Overall(console, sum(len(experiment.runs()) for experiment in made)) as live:
            results = sweep(found, out, live)
    except KeyboardInterrupt:
        return interrupted(resume)
    values = grid(axes, results, options.metric, at)
    first, rows = best(values), sheet(values)
    print_sheet(rows, console, bold=[cell.point.values == first.get(cell.method) for cell in values.cells])
    console.print("bold: the best point of each method", style="dim")
    for note in notes(values):
        console.print(note, style="yellow", highlight=False, markup=False, soft_wrap=True)
    write_sheet(out / "sweep.csv", rows)
    say_wrote(console, out / "sweep.csv")
    if (figure := draw_sweep(values)) is not None:
        write_figure(out / "sweep.png", figure)
        say_wrote(console, out / "sweep.png")
    console.print(f"netfleet compare {out} compares all runs", markup=False, highlight=False, soft_wrap=True)
    return int(any(result.refused or any(h.diverged for h in result.histories) for result in results))
