"""What an evaluation found, as a file: scores with intervals, never rows. The site decides what others get."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import netfleet
from netfleet.errors import ConfigError, DataError
from netfleet.files import write_atomically
from netfleet.runs.config import make

EVALUATION_FILE, PAGE_FILE = "evaluation.json", "evaluation.html"
Verdict = Literal["it helped", "too close to call", "it did not help"]


@dataclass(frozen=True)
class Interval:
    """A value and its 95 % interval; None where the test rows do not have it."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class ModelScores:
    """A model on the site's test rows: whose it is, how it was trained, and its scores by the metric's name."""

    name: str
    site: str  # whose model it is; empty: no site's
    kind: str  # "joint", "alone" or "baseline"
    scores: Mapping[str, Interval]
    round: int | None = None
    best: bool = False


@dataclass(frozen=True)
class Comparison:
    """How much better the joint model is than the one trained alone; below 0: worse."""

    metric: str
    better: Interval
    verdict: Verdict
    words: str


@dataclass(frozen=True)
class SiteEvaluation:
    """All models that a site may see, on its own test rows; `withheld` says why others do not get the scores."""

    run: str
    site: str
    rows: int
    metric: str  # by which models are compared
    models: tuple[ModelScores, ...] = ()
    comparison: Comparison | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)  # models that were not evaluated, and why
    notes: tuple[str, ...] = ()
    withheld: str = ""
    netfleet: str = netfleet.__version__

    def for_others(self) -> "SiteEvaluation":
        """What may leave the site."""
        if not self.withheld:
            return self
        return replace(self, rows=0, models=(), comparison=None, left_out={}, notes=())


def write_evaluation(found: SiteEvaluation, path: Path) -> None:
    """Write what may leave the site, as a file that people can read."""
    text = json.dumps(asdict(found.for_others()), indent=1, ensure_ascii=False) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def read_evaluation(path: Path) -> SiteEvaluation:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        models = tuple(_model(each) for each in table.pop("models"))
        given = table.pop("comparison")
        compared = None if given is None else make(Comparison, _with(given, better=_interval(given["better"])), "it")
        return make(SiteEvaluation, {**table, "models": models, "comparison": compared}, "the evaluation")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from None
    except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path} is not a file that netfleet evaluate wrote ({reason}); make it again") from None


def _model(table: Mapping[str, Any]) -> ModelScores:
    scores = {str(name): _interval(value) for name, value in table["scores"].items()}
    return make(ModelScores, _with(table, scores=scores), "a model")


def _interval(table: Mapping[str, Any]) -> Interval:
    return make(Interval, table, "an interval")


def _with(table: Mapping[str, Any], **values: object) -> dict[str, Any]:
    return {**table, **values}
