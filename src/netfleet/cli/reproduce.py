"""Run and draw the paper's figures and check its claims."""

import argparse
from pathlib import Path

from netfleet.cli.shared import add_device, interrupted, use_checkout
from netfleet.errors import ConfigError


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help='a figure ("fig3"), a panel ("fig3b"), "speedup" ("speedup-cnn") or "all" (all panels); default: list',
    )
    parser.add_argument(
        "--scale",
        choices=("full", "half", "quick"),
        default="full",
        help="all rounds (default), the first half of them, or the first twentieth",
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="run at most N rounds")
    parser.add_argument(
        "--seeds",
        type=int,
        metavar="N",
        help="number of seeds, counting up from the file's first (default: the file's)",
    )
    parser.add_argument(
        "--curve", action="append", default=[], metavar="LABEL", help="run only the curve with this label (repeatable)"
    )
    parser.add_argument("--draw", action="store_true", help="draw and check the stored results; run nothing")
    parser.add_argument(
        "--verify", type=int, metavar="N", help="rerun N rounds of each stored run and compare; write nothing"
    )
    parser.add_argument(
        "--rehash", action="store_true", help="write options that netfleet has gained into the stored runs' configs"
    )
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        default=Path("reproduce"),
        metavar="DIR",
        help="folder of the configs (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for results and figures (default: the configs' folder; for scaled runs, one below --work)",
    )
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("runs/reproduce"),
        metavar="DIR",
        help="folder for unfinished runs (default: %(default)s)",
    )
    add_device(parser)


def run(options: argparse.Namespace) -> int:
    use_checkout("reproduce")
    from rich.console import Console

    from reproduce import command
    from reproduce import speedup_figure as speedup

    console = Console()
    if options.rehash:
        command.rehash(options.source, options.work, console)
        return 0
    if not options.names:
        given = (options.draw, options.rounds, options.seeds, options.curve, options.scale != "full")
        if any(given) or options.verify is not None:
            raise ConfigError('name figures or panels; "all" means all that an ordinary machine can make')
        command.overview(options.source, console)
        return 0
    engine = {key: v for key in ("device", "threads") if (v := getattr(options, key)) is not None}
    scale, rounds, seeds = options.scale, options.rounds, options.seeds
    where = command.places(options.source, scale, rounds, seeds, options.out, options.work)
    studies = speedup.asked(options.names)
    if studies and (options.verify is not None or rounds is not None or options.curve or engine):
        raise ConfigError(f"{speedup.NAME} takes --scale, --seeds and --draw only")
    names = [name for name in options.names if name not in studies]
    panels = command.selected(options.source, names, scale, rounds, seeds, **engine) if names else []
    if options.verify is not None:
        return 0 if command.verify(panels, where, options.verify, console, curves=options.curve) else 1
    try:
        if panels:
            command.reproduce(panels, where, console, run=not options.draw, curves=options.curve)
        if studies:
            known = speedup.find(options.source, scale, seeds)
            to_run = speedup.chosen(known, studies)
            folder = (options.out or options.source) / speedup.NAME
            speedup.reproduce(known, [] if options.draw else to_run, folder, where.pictures / "speedup.png", console)
    except KeyboardInterrupt:
        return interrupted("finished rounds are kept; the same command resumes")
    return 0
