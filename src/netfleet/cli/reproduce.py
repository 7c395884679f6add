"""Run and draw the paper's figures and check its claims."""

import argparse
from pathlib import Path

from netfleet.cli.shared import add_device, use_checkout


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help='a figure ("fig3"), a panel ("fig3b"), "speedup" ("speedup-cnn") or "all" (all panels); default: list',
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
        metavar="DIR",
        help="folder of the configs (default: reproduce in the checkout)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for results and figures (default: the configs' folder; with --rounds or --seeds, --work)",
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
    from reproduce import command

    given = {key: value for key, value in vars(options).items() if key != "command" and value is not None}
    return command.run(command.Options(**given))
