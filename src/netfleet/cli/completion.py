"""Print a script with which bash, zsh or fish completes commands, options and files."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from netfleet.environment import need_packages

SHELLS = ("bash", "zsh", "fish")
_HOW = """\
In this shell, or in every new one, if the line is in the file that the shell reads at its start:

  bash   eval "$(netfleet completion bash)"       ~/.bashrc
  zsh    eval "$(netfleet completion zsh)"        ~/.zshrc, below compinit
  fish   netfleet completion fish | source        ~/.config/fish/config.fish

Needs pip install 'netfleet[completion]'. The shell runs the script alone: TAB starts no Python.
"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, _HOW
    parser.add_argument("shell", choices=SHELLS, help="the shell that will run the script")


def run(options: argparse.Namespace) -> int:
    need_packages("shtab", extra="completion")
    import shtab

    from netfleet.cli import make_parser

    parser = make_parser()
    for argument in _arguments(parser):
        if argument.type is Path or "FILE" in str(argument.metavar):
            argument.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, options.shell))
    return 0


def _arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Those of all commands. The commands get a help, without which shtab leaves them out."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            action.help = "a command"
            for command in action.choices.values():
                yield from _arguments(command)
        else:
            yield action
