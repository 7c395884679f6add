"""A site's alarms: `alarm.json` in its folder, from when numbers are unusual until somebody says that he has looked.

`netfleet release` removes the file. With `on_alarm = "hold"` the site waits for that; it answers its neighbours
meanwhile, and sends nothing new. What stays unusual after that raises no new alarm.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from netfleet.errors import ConfigError
from netfleet.files import write_atomically
from netfleet.runs.history import Record
from netfleet.sites.operations.logs import Log
from netfleet.sites.planning.alarm_settings import Alarm
from netfleet.sites.planning.folders import Site
from netfleet.sites.runtime.jumps import Jump, UsualNorms, score_jumps
from netfleet.sites.runtime.waits import Waits

ALARM_FILE = "alarm.json"
#: Seconds between two looks at the file while a site holds.
PAUSE = 0.2


def read_alarms(folder: Path, name: str = ALARM_FILE) -> tuple[Alarm, ...]:
    """The alarms that nobody has looked at."""
    path = folder / name
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return tuple(Alarm(str(each["kind"]), str(each["site"]), int(each["round"])) for each in found)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({error}); remove it when you have looked at the log") from None


def release(folder: Path) -> tuple[Alarm, ...]:
    """Say that somebody has looked at a site's alarms; a site that holds goes on. Returns them.

    The file is taken away before it is read, so an alarm that the site raises meanwhile stands.
    """
    read_alarms(folder)  # one that is damaged stays where it is
    taken = folder / f".{ALARM_FILE}.{os.getpid()}"
    try:
        os.replace(folder / ALARM_FILE, taken)
    except FileNotFoundError:
        return ()
    alarms = read_alarms(folder, taken.name)
    taken.unlink()
    return alarms


class Alarms:
    """The alarms of a site that runs. The training's thread raises them, others read them."""

    def __init__(self, folder: Path, site: Site, log: Log, waits: Waits) -> None:
        self._folder, self._site, self._log, self._waits, self.norms = folder, site, log, waits, UsualNorms()
        self._at_start = {(alarm.kind, alarm.site) for alarm in read_alarms(folder)}
        self._lasting = dict[tuple[str, int], set[tuple[str, str]]]()  # what was unusual the last time, by the exchange

    def standing(self) -> tuple[Alarm, ...]:
        return read_alarms(self._folder)

    @property
    def first_round(self) -> int | None:
        """Since when there is an alarm."""
        return min((alarm.round for alarm in self.standing()), default=None)

    def check_norms(self, t: int, call: int, norms: Mapping[int, Sequence[float]], name: Callable[[int], str]) -> None:
        """Raise an alarm if norms of messages are unusual: this site's own, and those that it has got."""
        found = self.norms.unusual(call, norms, self._site.alarm.norm)
        self._raise(t, ("norm", call), [Jump("norm", *values, name(j)) for j, values in found.items()])

    def check_scores(self, t: int, records: Sequence[Record]) -> None:
        """Raise an alarm if the last evaluation is unusual."""
        self._raise(t, ("score", 0), list(score_jumps(records, self._site.alarm)))

    def _raise(self, t: int, place: tuple[str, int], jumps: Sequence[Jump]) -> None:
        """Raise an alarm for what was nowhere unusual the last time; `place` is where it was looked for."""
        before = set[tuple[str, str]]().union(*self._lasting.values())
        if place not in self._lasting:
            before |= self._at_start
        found = {(jump.kind, jump.site): jump for jump in jumps}
        self._lasting[place] = set(found)
        new = {key: jump for key, jump in found.items() if key not in before}
        if not new:
            return
        standing = {(alarm.kind, alarm.site): alarm for alarm in self.standing()}
        standing = {key: Alarm(*key, t) for key in new} | standing
        self._write(list(standing.values()))
        holds = self._site.on_alarm == "hold"
        following = "the site holds: " if holds else ""
        following += f"look, then netfleet release {self._folder}, or netfleet evict and netfleet rollback"
        for jump in new.values():
            self._log.event("alarm", level="error", round=t, kind=jump.kind, why=jump.why, next=following)

    def _write(self, alarms: Sequence[Alarm]) -> None:
        text = json.dumps([alarm._asdict() for alarm in alarms])
        write_atomically(self._folder / ALARM_FILE, lambda file: file.write(text.encode()))

    def hold(self, t: int, is_out: Callable[[str], bool], ended: Callable[[], bool]) -> None:
        """Wait until nothing stands, if the site holds; of a site that is out, messages do not matter any more.

        It stops to wait when `ended` says so.
        """
        if self._site.on_alarm != "hold" or not self.standing():
            return
        with self._waits.holding():
            while not ended() and not all(alarm.site and is_out(alarm.site) for alarm in self.standing()):
                time.sleep(PAUSE)
        if not ended():
            release(self._folder)
            self._log.event("released", round=t)
