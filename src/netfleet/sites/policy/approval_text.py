"""What `netfleet approve` prints: where every file is, its hash, and its content or what has changed in it."""

from collections.abc import Iterator
from pathlib import Path

from netfleet.sites.planning.folders import read_site
from netfleet.sites.policy.approval import Approval, ApprovedFile, differences, unified_diff


def approval_lines(folder: Path, now: Approval, before: Approval | None) -> Iterator[str]:
    """Everything that a person should see before approving."""
    neighbours = ", ".join(each.name for each in read_site(folder).neighbours)
    yield f"{now.site}, run {now.run[:12]}, neighbours {neighbours or 'none'}, netfleet {now.version}"
    if before is not None:
        changed = differences(now, before)
        yield f"since {before.time}: {'; '.join(changed) or 'nothing has changed'}"
    for name, file in now.files.items():
        yield from _file_lines(name, file, None if before is None else before.files.get(name))


def _file_lines(name: str, file: ApprovedFile, before: ApprovedFile | None) -> Iterator[str]:
    if file.sha256 is None:
        reason = f"{file.path} cannot be read" if file.path else "Python finds no file for it from here"
        yield f"\n{name}: {reason}; if the experiment needs it, the site cannot start"
        return
    state = "new" if before is None else "as approved" if before.sha256 == file.sha256 else "CHANGED"
    yield f"\n{name}: {file.path}\n  SHA-256 {file.sha256}, {state}"
    if state == "as approved":
        return
    if file.text is None:
        yield "  not a text"
        return
    lines = unified_diff(name, file, before) if before is not None else iter(file.text.splitlines())
    yield from (f"  {visible(line)}" for line in lines)


def visible(line: str) -> str:
    """A line in which nothing hides: control characters, also those that turn text around, are written as codes."""
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in line)
