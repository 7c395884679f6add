"""The command line: one module per command, which imports what it needs when it runs, so that `--help` is quick."""

import argparse
from collections.abc import Sequence
from types import ModuleType

import netfleet
from netfleet.cli import (
    admit,
    algorithms,
    approve,
    audit,
    bench,
    compare,
    completion,
    doctor,
    evaluate,
    evict,
    first_screen,
    health,
    init,
    leave,
    node,
    pin,
    plan,
    policy,
    predict,
    receipts,
    rehearse,
    relay,
    release,
    reproduce,
    revoke,
    rollback,
    run,
    statistics,
    status,
    sweep,
    theory,
    topology,
    tune,
    up,
    watch,
)
from netfleet.cli.output import outliving_readers
from netfleet.cli.shared import interrupted
from netfleet.environment import speaks
from netfleet.errors import NetfleetError
from netfleet.exit_codes import announce

#: A module's name is its command, its docstring the command's help; `add` adds the options and `run` runs it.
GROUPS: dict[str, tuple[ModuleType, ...]] = {
    "experiments": (init, run, watch, tune, sweep, compare, theory, topology, algorithms, audit),
    "the paper (needs a checkout of the repository)": (reproduce, bench),
    "sites that train without a server": (
        *(statistics, plan, doctor, rehearse, up, node, relay, status, health, admit, leave, revoke, evict, rollback),
        *(receipts, evaluate, predict),
    ),
    "what a site decides for itself": (policy, approve, pin, release),
    "your shell": (completion,),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code (`netfleet.exit_codes`).

    A command whose output nobody reads any more (`| head`) goes on quietly to its end: it may be training.
    """
    with outliving_readers():
        return _run(make_parser().parse_args(arguments))


def _run(options: argparse.Namespace) -> int:
    try:
        return int(options.command(options))
    except NetfleetError as error:
        if speaks() or not error.shared:
            announce(error)
        return error.exit_code
    except KeyboardInterrupt:
        return interrupted()


def make_parser() -> argparse.ArgumentParser:
    words = "`netfleet COMMAND --help` shows the options of a command.\n"
    for group, modules in GROUPS.items():
        words += "".join([f"\n{group}:\n", *(f"  {_name(module):12}{module.__doc__}\n" for module in modules)])
    parser = argparse.ArgumentParser(
        prog="netfleet",
        usage="netfleet [-h] [--version] COMMAND …",
        description="Fully decentralized federated learning: no server, only neighbours.",
        epilog=words,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"netfleet {netfleet.__version__}")
    parser.set_defaults(command=first_screen.run)  # where no command is given
    commands = parser.add_subparsers(prog="netfleet", metavar="COMMAND", help=argparse.SUPPRESS)
    for module in (module for group in GROUPS.values() for module in group):
        command = commands.add_parser(_name(module), description=module.__doc__, help=module.__doc__)
        module.add(command)
        command.set_defaults(command=module.run)
    return parser


def _name(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]
