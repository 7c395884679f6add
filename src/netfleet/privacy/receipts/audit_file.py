"""Reads `audit.json` of a site's folder (`netfleet audit`): the attacks on its messages, and what they got."""

import json
from pathlib import Path
from typing import NamedTuple

from netfleet.errors import ConfigError
from netfleet.registry import fits

AUDIT_FILE = "audit.json"


class Attack(NamedTuple):
    """An attack and its result, as texts."""

    attack: str
    view: str  # who attacks: one neighbour, all together, …
    result: str
    interval: str


def read_audit(folder: Path) -> list[Attack] | None:
    """The attacks that were tried; None: there was no audit."""
    path = folder / AUDIT_FILE
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_bytes())
        return [_attack(each) for each in found["results"] if each["value"] is not None]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigError(f"cannot read {path} ({error}); expected what netfleet audit writes; make it again") from None


def _attack(table: dict[str, object]) -> Attack:
    names = [table[key] for key in ("attack", "name", "view", "method", "words")]
    interval = table["interval"]
    pair = isinstance(interval, list) and len(interval) == 2 and fits(interval, list[float])
    if not fits(names, list[str]) or not fits(table["private"], bool) or not (pair or interval is None):
        raise ValueError("a result of another form")
    attack, name, view, method, words = map(str, names)
    private = ", private" if table["private"] else ""
    bounds = f"{interval[0]:.3g} to {interval[1]:.3g}" if pair and isinstance(interval, list) else "–"
    return Attack(f"{attack}, {name}: {method}{private}", view, words, bounds)
