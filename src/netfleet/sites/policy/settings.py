"""policy.toml: what a site allows. The site writes it; a plan never does.

    [privacy]     required = true, epsilon = 8.0, delta = 1e-5
    [training]    methods = ["net-fleet"], compression = false, least_batch = 32
    [neighbours]  least = 2, names = ["hospital-b", "hospital-c"]
    [neighbours.fingerprints]  hospital-b = ["6F:3A:…"]      (SHA-256 of its certificate)
    [code]        approved = true
    [data]        least_rows = 50, least_classes = 2
    [show]        scores_to_neighbours = false, …

A rule that is left out allows everything. Unknown keys are errors, so a rule with a typing error is never ignored.
"""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from netfleet.algorithms import ALGORITHMS
from netfleet.errors import ConfigError, PolicyError
from netfleet.registry import parameters, suggestion
from netfleet.runs.config import Table, make, read_toml
from netfleet.sites.planning.nodes_file import check_name

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


def _not_negative(value: int, name: str) -> None:
    if value < 0:
        raise ConfigError(f"{name} must be a whole number, 0 or more, got {value}")


@dataclass(frozen=True)
class PrivacyRules:
    """Whether a plan must have differential privacy, and the most that this site may spend."""

    required: bool = False
    epsilon: float | None = None
    delta: float | None = None

    def __post_init__(self) -> None:
        if self.epsilon is not None and not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ConfigError(f"epsilon must be a number above 0, got {self.epsilon}; for example 8.0")
        if self.delta is not None and not 0 < self.delta < 1:
            raise ConfigError(f"delta must be a number between 0 and 1, got {self.delta}; for example 1e-5")


@dataclass(frozen=True)
class TrainingRules:
    """Which methods may be trained with; None: all."""

    methods: tuple[str, ...] | None = None
    compression: bool = True
    least_batch: int = 0

    def __post_init__(self) -> None:
        _not_negative(self.least_batch, "least_batch")
        for name in self.methods or ():
            if ":" not in name and name not in (*ALGORITHMS, *ALGORITHMS.aliases):
                near = suggestion(name, [*ALGORITHMS, *ALGORITHMS.aliases])
                raise ConfigError(f"methods has {name!r}, which is no method{near}; netfleet algorithms lists them")

    def allows(self, method: str) -> bool:
        return self.methods is None or method in [ALGORITHMS.aliases.get(name, name) for name in self.methods]


@dataclass(frozen=True)
class NeighbourRules:
    """Who may be a neighbour: how many there must be, their names (None: any), and their certificates by name."""

    least: int = 0
    names: tuple[str, ...] | None = None
    fingerprints: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _not_negative(self.least, "least")
        for name in (*(self.names or ()), *self.fingerprints):
            check_name(name)
        found = {name: _fingerprints(name, given) for name, given in self.fingerprints.items()}
        object.__setattr__(self, "fingerprints", found)

    def allows(self, name: str) -> bool:
        return self.names is None or name in self.names

    def certificates(self, name: str) -> frozenset[str] | None:
        """The fingerprints that a neighbour's certificate may have; None: any."""
        found: frozenset[str] | None = self.fingerprints.get(name)
        return found


@dataclass(frozen=True)
class CodeRules:
    """Whether experiment and code must be those that `netfleet approve` has shown."""

    approved: bool = False


@dataclass(frozen=True)
class DataRules:
    """How many training rows of its own, and classes among them, the site needs to take part."""

    least_rows: int = 0
    least_classes: int = 0

    def __post_init__(self) -> None:
        _not_negative(self.least_rows, "least_rows")
        _not_negative(self.least_classes, "least_classes")


@dataclass(frozen=True)
class ShowRules:
    """What others may see beside the messages of the training."""

    scores_to_neighbours: bool = True  # accuracy and losses in the status
    scores_to_operator: bool = True
    sketches_to_operator: bool = True  # random sums of y − g
    model_to_joining: bool = True  # the model, to a neighbour that joins or rejoins
    metrics: bool = True  # numbers for Prometheus, over HTTP
    scores_in_model: bool = True  # the last scores, in the model's file
    model_to_others: bool = True  # the joint model, to be evaluated at other sites
    alone_model_to_others: bool = True  # the model that this site trained alone
    evaluation_to_operator: bool | None = None  # scores of netfleet evaluate; None: unless the plan is private
    least_test_rows: int = 0  # below which these are not given

    def __post_init__(self) -> None:
        _not_negative(self.least_test_rows, "least_test_rows")


@dataclass(frozen=True)
class Policy:
    """The rules of a site; by default everything is allowed."""

    privacy: PrivacyRules = PrivacyRules()
    training: TrainingRules = TrainingRules()
    neighbours: NeighbourRules = NeighbourRules()
    code: CodeRules = CodeRules()
    data: DataRules = DataRules()
    show: ShowRules = ShowRules()


def read_policy(path: Path) -> tuple[Policy, str]:
    """The policy in a file, and the SHA-256 of the file; raises PolicyError if it is missing or broken."""
    try:
        return parse_policy(read_toml(path)), hashlib.sha256(path.read_bytes()).hexdigest()
    except (ConfigError, OSError) as error:
        raise PolicyError(f"the policy {path} cannot be used, so this site does not start: {error}") from None


def parse_policy(table: Table) -> Policy:
    """A policy from its tables, every key of which must be known."""
    hints = parameters(Policy)
    for name, value in table.items():
        if name not in hints:
            known = f"{suggestion(name, hints)}; known: {', '.join(f'[{key}]' for key in hints)}"
            raise ConfigError(f"unknown table or key {name!r}{known}")
        if not isinstance(value, dict):
            raise ConfigError(f"{name} must be a table, got {value!r}; write [{name}] and its keys below it")
    return Policy(**{name: make(hints[name].annotation, value, f"[{name}]") for name, value in table.items()})


def _fingerprints(name: str, given: object) -> frozenset[str]:
    found = [given] if isinstance(given, str) else given
    if not isinstance(found, list | tuple) or not found or not all(isinstance(each, str) for each in found):
        raise ConfigError(f"fingerprints of {name} must be a text or a list of texts, got {given!r}; see netfleet pin")
    return frozenset(parse_fingerprint(each) for each in found)


def parse_fingerprint(text: str) -> str:
    """A SHA-256 fingerprint in lower case without colons; openssl writes it in upper case with them."""
    found = text.rpartition("=")[2].replace(":", "").strip().lower()
    if not _FINGERPRINT.fullmatch(found):
        advice = "openssl x509 -in node.pem -noout -fingerprint -sha256 prints it"
        raise ConfigError(f"{text!r} is no SHA-256 fingerprint, which has 64 hexadecimal digits; {advice}")
    return found
