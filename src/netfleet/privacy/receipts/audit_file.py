"""Reads `audit.json` of a site's folder: the attacks that were tried on its messages, and what they got.

    {"attacks": [{"attack": "inversion", "view": "one neighbour", "result": "0 of 32 images", "interval": null}]}

`result` is a text or a number, `interval` a text or two numbers; there may be further keys.
"""

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
        return [_attack(each) for each in found["attacks"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigError(
            f"cannot read {path} ({error}); expected a table with attacks, each with attack, view, result and interval"
        ) from None


def _attack(table: dict[str, object]) -> Attack:
    result, interval = table["result"], table.get("interval")
    numbers = isinstance(interval, list) and len(interval) == 2 and fits(interval, list[float])
    if not fits(table["attack"], str) or not fits(table["view"], str) or not fits(result, str | float):
        raise ValueError("attack and view must be texts, result a text or a number")
    if not numbers and not fits(interval, str | None):
        raise ValueError("interval must be a text or two numbers")
    words = f"{interval[0]:g} to {interval[1]:g}" if numbers and isinstance(interval, list) else str(interval or "–")
    shown = f"{result:g}" if isinstance(result, float) else str(result)
    return Attack(str(table["attack"]), str(table["view"]), shown, words)
