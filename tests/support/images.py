"""What Docker would do with a Dockerfile and a .dockerignore, as far as tests need it; no engine runs here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]


def instructions(path: Path) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile and their words, in their order."""
    lines = re.sub(r"\\\n\s*", " ", path.read_text(encoding="utf-8")).splitlines()
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines if line and not line.startswith("#")]


def context(rules: str, files: Iterable[str]) -> set[str]:
    """The files, relative to the context's root, that the rules of a .dockerignore let into it.

    The last rule that matches a path or a folder above it decides.
    """
    lines = [line.strip() for line in rules.splitlines()]
    found = [(not line.startswith("!"), _expression(line.lstrip("!"))) for line in lines if line and line[0] != "#"]

    def ignored(name: str) -> bool:
        path = PurePosixPath(name)
        places = [str(each) for each in (path, *path.parents)]
        return next((ignores for ignores, rule in reversed(found) if any(map(rule.fullmatch, places))), False)

    return {name for name in files if not ignored(name)}


def _expression(pattern: str) -> re.Pattern[str]:
    """As moby/patternmatcher makes it: `**` spans folders, `*` and `?` do not."""
    text = pattern.strip("/").removeprefix("./")
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(parts.get(each, re.escape(each)) for each in re.findall(r"\*\*/|\*\*|.", text)))
