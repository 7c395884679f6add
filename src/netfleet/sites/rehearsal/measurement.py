"""What a site says of itself: speeds, numbers of rows, and once it trains what that took. A file that people can read.

`netfleet rehearse SITE --measure` writes it. Rows are also in what `netfleet statistics --site` wrote, and links in
what `netfleet doctor --json` printed; all three are read here.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import netfleet
from netfleet.data.statistics import read_statistics
from netfleet.errors import ConfigError, DataError
from netfleet.files import write_atomically
from netfleet.runs.config import make
from netfleet.sites.costs.speed import Speed
from netfleet.sites.rehearsal.done import Done
from netfleet.sites.rehearsal.timeline import Link


@dataclass(frozen=True)
class Measurement:
    """One site's file. What is None or empty was not measured."""

    site: str
    speed: Speed | None = None
    rows: int | None = None  # training rows
    classes: tuple[int, ...] = ()  # training rows of each class, if the site gives them
    links: Mapping[str, Link] = field(default_factory=dict)  # to neighbours by name
    done: Done | None = None  # once it trains: what that has taken
    netfleet: str = netfleet.__version__

    def __post_init__(self) -> None:
        speed = () if self.speed is None else asdict(self.speed).values()
        done = () if self.done is None else (self.done.rounds, self.done.seconds or 0.0, self.done.sent)
        linked = (value for link in self.links.values() for value in link)
        numbers = [*speed, *linked, *self.classes, self.rows or 0, *done]
        if not all(math.isfinite(number) and number >= 0 for number in numbers):
            raise ConfigError("a number in it is negative or not finite")
        if (self.speed is not None and not self.speed.step > 0) or any(
            not link.rate > 0 for link in self.links.values()
        ):
            raise ConfigError("a step takes no time, or a link has no rate")


def write_measurement(found: Measurement, path: Path) -> None:
    links = {name: link._asdict() for name, link in found.links.items()}
    table = asdict(found) | {"links": links}
    write_atomically(path, lambda file: file.write((json.dumps(table, indent=1) + "\n").encode()))


def read_measurements(paths: Sequence[Path], names: Sequence[str]) -> dict[str, Measurement]:
    """What the files say of each of the named sites; several files of a site complete each other."""
    found: dict[str, Measurement] = {}
    for path in paths:
        each = _read(path)
        if each.site not in names:
            raise DataError(f"{path} is of {each.site!r}, which is none of the plan's sites {', '.join(names)}")
        found[each.site] = each if each.site not in found else _both(found[each.site], each)
    return found


def _both(one: Measurement, other: Measurement) -> Measurement:
    """The later file counts where both say something."""
    return Measurement(
        one.site,
        other.speed or one.speed,
        one.rows if other.rows is None else other.rows,
        other.classes or one.classes,
        {**one.links, **other.links},
        other.done or one.done,
        other.netfleet,
    )


def _read(path: Path) -> Measurement:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        if "declaration" in table:
            return _of_statistics(path)
        if "subject" in table:
            return _of_doctor(table)
        speed = None if table["speed"] is None else make(Speed, table["speed"], "speed")
        links = {str(name): Link(float(each["latency"]), float(each["rate"])) for name, each in table["links"].items()}
        done = None if table["done"] is None else make(Done, table["done"], "done")
        return make(Measurement, {**table, "speed": speed, "links": links, "done": done}, "the file")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from None
    except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{path} is neither a measurement, nor a site's statistics, nor what netfleet doctor --json printed "
            f"({reason}); make it again"
        ) from None


def _of_statistics(path: Path) -> Measurement:
    """The rows behind the sums of one site: those with a value in a column and those without."""
    found = read_statistics(path)
    if len(found.sites) != 1:
        raise ConfigError("it has the sums of several sites; give the file of each site")
    return Measurement(found.sites[0], rows=max(sums.count + sums.missing for sums in found.columns.values()))


def _of_doctor(table: Mapping[str, Any]) -> Measurement:
    timed = [each for each in table["neighbours"] if each["delay"] is not None and each["rate"] is not None]
    links = {str(each["name"]): Link(float(each["delay"]), float(each["rate"])) for each in timed}
    return Measurement(str(table["subject"]), links=links)
