"""What the checks say: results that are as they should be, and findings, each with what to do."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from netfleet.errors import NetfleetError

Level = Literal["error", "warning"]


class Finding(NamedTuple):
    """Something that somebody has to fix (an error) or should look at (a warning)."""

    level: Level
    check: str  # its kind, in one word; programs may rely on it
    about: str  # a neighbour or a site; empty: the site itself
    what: str
    cure: str

    def __str__(self) -> str:
        subject = f"{self.about} " if self.about else ""
        return f"{subject}{self.what}; {self.cure}"


class Result(NamedTuple):
    """What a check has measured or read."""

    check: str
    result: str


class LinkResult(NamedTuple):
    """A neighbour, as this site found it; empty where nothing was found out."""

    name: str
    to: str  # whether this site reaches it: "yes", "no", or how
    back: str  # whether it reaches this site
    clock: float | None  # seconds that its clock is ahead
    delay: float | None  # seconds for a question and its answer
    rate: float | None  # bytes per second from it
    version: str
    state: str  # what runs there


@dataclass
class Report:
    """All results and findings, in the order of the checks."""

    subject: str
    results: list[Result] = field(default_factory=list)
    links: list[LinkResult] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def note(self, check: str, result: str) -> None:
        self.results.append(Result(check, result))

    def add(self, level: Level, check: str, what: str, cure: str, about: str = "") -> None:
        self.findings.append(Finding(level, check, about, what, cure))

    @property
    def errors(self) -> int:
        return sum(finding.level == "error" for finding in self.findings)

    def has(self, check: str) -> bool:
        """Whether there is a finding of this kind."""
        return any(finding.check == check for finding in self.findings)

    @contextmanager
    def catching(self, check: str, about: str = "") -> Iterator[None]:
        """Within the context, an error becomes a finding, and what follows it there is left out."""
        try:
            yield
        except NetfleetError as error:
            self.findings.append(finding_of(error, check, about))


def finding_of(error: NetfleetError, check: str, about: str = "") -> Finding:
    """An error as a finding: after the last semicolon its message says what to do."""
    what, _, cure = str(error).rpartition("; ")
    return Finding("error", check, about, what or cure, cure if what else "see docs/sites.md")


def sort_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Errors first, else as they were found, each once."""
    return sorted(dict.fromkeys(findings), key=lambda finding: finding.level != "error")
