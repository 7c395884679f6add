"""Run and draw the paper's figures and check its claims."""

import argparse
from pathlib import Path

from netfleet.cli.shared import add_device, use_checkout


def add(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    words = 'a figure ("fig3"), a panel ("fig3b"), "speedup" ("speedup-cnn") or "all" (all small panels); default: list'
    option("names", nargs="*", metavar="NAME", help=words)
    option("--rounds", type=int, metavar="N", help="run at most N rounds")
    words = "number of seeds, counting up from the file's first (default: the file's)"
    option("--seeds", type=int, metavar="N", help=words)
    option("--draw", action="store_true", help="draw and check the stored results; run nothing")
    option("--verify", type=int, metavar="N", help="rerun N rounds of each stored run and compare; write nothing")
    option("--rehash", action="store_true", help="write options that netfleet has gained into the stored runs' configs")
    words = "folder of the configs (default: reproduce in the checkout)"
    option("--from", dest="source", type=Path, metavar="DIR", help=words)
    words = "folder for results and figures (default: the configs' folder; with --rounds or --seeds, --work)"
    option("--out", type=Path, metavar="DIR", help=words)
    words = "folder for unfinished runs (default: %(default)s)"
    option("--work", type=Path, default=Path("runs/reproduce"), metavar="DIR", help=words)
    add_device(parser)


def run(options: argparse.Namespace) -> int:
    use_checkout("reproduce")
    from reproduce import command

    given = {key: value for key, value in vars(options).items() if key != "command" and value is not None}
    return command.run(command.Options(**given))
