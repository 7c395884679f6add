"""The command reference, from the argparse parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from netfleet.cli import GROUPS, make_parser


def commands() -> str:
    """Markdown: a section for each group, in it one for each command."""
    (by_name,) = _subcommands(make_parser())
    parts = []
    for group, modules in GROUPS.items():
        parts.append(f"## {group[0].upper()}{group[1:]}\n")
        for name in (module.__name__.rpartition(".")[2] for module in modules):
            parts += _command(by_name.choices[name], level=3)
    return "\n".join(parts)


def _command(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    yield f"{'#' * level} `{parser.prog}`\n"
    yield f"{_escaped(parser.description or '')}\n"
    yield f"```text\n{parser.format_usage().removeprefix('usage: ').strip()}\n```\n"
    if rows := list(_rows(parser)):
        yield "| option | |\n|---|---|"
        yield "\n".join(rows) + "\n"
    if parser.epilog:
        yield f"```text\n{parser.epilog.strip()}\n```\n"
    for below in _subcommands(parser):
        for child in below.choices.values():
            child.description = child.description or _help_of(below, child)
            yield from _command(child, level + 1)


def _rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    formatter = parser._get_formatter()
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        help = formatter._expand_help(action) if action.help else ""
        yield f"| {_escaped(_called(action, formatter))} | {_escaped(help)} |"


def _called(action: argparse.Action, formatter: argparse.HelpFormatter) -> str:
    if not action.option_strings:
        return f"`{formatter._metavar_formatter(action, action.dest)(1)[0]}`"
    value = "" if action.nargs == 0 else f" {formatter._format_args(action, action.dest.upper())}"
    return ", ".join(f"`{option}{value}`" for option in action.option_strings)


def _escaped(cell: str) -> str:
    return " ".join(cell.split()).replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def _subcommands(parser: argparse.ArgumentParser) -> Iterator[argparse._SubParsersAction[argparse.ArgumentParser]]:
    return (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))


def _help_of(action: argparse._SubParsersAction[argparse.ArgumentParser], parser: argparse.ArgumentParser) -> str:
    """What the list of the sub-commands says of one."""
    helps = {choice.dest: choice.help for choice in action._choices_actions}
    text = helps.get(parser.prog.rpartition(" ")[2]) or ""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
