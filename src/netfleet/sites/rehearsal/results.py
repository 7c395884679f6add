"""A prediction as a file, `rehearsal.json`, beside which people later put what happened."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import netfleet
from netfleet.errors import ConfigError, DataError
from netfleet.files import write_atomically
from netfleet.runs.config import make
from netfleet.sites.evaluation.results import Interval
from netfleet.sites.rehearsal.gain import Gain
from netfleet.sites.rehearsal.pace import BoxPrediction, SlowSite

REHEARSAL_FILE, PAGE_FILE = "rehearsal.json", "rehearsal.html"


@dataclass(frozen=True)
class SitePrediction:
    """What the training takes and brings at one site."""

    name: str
    rows: int | None  # training rows
    step_seconds: float
    steps: float  # local steps of a round, in the mean
    computing: float  # seconds of a round that the site computes
    saving: float  # seconds of a round that it writes, evaluations included
    sent: int  # bytes
    received: int
    disk: int
    pace: float  # its share of the critical path
    gain: Gain | None = None


@dataclass(frozen=True)
class Rehearsal:
    """A prediction; `assumptions` say what it rests on."""

    run: str
    name: str
    method: str
    rounds: int
    seconds: float
    round_seconds: float
    computing: float  # shares of the time, along the critical path
    saving: float
    messages: float
    slow: SlowSite | None
    sites: tuple[SitePrediction, ...]
    box: BoxPrediction | None
    data: str  # "own", "file", "made up", or empty: no gains
    assumptions: tuple[str, ...]
    time: str  # when it was made, UTC
    netfleet: str = netfleet.__version__


def write_rehearsal(found: Rehearsal, path: Path) -> None:
    write_atomically(path, lambda file: file.write((as_json(found) + "\n").encode()))


def as_json(found: object) -> str:
    return json.dumps(asdict(found), indent=1, ensure_ascii=False)  # type: ignore[call-overload]


def read_rehearsal(path: Path) -> Rehearsal:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        sites = [_site(each) for each in table["sites"]]
        box = None if table["box"] is None else make(BoxPrediction, table["box"], "the time box")
        slow = None if table["slow"] is None else make(SlowSite, table["slow"], "the slow site")
        return make(Rehearsal, {**table, "sites": sites, "box": box, "slow": slow}, "the rehearsal")
    except FileNotFoundError:
        raise DataError(f"there is no {path}; make it before the training: netfleet rehearse {path.parent}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from None
    except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path} is not a file that netfleet rehearse wrote ({reason}); make it again") from None


def _site(table: Mapping[str, Any]) -> SitePrediction:
    given = table["gain"]
    gain = None
    if given is not None:
        parts = {key: make(Interval, given[key], "an interval") for key in ("joint", "alone", "better")}
        gain = make(Gain, {**given, **parts}, "a gain")
    return make(SitePrediction, {**table, "gain": gain}, "a site")
