"""What an audit has found, and its JSON file.

`audit.json` has these keys; a later version may add some, and a change of their meaning raises `version`:

    version     1
    experiment  its name, its hash, and by method the hash of its run's config (in a plan: `experiment` of plan.toml)
    settings    rounds, victims, shadows, … of the audit
    privacy     the [privacy] table, or null
    views       what each attacker knows, in words
    results     one for each number: attack, name, view, method, private, victims, value, interval, words
    ranking     for each view the methods, from the one whose messages show most to the one that shows least
    notes       sentences, such as which attack did not apply

`words` say the number and what it is. `value` is null if an attack does not apply; `words` then say why. `interval` is
a pair or null.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from scipy.stats import beta
from torch import Tensor

from netfleet.files import write_atomically

VERSION = 1
AUDIT_FILE, PAGE_FILE = "audit.json", "audit.html"
LEVEL = 0.95


@dataclass(frozen=True)
class Finding:
    """One number of one attack."""

    attack: str  # "gradients", "labels", "algebra", "optimisation" or "membership"
    name: str
    view: str
    method: str
    private: bool
    victims: int
    value: float | None
    interval: tuple[float, float] | None
    words: str


#: What methods are ranked by, in this order.
_RANKED = (
    ("algebra", "batch"),
    ("optimisation", "recovered"),
    ("gradients", "exact"),
    ("labels", "advantage"),
    ("membership", "advantage"),
)


class Picture(NamedTuple):
    """Originals of a victim beside what an attacker made of its messages, `[images, channels, height, width]`."""

    method: str
    private: bool
    view: str
    victim: str
    originals: Tensor
    algebra: Tensor | None
    optimised: Tensor | None


@dataclass(frozen=True)
class Audit:
    """All findings of an audit."""

    name: str
    hash: str
    runs: Mapping[str, str]  # the hash of each method's config
    settings: Mapping[str, int]
    privacy: Mapping[str, Any] | None
    views: Mapping[str, str]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = field(default=(), repr=False)

    def value(self, attack: str, name: str, view: str, method: str, private: bool = False) -> float | None:
        """One number, or None where there is none."""
        found = self.find(attack, name, view, method, private)
        return None if found is None else found.value

    def find(self, attack: str, name: str, view: str, method: str, private: bool = False) -> Finding | None:
        asked = (attack, name, view, method, private)
        return next((f for f in self.findings if (f.attack, f.name, f.view, f.method, f.private) == asked), None)

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(finding.method for finding in self.findings))

    def ranking(self, view: str) -> list[str]:
        """The methods that were audited without privacy, from the one whose messages show most to this view."""
        seen = [m for m in self.methods if any(f.view == view and f.method == m for f in self.findings)]

        def shown(method: str) -> list[float]:
            return [-round(self.value(attack, name, view, method) or 0.0, 3) for attack, name in _RANKED]

        return sorted(seen, key=shown)

    def to_table(self) -> dict[str, Any]:
        """As in `audit.json`."""
        return {
            "version": VERSION,
            "experiment": {"name": self.name, "hash": self.hash, "runs": dict(self.runs)},
            "settings": dict(self.settings),
            "privacy": None if self.privacy is None else dict(self.privacy),
            "views": dict(self.views),
            "results": [asdict(finding) | {"words": in_words(finding)} for finding in self.findings],
            "ranking": {view: self.ranking(view) for view in self.views},
            "notes": list(self.notes),
        }

    def write_json(self, folder: Path) -> Path:
        text = json.dumps(self.to_table(), indent=1, ensure_ascii=False) + "\n"
        write_atomically(folder / AUDIT_FILE, lambda file: file.write(text.encode()))
        return folder / AUDIT_FILE


def in_words(finding: Finding) -> str:
    """A finding's number and what it is, or why there is none."""
    if finding.value is None:
        return finding.words
    decibels = finding.name in ("psnr", "guess")
    number = f"{finding.value:.1f} dB" if decibels else f"{100 * finding.value:.0f} %"
    return f"{number}: {finding.words}"


def share_interval(hits: int, trials: int) -> tuple[float, float] | None:
    """Clopper and Pearson's interval of a share; None without trials."""
    if trials == 0:
        return None
    tail = (1 - LEVEL) / 2
    low = float(beta.ppf(tail, hits, trials - hits + 1)) if hits else 0.0
    return low, float(beta.ppf(1 - tail, hits + 1, trials - hits)) if hits < trials else 1.0


def pooled(counts: Sequence[tuple[int, int]]) -> tuple[float | None, tuple[float, float] | None]:
    """The share of all hits in all trials, with its interval."""
    hits, trials = sum(h for h, _ in counts), sum(n for _, n in counts)
    return (hits / trials, share_interval(hits, trials)) if trials else (None, None)
