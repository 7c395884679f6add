"""`key=value` texts that change an experiment file's table: of `--set`, and of `--over` with several values."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from netfleet.errors import ConfigError
from netfleet.registry import suggestion

Table = dict[str, Any]
#: A path up to the first = outside brackets, and the value: `algorithms[NET-FLEET, K = 5].eta=0.1`.
_OVERRIDE = re.compile(r"\s*([^=\[]+(?:\[[^\]]*\][^=\[]*)*)=(.*)", re.DOTALL)
_NAME = re.compile(r"\[([^\]]*)\]|([^.\[\]]+)")


def parse_overrides(overrides: Sequence[str], table: Table | None = None) -> Table:
    """`key=value` texts in a table (a new one unless given), values as TOML would read them.

    In `a.b.c=value` a list of tables on the way means each, unless one is chosen by its number, kind or label:
    `algorithms.0.c`, `algorithms.net-fleet.c`, `algorithms[My label].c`.
    """
    table = {} if table is None else table
    for override in overrides:
        path, text = split_override(override, "--set")
        _set(table, names(path), _value(text), f"--set {override}")
    return table


def split_override(text: str, option: str) -> tuple[str, str]:
    """The key and the value of a `key=value` text."""
    match = _OVERRIDE.fullmatch(text)
    if match is None or not match[1].strip():
        raise ConfigError(f"{option} takes key=value, got {text!r}; for example {option} rounds=50")
    return match[1].strip(), match[2].strip()


def names(path: str) -> list[str]:
    """The names in a path, of which those in brackets may contain dots and spaces."""
    return [(chosen or name).strip() for chosen, name in _NAME.findall(path)]


def split_values(text: str) -> list[str]:
    """The texts between commas that are not inside quotes, brackets or braces.

    >>> split_values('1, "a,b", {kind = "shards", per_worker = 2}')
    ['1', '"a,b"', '{kind = "shards", per_worker = 2}']
    """
    parts, depth, quote = [""], 0, ""
    for c in text:
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        else:
            depth += (c in "[{") - (c in "]}")
        if c == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts]


def _value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word is a text


def _set(table: Table, path: Sequence[str], value: object, words: str) -> None:
    *parents, last = path
    targets: list[Any] = [table]
    for name in parents:
        targets = [inner for target in targets for inner in _inside(target, name, words)]
    for each in [inner for target in targets for inner in (target if isinstance(target, list) else [target])]:
        if not isinstance(each, dict):
            raise ConfigError(f"{words}: {'.'.join(parents)} is not a table")
        each[last] = value


def _inside(target: Any, name: str, words: str) -> list[Any]:
    """What `name` leads to: a key of a table, or those of a list's tables with that number, kind or label."""
    if isinstance(target, dict):
        return [target.setdefault(name, {})]
    if not isinstance(target, list):
        raise ConfigError(f"{words}: the value that has {name!r} is no table, so it cannot be set")
    chosen = [x for i, x in enumerate(target) if name == str(i) or name.lower() in called(x)]
    if not chosen:
        known = [word for x in target for word in called(x)]
        others = f"{suggestion(name.lower(), known)}; there are: {', '.join(dict.fromkeys(known))}"
        raise ConfigError(f"{words}: no table there has the index, kind or label {name!r}{others}")
    return chosen


def called(table: object) -> list[str]:
    """The names of an algorithm's table in small letters: its kind and its label."""
    from netfleet.algorithms.build import algorithm_label

    if not isinstance(table, Mapping) or "kind" not in table:
        return []
    return list(dict.fromkeys(word.lower() for word in (str(table["kind"]), algorithm_label(table))))
