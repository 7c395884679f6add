"""What a site keeps, and when it raises an alarm: `keep`, `on_alarm` and `[alarm]` in nodes.toml and site.toml."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from netfleet.errors import ConfigError
from netfleet.runs.config import make

#: Checkpoints that a site keeps, and the most that it may.
KEEP, MOST = 16, 64
#: What a site does after an alarm: nothing else, or it waits until somebody has looked.
OnAlarm = Literal["continue", "hold"]


class Alarm(NamedTuple):
    """What is unusual since a round; `site` is whose messages, or empty."""

    kind: str  # norm, loss or accuracy
    site: str
    round: int

    @property
    def what(self) -> str:
        return f"norm of messages of {self.site}" if self.kind == "norm" else self.kind

    def __str__(self) -> str:
        return f"{self.what}, since round {self.round}"


class FirstAlarm(NamedTuple):
    """The earliest alarm of some sites. Later ones follow from it: what is wrong travels a link a round."""

    round: int
    words: str


def first_alarm(alarms: Mapping[str, Sequence[Alarm]]) -> FirstAlarm | None:
    """The earliest alarm, by the names of the sites that have them."""
    t = min((alarm.round for each in alarms.values() for alarm in each), default=None)
    if t is None:
        return None
    at: dict[str, list[str]] = {}
    for name, each in alarms.items():
        for alarm in each:
            if alarm.round == t:
                at.setdefault(alarm.what, []).append(name)
    found = "; ".join(f"{what} (at {', '.join(names)})" for what, names in at.items())
    return FirstAlarm(t, f"The first alarm was in round {t}: {found}.")


@dataclass(frozen=True)
class AlarmSettings:
    """How unusual numbers must be for an alarm; 0 turns one off."""

    norm: float = 100.0  # times the norm that messages usually have
    loss: float = 5.0  # times the usual loss
    accuracy: float = 0.2  # below the usual accuracy

    def __post_init__(self) -> None:
        for key, least in (("norm", 1.0), ("loss", 1.0), ("accuracy", 0.0)):
            value = getattr(self, key)
            if not math.isfinite(value) or (value != 0 and value <= least):
                raise ConfigError(f"alarm.{key} must be larger than {least:g}, or 0 for no such alarm, got {value:g}")


USUAL = AlarmSettings()


def read_alarm(table: Mapping[str, Any]) -> AlarmSettings:
    """The `[alarm]` table of a file."""
    found = table.get("alarm", {})
    if not isinstance(found, Mapping):
        raise ConfigError(f"alarm must be a table [alarm], got {found!r}")
    return make(AlarmSettings, found, "[alarm]")


def check_keep(keep: int, on_alarm: str) -> None:
    if not 1 <= keep <= MOST:
        raise ConfigError(f"keep must be a number of checkpoints from 1 to {MOST}, got {keep}")
    if on_alarm not in get_args(OnAlarm):
        raise ConfigError(f"on_alarm must be one of {', '.join(get_args(OnAlarm))}, got {on_alarm!r}")
