"""What a person at the site has approved: the experiment and the code that it names, file by file.

`approved.json` is beside the policy, or in the site's folder if there is none. It has, for each run and site, the
SHA-256 and the text of every file, so that the next approval can show what has changed.
"""

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import netfleet
from netfleet.errors import PolicyError
from netfleet.files import write_atomically
from netfleet.runs.config import read_toml
from netfleet.sites.planning.certificates import read_bytes
from netfleet.sites.planning.folders import EXPERIMENT_FILE, read_site
from netfleet.sites.policy.in_force import PolicyInForce
from netfleet.sites.policy.rules import Finding
from netfleet.sites.policy.sources import Source, find_sources, named_modules

APPROVED_FILE = "approved.json"


@dataclass(frozen=True)
class ApprovedFile:
    """A file as it was when it was approved; without a hash where Python found none, without a text if it had none."""

    path: str
    sha256: str | None
    text: str | None


@dataclass(frozen=True)
class Approval:
    """Everything that a site would run of a plan, by module; the experiment is a file among them."""

    site: str
    run: str
    version: str
    time: str
    files: Mapping[str, ApprovedFile]

    @property
    def key(self) -> str:
        return f"{self.site} {self.run}"


def current(folder: Path) -> Approval:
    """What the plan in a folder would run now; nothing of it is imported."""
    site, path = read_site(folder), folder / EXPERIMENT_FILE
    sources = [Source(EXPERIMENT_FILE, path, read_bytes(path)), *find_sources(named_modules(read_toml(path)))]
    files = {source.module: _file(source) for source in sources}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Approval(site.name, site.run, netfleet.__version__, now, files)


def _file(source: Source) -> ApprovedFile:
    if source.content is None:
        return ApprovedFile(str(source.path or ""), None, None)
    try:
        text: str | None = source.content.decode()
    except UnicodeDecodeError:
        text = None
    return ApprovedFile(str(source.path), hashlib.sha256(source.content).hexdigest(), text)


# ---- on disk ----


def approvals_path(folder: Path, in_force: PolicyInForce) -> Path:
    return (folder if in_force.path is None else in_force.path.parent) / APPROVED_FILE


def read_approvals(path: Path) -> dict[str, Approval]:
    """All approvals in a file; none if there is no file."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        return {key: _approval(entry) for key, entry in table.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise PolicyError(f"{path} cannot be read ({error}); remove it, and approve again") from None


def _approval(entry: Mapping[str, object]) -> Approval:
    files = {name: ApprovedFile(**each) for name, each in entry["files"].items()}  # type: ignore[attr-defined]
    return Approval(**{**entry, "files": files})  # type: ignore[arg-type]


def write_approval(path: Path, approval: Approval) -> None:
    known = read_approvals(path) | {approval.key: approval}
    text = json.dumps({key: asdict(each) for key, each in known.items()}, indent=1, ensure_ascii=False)
    write_atomically(path, lambda file: file.write(text.encode()))


def last_approval(path: Path, now: Approval) -> Approval | None:
    """What was approved of this run before, or else of an earlier plan of the same site."""
    known = read_approvals(path)
    earlier = sorted((each for each in known.values() if each.site == now.site), key=lambda each: each.time)
    return known.get(now.key) or (earlier[-1] if earlier else None)


# ---- comparing ----


def differences(now: Approval, before: Approval) -> list[str]:
    """A phrase for each file that is not what was approved."""
    found = [f"netfleet was {before.version} and is {now.version}"] if now.version != before.version else []
    for name in sorted({*now.files, *before.files}):
        new, old = now.files.get(name), before.files.get(name)
        if new is None:
            found.append(f"{name} is no longer named")
        elif new.sha256 is None and new.path:
            found.append(f"{name} ({new.path}) cannot be read")
        elif old is None:
            found.append(f"{name} ({new.path or 'not found'}) is new")
        elif new.sha256 != old.sha256:
            found.append(f"{name} ({new.path or old.path}) {'has changed' if new.sha256 else 'is gone'}")
    return found


def unified_diff(name: str, now: ApprovedFile, before: ApprovedFile) -> Iterator[str]:
    """The lines that differ; nothing of files without a text."""
    old, new = ((each.text or "").splitlines() for each in (before, now))
    yield from difflib.unified_diff(old, new, f"{name} (approved)", f"{name} (now)", lineterm="")


def code_finding(folder: Path, in_force: PolicyInForce) -> Finding | None:
    """What the rule code.approved says; None if the policy does not ask."""
    if not in_force.policy.code.approved:
        return None
    now, remedy = current(folder), f"look at it with netfleet approve {folder}"
    before = read_approvals(approvals_path(folder, in_force)).get(now.key)
    if before is None:
        has = f"code of run {now.run[:12]} that nobody has approved"
        return Finding("code.approved", False, has, "approved code only", remedy)
    changed = differences(now, before)
    has = f"changes since {before.time}: {', '.join(changed)}" if changed else f"the code approved on {before.time}"
    return Finding("code.approved", not changed, has, "approved code only", remedy)
